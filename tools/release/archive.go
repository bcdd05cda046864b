package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// An entry is a file or directory of an archive, of nobody in particular unless owner is set.
type entry struct {
	name  string // ends with a slash for a directory
	mode  fs.FileMode
	owner int
	data  []byte
}

// entries returns the files below a directory, in the order of their names, under a prefix.
func entries(dir, prefix string) ([]entry, error) {
	var all []entry
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		e := entry{name: prefix + filepath.ToSlash(rel), mode: 0o644, data: data}
		if strings.HasPrefix(rel, "lokt") {
			e.mode = 0o755
		}
		all = append(all, e)
		return nil
	})
	return all, err
}

// archive packs a directory for people to unpack.
func (r *release) archive(name, dir string, zipped bool) error {
	all, err := entries(dir, name+"/")
	if err != nil {
		return err
	}
	var out bytes.Buffer
	if zipped {
		w := zip.NewWriter(&out)
		for _, e := range all {
			h := &zip.FileHeader{Name: e.name, Method: zip.Deflate, Modified: r.at}
			h.SetMode(e.mode)
			f, err := w.CreateHeader(h)
			if err != nil {
				return err
			}
			if _, err := f.Write(e.data); err != nil {
				return err
			}
		}
		if err := w.Close(); err != nil {
			return err
		}
		return r.publish(name+".zip", out.Bytes())
	}
	w := gzip.NewWriter(&out)
	if err := pack(w, all, r.at); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return r.publish(name+".tar.gz", out.Bytes())
}

// pack writes a tar archive.
func pack(to io.Writer, all []entry, at time.Time) error {
	w := tar.NewWriter(to)
	for _, e := range all {
		h := &tar.Header{
			Name: e.name, Mode: int64(e.mode), Uid: e.owner, Gid: e.owner, Size: int64(len(e.data)), ModTime: at, Format: tar.FormatPAX,
		}
		if e.name[len(e.name)-1] == '/' {
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		if _, err := w.Write(e.data); err != nil {
			return err
		}
	}
	return w.Close()
}

// publish writes a file of the release and notes its checksum.
func (r *release) publish(name string, data []byte) error {
	r.sums[name] = fmt.Sprintf("%x", sha256.Sum256(data))
	return write(filepath.Join(r.out, name), data)
}
