// Command site renders the pages of a checkout as a static site with a search, and fails if one of them links to what is
// not there.
package main

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"html/template"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"
)

// source is where people look at files that are no pages.
const source = "https://github.com/lokt-dev/lokt/blob/main/"

//go:embed page.html search.js style.css
var parts embed.FS

// A page is one Markdown file.
type page struct {
	Title string
	URL   string // relative to the site's root
	name  string // of the file, relative to the checkout
	text  []byte
	tree  ast.Node
	ids   map[string]bool // of its headings
}

// An entry of the search is what stands under one heading.
type entry struct {
	Page  string `json:"page"`
	Title string `json:"title"`
	URL   string `json:"url"`
	Text  string `json:"text"`
}

func main() {
	out := flag.String("o", "dist/site", "directory to make anew")
	checkout := flag.String("C", ".", "checkout")
	flag.Parse()
	if err := os.Chdir(*checkout); err != nil {
		fmt.Fprintln(os.Stderr, "site:", err)
		os.Exit(1)
	}
	if err := build(os.DirFS("."), *out); err != nil {
		fmt.Fprintln(os.Stderr, "site:", err)
		os.Exit(1)
	}
}

// build renders the pages of a checkout into a directory.
func build(checkout fs.FS, out string) error {
	md := goldmark.New(goldmark.WithExtensions(extension.GFM), goldmark.WithParserOptions(parser.WithAutoHeadingID()))
	pages, err := read(checkout, md.Parser())
	if err != nil {
		return err
	}
	layout, err := template.ParseFS(parts, "page.html")
	if err != nil {
		return err
	}
	if err := os.RemoveAll(out); err != nil {
		return err
	}
	var bad []error
	var index []entry
	for _, p := range pages {
		bad = append(bad, p.links(checkout, pages)...)
		bad = append(bad, p.pictures(checkout, out)...)
		index = append(index, p.entries()...)
		var body, whole bytes.Buffer
		if err := md.Renderer().Render(&body, p.text, p.tree); err != nil {
			return err
		}
		err := layout.Execute(&whole, map[string]any{
			"Page": p, "Pages": pages, "Root": strings.Repeat("../", strings.Count(p.URL, "/")), "Body": template.HTML(body.String()),
		})
		if err != nil {
			return err
		}
		if err := write(filepath.Join(out, filepath.FromSlash(p.URL)), whole.Bytes()); err != nil {
			return err
		}
	}
	list, err := json.Marshal(index)
	if err != nil {
		return err
	}
	script, _ := parts.ReadFile("search.js") // they are part of the program
	style, _ := parts.ReadFile("style.css")
	bad = append(bad, write(filepath.Join(out, "search.js"), slices.Concat([]byte("const entries = "), list, []byte(";\n"), script)),
		write(filepath.Join(out, "style.css"), style))
	return errors.Join(bad...)
}

// read returns the pages: those at the top, README.md first, those below docs, and those of the clients.
func read(checkout fs.FS, p parser.Parser) (pages []*page, err error) {
	for _, pattern := range []string{"README.md", "docs/*.md", "clients/*/README.md", "docs/adr/*.md", "[A-QS-Z]*.md"} {
		names, err := fs.Glob(checkout, pattern)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			source, err := fs.ReadFile(checkout, name)
			if err != nil {
				return nil, err
			}
			page := &page{name: name, URL: strings.TrimSuffix(name, ".md") + ".html", text: source, ids: map[string]bool{}}
			if name == "README.md" {
				page.URL = "index.html"
			}
			page.tree = p.Parse(text.NewReader(source))
			page.each(func(h *ast.Heading, title, id string) {
				if page.ids[id] = true; page.Title == "" {
					page.Title = title
				}
			})
			pages = append(pages, page)
		}
	}
	return pages, nil
}

// each calls f for each heading.
func (p *page) each(f func(h *ast.Heading, title, id string)) {
	for n := p.tree.FirstChild(); n != nil; n = n.NextSibling() {
		if h, ok := n.(*ast.Heading); ok {
			id, _ := h.AttributeString("id")
			text, _ := id.([]byte)
			f(h, plain(h, p.text), string(text))
		}
	}
}

// plain returns the text of a node without its form.
func plain(n ast.Node, source []byte) string {
	var all strings.Builder
	_ = ast.Walk(n, func(n ast.Node, entering bool) (ast.WalkStatus, error) { // which returns no error
		switch n := n.(type) {
		case *ast.Text:
			if entering {
				all.Write(n.Value(source))
				all.WriteByte(' ')
			}
		case *ast.FencedCodeBlock:
			if entering {
				all.Write(n.Lines().Value(source))
			}
		}
		return ast.WalkContinue, nil
	})
	return strings.Join(strings.Fields(all.String()), " ")
}

// links makes the page's links lead to pages of the site, or to the source, and returns what is wrong with them.
func (p *page) links(checkout fs.FS, pages []*page) (bad []error) {
	_ = ast.Walk(p.tree, func(n ast.Node, entering bool) (ast.WalkStatus, error) { // which returns no error
		link, ok := n.(*ast.Link)
		if !ok || !entering || strings.Contains(string(link.Destination), "://") {
			return ast.WalkContinue, nil
		}
		to, id, _ := strings.Cut(string(link.Destination), "#")
		name := p.name
		if to != "" {
			name = path.Join(path.Dir(p.name), to)
		}
		i := slices.IndexFunc(pages, func(other *page) bool { return other.name == name })
		switch _, err := fs.Stat(checkout, name); {
		case err != nil:
			bad = append(bad, fmt.Errorf("%s links to %s, which is not there", p.name, link.Destination))
		case i < 0:
			link.Destination = []byte(source + name)
		case id != "" && !pages[i].ids[id]:
			bad = append(bad, fmt.Errorf("%s links to %s, and there is no such heading", p.name, link.Destination))
		default:
			link.Destination = []byte(strings.Repeat("../", strings.Count(p.URL, "/")) + pages[i].URL)
			if id != "" {
				link.Destination = append(link.Destination, "#"+id...)
			}
		}
		return ast.WalkContinue, nil
	})
	return bad
}

// pictures copies what the page shows to where its HTML looks for it, and returns what is not there.
func (p *page) pictures(checkout fs.FS, out string) (bad []error) {
	_ = ast.Walk(p.tree, func(n ast.Node, entering bool) (ast.WalkStatus, error) { // which returns no error
		image, ok := n.(*ast.Image)
		if !ok || !entering || strings.Contains(string(image.Destination), "://") {
			return ast.WalkContinue, nil
		}
		name := path.Join(path.Dir(p.name), string(image.Destination))
		data, err := fs.ReadFile(checkout, name)
		if err == nil {
			err = write(filepath.Join(out, filepath.FromSlash(name)), data)
		}
		if err != nil {
			bad = append(bad, fmt.Errorf("%s shows %s: %w", p.name, image.Destination, err))
		}
		return ast.WalkContinue, nil
	})
	return bad
}

// entries returns what the search knows of the page.
func (p *page) entries() (all []entry) {
	at := map[ast.Node]entry{}
	p.each(func(h *ast.Heading, title, id string) {
		at[h] = entry{Page: p.Title, Title: title, URL: p.URL + "#" + id}
	})
	for n := p.tree.FirstChild(); n != nil; n = n.NextSibling() {
		if e, heading := at[n]; heading {
			all = append(all, e)
		} else if len(all) > 0 {
			all[len(all)-1].Text += plain(n, p.text) + " "
		}
	}
	return all
}

// write writes a file and makes its directory.
func write(name string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	return os.WriteFile(name, data, 0o644)
}
