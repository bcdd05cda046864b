package top

import (
	"fmt"
	"html"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestPicturesAreMade makes the picture of the docs anew, in the directory that LOKT_PICTURES names: see make pictures.
func TestPicturesAreMade(t *testing.T) {
	dir := os.Getenv("LOKT_PICTURES")
	if dir == "" {
		dir = t.TempDir()
	}
	s := newTerminal(t)
	url := s.daemon()
	as := func(who string, args ...string) {
		c := exec.Command("env", append([]string{"LOKT_OWNER=" + who, "LOKT_SERVER=" + url, "lokt"}, args...)...)
		c.Dir, c.Env = s.dir, s.env
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = c.Process.Signal(syscall.SIGTERM)
			_ = c.Wait()
		})
		for args[0] == "guard" && !strings.Contains(s.run("LOKT_SERVER="+url, "sh", "-c", "lokt status "+args[1]+" --json || true"), `"`+who+`"`) {
			time.Sleep(20 * time.Millisecond)
		}
	}
	for _, who := range []string{"ana", "agent-3", "ci-8"} {
		as(who, "guard", "build", "--ttl", "30s", "--wait", "--", "sleep", "100")
	}
	as("trainer", "guard", "gpu", "--slots", "3", "--ttl", "30s", "--", "sleep", "100")
	as("notebook", "guard", "gpu", "--slots", "3", "--ttl", "30s", "--", "sleep", "100")
	s.run("LOKT_SERVER="+url, "lokt", "freeze", "deploy", "--ttl", "2h", "--reason", "release 1.4 is being tested")
	s.tmux("resize-window", "-x", "100", "-y", "12")
	s.enter("lokt top --server " + url)
	s.shows("> deploy", "waited for", "gpu", "2/3")
	s.tmux("send-keys", "Down")
	s.shows("> build")
	text := s.tmux("capture-pane", "-p", "-e")
	text = regexp.MustCompile(`127\.0\.0\.1:\d+`).ReplaceAllString(text, "127.0.0.1:7117")
	picture := drawn(strings.Split(strings.TrimSuffix(text, "\n"), "\n"), 100)
	if strings.Count(picture, "<text") < 5 || strings.Contains(picture, "\x1b") {
		t.Error(picture)
	}
	if err := os.WriteFile(filepath.Join(dir, "top.svg"), []byte(picture), 0o600); err != nil {
		t.Fatal(err)
	}
}

// drawn is a screen of text with colours as SVG.
func drawn(lines []string, columns int) string {
	const width, height = 8.4, 19
	var out strings.Builder
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" width="%.0f" height="%d" font-family="ui-monospace,Menlo,Consolas,monospace" font-size="14">`,
		float64(columns)*width+20, len(lines)*height+20)
	out.WriteString("\n" + `<rect width="100%" height="100%" rx="6" fill="#16181d"/>` + "\n")
	parts := regexp.MustCompile(`\x1b\[([0-9;]*)m|\x1b[()]B|[^\x1b]+`)
	bold, reversed, ink := false, false, "#d8dee9"
	for i, line := range lines {
		column := 0
		for _, part := range parts.FindAllStringSubmatch(line, -1) {
			if strings.HasPrefix(part[0], "\x1b") {
				for code := range strings.SplitSeq(part[1], ";") {
					switch code {
					case "", "0":
						bold, reversed, ink = false, false, "#d8dee9"
					case "39":
						ink = "#d8dee9"
					case "1":
						bold = true
					case "7":
						reversed = true
					case "31", "91":
						ink = "#ff7b72"
					case "33", "93":
						ink = "#e3b341"
					case "36", "96":
						ink = "#76e3ea"
					}
				}
				continue
			}
			n := len([]rune(part[0]))
			x, y, fill, weight := 10+float64(column)*width, i*height+10, ink, "400"
			if reversed {
				fmt.Fprintf(&out, `<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="%s"/>`+"\n", x, y, float64(n)*width, height, ink)
				fill = "#16181d"
			}
			if bold {
				weight = "700"
			}
			if strings.TrimSpace(part[0]) != "" {
				fmt.Fprintf(&out, `<text x="%.1f" y="%d" textLength="%.1f" fill="%s" font-weight="%s" xml:space="preserve">%s</text>`+"\n",
					x, y+14, float64(n)*width, fill, weight, html.EscapeString(part[0]))
			}
			column += n
		}
	}
	return out.String() + "</svg>\n"
}
