package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	_ "embed"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/template"

	"github.com/CycloneDX/cyclonedx-go"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/apk"
	_ "github.com/goreleaser/nfpm/v2/deb"
	_ "github.com/goreleaser/nfpm/v2/rpm"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// packages makes the packages of Debian, Red Hat and Alpine, as deploy/package/nfpm.yaml says.
func (r *release) packages(dir, arch string) error {
	for _, format := range []string{"deb", "rpm", "apk"} {
		config, err := nfpm.ParseFileWithEnvMapping(filepath.Join("deploy", "package", "nfpm.yaml"), func(name string) string {
			return map[string]string{"VERSION": r.version, "ARCH": arch, "STAGE": dir}[name]
		})
		if err != nil {
			return err
		}
		info, err := config.Get(format)
		if err != nil {
			return err
		}
		info.MTime, info.RPM.BuildHost = r.at, "localhost"
		for _, script := range []*string{&info.Scripts.PostInstall, &info.Scripts.PreRemove, &info.Scripts.PostRemove} {
			if *script, err = r.dated(*script, filepath.Join(filepath.Dir(dir), "scripts")); err != nil {
				return err
			}
		}
		info = nfpm.WithDefaults(info)
		if err := nfpm.PrepareForPackager(info, format); err != nil {
			return err
		}
		for _, c := range info.Contents { // times and modes are not those of this checkout
			c.FileInfo.MTime = r.at
			switch {
			case c.IsDir(), strings.HasPrefix(c.Destination, "/usr/bin/"):
				c.FileInfo.Mode = 0o755
			default:
				c.FileInfo.Mode = 0o644
			}
		}
		packager, err := nfpm.Get(format)
		if err != nil {
			return err
		}
		var out bytes.Buffer
		if err := packager.Package(info, &out); err != nil {
			return fmt.Errorf("%s: %w", format, err)
		}
		if err := r.publish(packager.ConventionalFileName(info), out.Bytes()); err != nil {
			return err
		}
	}
	return nil
}

// dated copies a file into a directory, with the time of the release.
func (r *release) dated(name, dir string) (string, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, filepath.Base(name))
	if err := write(path, text); err != nil {
		return "", err
	}
	return path, os.Chtimes(path, r.at, r.at)
}

// daemonUser runs loktd in the container: nobody, by a number that no system gives away.
const daemonUser = 65532

// image makes a container image of loktd for each architecture, in one OCI archive: the program, certificates, and a
// place for the store.
func (r *release) image(programs map[string]string, dir string) error {
	var roots bytes.Buffer
	for c := range bundle.Roots() {
		if err := pem.Encode(&roots, &pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate}); err != nil {
			return err
		}
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, arch := range slices.Sorted(maps.Keys(programs)) {
		program, err := os.ReadFile(filepath.Join(programs[arch], "loktd"))
		if err != nil {
			return err
		}
		layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
			var out bytes.Buffer
			err := pack(&out, []entry{
				{name: "etc/ssl/certs/ca-certificates.crt", mode: 0o644, data: roots.Bytes()},
				{name: "tmp/", mode: 0o1777},
				{name: "usr/bin/loktd", mode: 0o755, data: program},
				{name: "var/lib/loktd/", mode: 0o700, owner: daemonUser},
			}, r.at)
			return io.NopCloser(&out), err
		}, tarball.WithMediaType(types.OCILayer))
		if err != nil {
			return err
		}
		image, err := mutate.AppendLayers(mutate.MediaType(mutate.ConfigMediaType(empty.Image, types.OCIConfigJSON), types.OCIManifestSchema1), layer)
		if err != nil {
			return err
		}
		config, err := image.ConfigFile()
		if err != nil {
			return err
		}
		config = config.DeepCopy()
		config.OS, config.Architecture, config.Created = "linux", arch, v1.Time{Time: r.at}
		config.History = []v1.History{{Created: config.Created, CreatedBy: "make release"}}
		config.Config = v1.Config{
			User: fmt.Sprintf("%d:%d", daemonUser, daemonUser), Entrypoint: []string{"/usr/bin/loktd"}, StopSignal: "SIGTERM",
			Env:         []string{"STATE_DIRECTORY=/var/lib/loktd", "LOKTD_LISTEN=0.0.0.0:7117"},
			Healthcheck: &v1.HealthConfig{Test: []string{"CMD", "/usr/bin/loktd", "health"}, Interval: 10e9, Timeout: 6e9, StartPeriod: 600e9},
			Volumes:     map[string]struct{}{"/var/lib/loktd": {}}, ExposedPorts: map[string]struct{}{"7117/tcp": {}},
			Labels: map[string]string{"org.opencontainers.image.version": r.version, "org.opencontainers.image.revision": r.commit},
		}
		if image, err = mutate.ConfigFile(image, config); err != nil {
			return err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{
			Platform: &v1.Platform{OS: "linux", Architecture: arch},
		}})
	}
	named := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex), mutate.IndexAddendum{Add: index, Descriptor: v1.Descriptor{
		Annotations: map[string]string{"org.opencontainers.image.ref.name": "loktd:" + r.version},
	}})
	if _, err := layout.Write(dir, named); err != nil {
		return err
	}
	all, err := entries(dir, "")
	if err != nil {
		return err
	}
	var out bytes.Buffer
	if err := pack(&out, all, r.at); err != nil {
		return err
	}
	return r.publish(fmt.Sprintf("loktd_%s_oci.tar", r.version), out.Bytes())
}

// materials lists the modules that each program is made of, in CycloneDX's JSON.
func (r *release) materials(programs map[string]string) error {
	for _, name := range r.programs {
		info, err := buildinfo.ReadFile(filepath.Join(programs["amd64"], name))
		if err != nil {
			return err
		}
		purl := func(path, version string) string { return "pkg:golang/" + path + "@" + version }
		main := purl(info.Main.Path, "v"+r.version)
		id := sha256.Sum256([]byte(name + r.version + r.commit))
		id[6], id[8] = id[6]&0x0f|0x80, id[8]&0x3f|0x80 // version 8 of RFC 9562: of one's own making
		bom := cyclonedx.NewBOM()
		bom.SerialNumber = fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:16])
		bom.Metadata = &cyclonedx.Metadata{Timestamp: r.at.Format("2006-01-02T15:04:05Z"), Component: &cyclonedx.Component{
			BOMRef: main, Type: cyclonedx.ComponentTypeApplication, Name: name, Version: r.version, PackageURL: main,
		}}
		components, needs := []cyclonedx.Component{}, []string{}
		add := func(path, version string) {
			p := purl(path, version)
			components = append(components, cyclonedx.Component{
				BOMRef: p, Type: cyclonedx.ComponentTypeLibrary, Name: path, Version: version, PackageURL: p,
			})
			needs = append(needs, p)
		}
		add("std", strings.TrimPrefix(info.GoVersion, "go"))
		for _, m := range info.Deps {
			if m.Replace != nil {
				m = m.Replace
			}
			add(m.Path, m.Version)
		}
		bom.Components, bom.Dependencies = &components, &[]cyclonedx.Dependency{{Ref: main, Dependencies: &needs}}
		var out bytes.Buffer
		if err := cyclonedx.NewBOMEncoder(&out, cyclonedx.BOMFileFormatJSON).SetPretty(true).Encode(bom); err != nil {
			return err
		}
		if err := r.publish(fmt.Sprintf("%s_%s.cdx.json", name, r.version), out.Bytes()); err != nil {
			return err
		}
	}
	return nil
}

//go:embed lokt.rb.tmpl
var formula string

//go:embed lokt.json.tmpl
var scoop string

// manifests writes what Homebrew and Scoop install from.
func (r *release) manifests() error {
	for name, text := range map[string]string{"lokt.rb": formula, "lokt.json": scoop} {
		t, err := template.New(name).Funcs(template.FuncMap{
			"version":  func() string { return r.version },
			"programs": func() []string { return r.programs },
			"sum": func(file string) (string, error) {
				sum, ok := r.sums[file]
				if !ok {
					return "", fmt.Errorf("%s was not built", file)
				}
				return sum, nil
			},
		}).Parse(text)
		if err != nil {
			return err
		}
		var out bytes.Buffer
		if err := t.Execute(&out, nil); err != nil {
			return err
		}
		if err := r.publish(name, out.Bytes()); err != nil {
			return err
		}
	}
	return nil
}
