package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// TestUnits holds that the units of the packages are the one of the source, for the program where packages put it.
func TestUnits(t *testing.T) {
	source, err := os.ReadFile("../../packaging/coterie.service")
	if err != nil {
		t.Fatal(err)
	}
	all := units(string(source))
	one, many := all["coterie.service"], all["coterie@.service"]
	for text, has := range map[string][]string{
		one:  {"ExecStart=/usr/bin/coterie agent --node /var/lib/coterie\n", "ConditionPathExists=/var/lib/coterie/coterie.yaml"},
		many: {"ExecStart=/usr/bin/coterie agent --node /var/lib/coterie-%i\n", "ConditionPathExists=/var/lib/coterie-%i/coterie.yaml", "coterie node %i"},
	} {
		for _, line := range has {
			if !strings.Contains(strings.ToLower(text), strings.ToLower(line)) {
				t.Errorf("no %q in\n%s", line, text)
			}
		}
		if strings.Contains(text, "/usr/local") || strings.Count(text, "\n") != strings.Count(string(source), "\n") {
			t.Errorf("not the unit of the source:\n%s", text)
		}
	}
}

// TestConfigurationIsFilled holds that nothing in braces is left, and that every file of it exists or is made.
func TestConfigurationIsFilled(t *testing.T) {
	template, err := os.ReadFile("../../packaging/nfpm.yaml")
	if err != nil {
		t.Fatal(err)
	}
	r := &release{root: "/root-of-the-source", version: "1.2.3", date: time.Unix(1e9, 0).UTC()}
	text := r.fill(string(template), "/stage", "arm64")
	for _, has := range []string{"arch: arm64\n", "version: 1.2.3\n", "mtime: 2001-09-09T01:46:40Z\n", "/stage/coterie,"} {
		if !strings.Contains(text, has) {
			t.Errorf("no %q in\n%s", has, text)
		}
	}
	for _, left := range []string{"{ARCH}", "{VERSION}", "{DATE}", "{STAGE}", "{ROOT}"} {
		if strings.Contains(text, left) {
			t.Errorf("%s is left in\n%s", left, text)
		}
	}
	for from := range documents {
		if _, err := os.Stat("../../" + from); err != nil {
			t.Error(err)
		}
	}
	for _, script := range []string{"postinstall", "preremove", "postremove"} {
		path := "../../packaging/scripts/" + script
		if !strings.Contains(text, "/root-of-the-source/packaging/scripts/"+script) {
			t.Errorf("%s is not in the packages", script)
		}
		if out, err := exec.CommandContext(t.Context(), "sh", "-n", path).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", path, err, out)
		}
	}
}

// TestRelease makes a release of this source for this machine twice and compares the bytes, looks into the deb, unpacks
// it and runs the program in it.
func TestRelease(t *testing.T) {
	if os.Getenv("COTERIE_LONG") == "" {
		t.Skip("builds the program and nfpm; make test-long runs it (COTERIE_LONG=1)")
	}
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	_, nfpm, _ := strings.Cut(string(makefile), "NFPM := ")
	nfpm, _, _ = strings.Cut(nfpm, "\n")
	t.Chdir("../..")
	t.Setenv("SOURCE_DATE_EPOCH", "1764000000")
	r := &release{root: "."}
	if _, err := (&release{root: mustAbs(t, ".")}).tool(t.Context(), nfpm); err != nil {
		t.Skipf("NOT RUN: nfpm %s could not be built: %v", nfpm, err)
	}
	dirs := []string{filepath.Join(t.TempDir(), "first"), filepath.Join(t.TempDir(), "second")}
	for _, d := range dirs {
		if err := run(t.Context(), []string{"-version", "0.1.0-dev", "-nfpm", nfpm, "-arch", runtime.GOARCH, "-dist", d}, io.Discard); err != nil {
			t.Fatal(err)
		}
	}
	files, err := os.ReadDir(dirs[0])
	if err != nil || len(files) != 5 {
		t.Fatalf("%d files: %v", len(files), err)
	}
	for _, e := range files {
		a, errA := os.ReadFile(filepath.Join(dirs[0], e.Name()))
		b, errB := os.ReadFile(filepath.Join(dirs[1], e.Name()))
		if errA != nil || errB != nil || !bytes.Equal(a, b) {
			t.Errorf("%s differs between two runs: %v %v", e.Name(), errA, errB)
		}
	}
	must := func(name string, args ...string) string {
		t.Helper()
		out, err := r.output(t.Context(), nil, name, args...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	must("sh", "-c", "cd "+dirs[0]+" && sha256sum -c --quiet SHA256SUMS")
	base := filepath.Join(dirs[0], "coterie_0.1.0-dev_linux_"+runtime.GOARCH)
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skip("NOT RUN: the look into the deb needs dpkg-deb")
	}
	if info := must("dpkg-deb", "--field", base+".deb", "Package", "Version", "Architecture"); info != "Package: coterie\nVersion: 0.1.0~dev\nArchitecture: "+runtime.GOARCH {
		t.Error(info)
	}
	content := must("dpkg-deb", "--contents", base+".deb")
	for _, has := range []string{
		"-rwxr-xr-x root/root", "./usr/bin/coterie", "./usr/lib/systemd/system/coterie.service", "./usr/lib/systemd/system/coterie@.service", "./usr/share/man/man1/coterie.1.gz",
		"./usr/share/man/man1/coterie-support-bundle.1.gz", "./usr/share/bash-completion/completions/coterie", "./usr/share/zsh/vendor-completions/_coterie",
		"./usr/share/fish/vendor_completions.d/coterie.fish", "./usr/share/doc/coterie/copyright",
		"./usr/lib/firewalld/services/coterie.xml", "./usr/lib/firewalld/services/coterie-monitoring.xml", "./etc/ufw/applications.d/coterie", "./etc/apparmor.d/coterie",
	} {
		if !strings.Contains(content, has) {
			t.Errorf("no %s in\n%s", has, content)
		}
	}
	into := t.TempDir()
	must("dpkg-deb", "-x", base+".deb", into)
	if said := must(filepath.Join(into, "usr/bin/coterie"), "--version"); !strings.HasPrefix(said, "coterie version 0.1.0-dev (commit ") || !strings.HasSuffix(said, ", 2025-11-24T16:00:00Z)") {
		t.Error(said)
	}
	must("dpkg-deb", "-e", base+".deb", filepath.Join(into, "control"))
	for _, script := range []string{"postinst", "prerm", "postrm"} {
		if _, err := os.Stat(filepath.Join(into, "control", script)); err != nil {
			t.Error(err)
		}
	}
	unpacked := t.TempDir()
	must("tar", "-C", unpacked, "-xzf", base+".tar.gz")
	must(filepath.Join(unpacked, filepath.Base(base), "coterie"), "--version")
}

func mustAbs(t *testing.T, path string) string {
	t.Helper()
	abs, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return abs
}

// mostExposure is the exposure of the unit above which systemd-analyze refuses it, times ten. packaging/coterie.service
// says what remains, and why.
const mostExposure = "27"

// TestUnitsAreConfined holds what systemd-analyze judges of the units.
func TestUnitsAreConfined(t *testing.T) {
	t.Parallel()
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("SKIPPED: systemd-analyze is not installed")
	}
	source, err := os.ReadFile("../../packaging/coterie.service")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range units(string(source)) {
		path := filepath.Join(t.TempDir(), strings.Replace(name, "@", "@x", 1))
		if err := put(path, text); err != nil {
			t.Fatal(err)
		}
		out, err := exec.CommandContext(t.Context(), analyze, "security", "--offline=true", "--no-pager", "--threshold="+mostExposure, path).CombinedOutput()
		if strings.Contains(string(out), "unrecognized option") {
			t.Skip("SKIPPED: this systemd-analyze judges no unit that is not loaded (it is older than version 250)")
		}
		if err != nil || !strings.Contains(string(out), "Overall exposure level") {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}
