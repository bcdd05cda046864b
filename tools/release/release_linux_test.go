package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/CycloneDX/cyclonedx-go"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

// candidate is the version that most tests look at.
const candidate = "1.0.0-rc.1"

// built returns a directory with a release of a version for this machine.
func built(t *testing.T, version string) string {
	t.Helper()
	r := release{out: filepath.Join(t.TempDir(), "dist"), version: version, sums: map[string]string{}}
	if err := r.build([]string{"linux/" + runtime.GOARCH}); err != nil {
		t.Fatal(err)
	}
	return r.out
}

// files returns the paths in a directory of a release that match a pattern, at least one.
func files(t *testing.T, dist, pattern string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dist, pattern))
	if err != nil || len(found) == 0 {
		t.Fatalf("%s: %v, %v", pattern, found, err)
	}
	return found
}

// programs returns the names of the programs of this checkout.
func programs(t *testing.T) (names []string) {
	t.Helper()
	dirs, err := os.ReadDir("cmd")
	if err != nil || len(dirs) < 2 {
		t.Fatalf("%v, %v", dirs, err)
	}
	for _, d := range dirs {
		names = append(names, d.Name())
	}
	return names
}

// needRoot skips what needs another root directory, which only the superuser has.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("not root")
	}
}

// One release is built for all tests but those that need another.
func TestRelease(t *testing.T) {
	t.Chdir(filepath.Join("..", ".."))
	dist := built(t, candidate)
	t.Run("the same is built twice", func(t *testing.T) { builtTwice(t, dist) })
	t.Run("archive holds what people need", func(t *testing.T) { archived(t, dist) })
	t.Run("lists of materials are CycloneDX", func(t *testing.T) { listed(t, dist) })
	t.Run("Debian package leaves nothing", func(t *testing.T) { debian(t, dist) })
	t.Run("Red Hat and Alpine packages hold the programs", func(t *testing.T) { otherPackages(t, dist) })
	t.Run("image runs without root and without anything else", func(t *testing.T) { container(t, dist) })
}

// The second time it is built from another directory, whose files are of another time and another umask.
func builtTwice(t *testing.T, dist string) {
	names, err := exec.Command("git", "ls-files", "-z").Output()
	if err != nil {
		t.Fatal(err)
	}
	git, err := exec.Command("git", "rev-parse", "--absolute-git-dir").Output()
	if err != nil {
		t.Fatal(err)
	}
	other := t.TempDir()
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names), "\x00"), "\x00") {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(other, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("GIT_DIR", strings.TrimSpace(string(git)))
	t.Chdir(other)
	var sums [2]string
	for i, dir := range []string{dist, built(t, candidate)} {
		list, err := os.ReadFile(filepath.Join(dir, "SHA256SUMS"))
		if err != nil {
			t.Fatal(err)
		}
		sums[i] = string(list)
	}
	if sums[0] != sums[1] || strings.Count(sums[0], "\n") != 5+len(programs(t)) { // archive, three packages, image, lists of materials
		t.Errorf("first\n%sthen\n%s", sums[0], sums[1])
	}
}

func archived(t *testing.T, dist string) {
	out, err := exec.Command("tar", "-tzf", files(t, dist, "*.tar.gz")[0]).Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range append(programs(t),
		"README.md", "LICENSE", "man/man1/lokt-guard.1", "man/man1/loktd.1", "completions/bash/lokt", "completions/zsh/_loktd",
		"completions/fish/lokt.fish", "completions/powershell/lokt.ps1",
	) {
		if !strings.Contains(string(out), "/"+want+"\n") {
			t.Errorf("no %s in\n%s", want, out)
		}
	}
}

// What CycloneDX's schema wants and its library does not see to: serial numbers, and references that lead somewhere.
func listed(t *testing.T, dist string) {
	for _, file := range files(t, dist, "*.cdx.json") {
		text, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		defer text.Close()
		var bom cyclonedx.BOM
		if err := cyclonedx.NewBOMDecoder(text, cyclonedx.BOMFileFormatJSON).Decode(&bom); err != nil {
			t.Fatal(err)
		}
		if !regexp.MustCompile(`^urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`).MatchString(bom.SerialNumber) {
			t.Errorf("%s: serial number %s", file, bom.SerialNumber)
		}
		refs := map[string]bool{}
		for _, c := range *bom.Components {
			refs[c.BOMRef] = true
		}
		if len(refs) < 5 || len(refs) != len(*bom.Components) {
			t.Errorf("%s: %d references to %d components", file, len(refs), len(*bom.Components))
		}
		for _, ref := range *(*bom.Dependencies)[0].Dependencies {
			if !refs[ref] {
				t.Errorf("%s: nothing is %s", file, ref)
			}
		}
	}
}

// The package is installed, used, upgraded, removed and purged in a copy of this machine's root that is thrown away.
func debian(t *testing.T, dist string) {
	needRoot(t)
	readme := filepath.Join(t.TempDir(), "readme.test")
	if out, err := exec.Command("go", "test", "-vet=off", "-c", "-o", readme, "./cmd/lokt").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	c := exec.Command("unshare", "--mount", "--pid", "--fork", "--kill-child", "bash", filepath.Join("tools", "release", "testdata", "chroot.sh"),
		t.TempDir(), dist, built(t, "1.0.0"), readme)
	if out, err := c.CombinedOutput(); err != nil || !strings.HasSuffix(string(out), "\nall is well\n") {
		t.Errorf("%v\n%s", err, out)
	}
}

func container(t *testing.T, dist string) {
	needRoot(t)
	dir, root := t.TempDir(), t.TempDir()
	unpack := func(from io.Reader, to string) {
		t.Helper()
		c := exec.Command("tar", "-x", "-p", "-C", to)
		c.Stdin = from
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("tar: %v\n%s", err, out)
		}
	}
	archive, err := os.Open(files(t, dist, "*_oci.tar")[0])
	if err != nil {
		t.Fatal(err)
	}
	defer archive.Close()
	unpack(archive, dir)
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	only := func(index v1.ImageIndex) v1.Hash {
		t.Helper()
		manifest, err := index.IndexManifest()
		if err != nil || len(manifest.Manifests) != 1 {
			t.Fatalf("manifest: %v, %v", manifest, err)
		}
		return manifest.Manifests[0].Digest
	}
	platforms, err := index.ImageIndex(only(index))
	if err != nil {
		t.Fatal(err)
	}
	image, err := platforms.Image(only(platforms))
	if err != nil {
		t.Fatal(err)
	}
	config, err := image.ConfigFile()
	if err != nil || config.Config.User != "65532:65532" {
		t.Fatalf("config: %+v, %v", config, err)
	}
	system := mutate.Extract(image)
	defer system.Close()
	unpack(system, root)
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	c := exec.Command(config.Config.Entrypoint[0], "check", "--listen", "127.0.0.1:0")
	c.Env, c.Dir = config.Config.Env, "/"
	c.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: daemonUser, Gid: daemonUser}}
	if out, err := c.CombinedOutput(); err != nil || !strings.Contains(string(out), "/var/lib/loktd/loktd.db") {
		t.Errorf("loktd check: %v\n%s", err, out)
	}
}

func otherPackages(t *testing.T, dist string) {
	needRoot(t)
	for kind, install := range map[string][]string{
		"rpm": {"rpm", "--install", "--nodeps", "--noscripts", "--root"},
		"apk": {"tar", "--ignore-zeros", "-xzf", files(t, dist, "*.apk")[0], "-C"}, // one tar archive after another
	} {
		root := t.TempDir()
		install = append(install, root)
		if kind == "rpm" {
			install = append(install, files(t, dist, "*.rpm")[0])
		}
		if out, err := exec.Command(install[0], install[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		out, err := exec.Command(filepath.Join(root, "usr", "bin", "lokt"), "version").CombinedOutput()
		if err != nil || !strings.HasPrefix(string(out), "lokt "+candidate+" (") {
			t.Errorf("%s: %v\n%s", kind, err, out)
		}
		for _, name := range programs(t) {
			if info, err := os.Stat(filepath.Join(root, "usr", "bin", name)); err != nil || info.Mode() != 0o755 {
				t.Errorf("%s: %s: %v, %v", kind, name, info, err)
			}
		}
	}
}
