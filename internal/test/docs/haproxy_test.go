package docs

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestHAProxyTakesThePage holds that HAProxy takes the configuration of docs/how-to/haproxy.md, where it is installed.
// The answers to its health checks are held by the tests of the HTTP port.
func TestHAProxyTakesThePage(t *testing.T) {
	m := regexp.MustCompile("(?s)```\n(defaults\n.*?)```").FindStringSubmatch(pages(t)["docs/how-to/haproxy.md"])
	if m == nil {
		t.Fatal("docs/how-to/haproxy.md has no configuration")
	}
	haproxy, err := exec.LookPath("haproxy")
	if err != nil {
		if haproxy, err = exec.LookPath("/usr/sbin/haproxy"); err != nil {
			t.Skip("NOT RUN: haproxy is not installed")
		}
	}
	file := filepath.Join(t.TempDir(), "haproxy.cfg")
	names := regexp.MustCompile(`\bdb(\d):`).ReplaceAllString(m[1], "127.0.0.$1:")
	if err := os.WriteFile(file, []byte(names), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), haproxy, "-c", "-f", file).CombinedOutput(); err != nil || strings.Contains(string(out), "WARNING") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestKeepalivedTakesThePage holds that keepalived takes the configuration of docs/how-to/haproxy.md, where it is
// installed.
func TestKeepalivedTakesThePage(t *testing.T) {
	m := regexp.MustCompile("(?s)```\n(vrrp_script .*?)```").FindStringSubmatch(pages(t)["docs/how-to/haproxy.md"])
	if m == nil {
		t.Fatal("docs/how-to/haproxy.md has no configuration of keepalived")
	}
	keepalived, err := exec.LookPath("/usr/sbin/keepalived")
	if err != nil {
		t.Skip("NOT RUN: keepalived is not installed")
	}
	devices, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	devices = slices.DeleteFunc(devices, func(d net.Interface) bool { return d.Flags&(net.FlagLoopback|net.FlagUp) != net.FlagUp })
	if len(devices) == 0 {
		t.Skip("NOT RUN: this machine has no network device but its own, and keepalived takes no other")
	}
	file := filepath.Join(t.TempDir(), "keepalived.conf")
	text := "global_defs {\n    script_user nobody\n    enable_script_security\n}\n" + strings.ReplaceAll(m[1], "interface eth0", "interface "+devices[0].Name)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	// It names the lines that it does not take, and may say more of a machine that lacks the program of the check. Its
	// exit code tells nothing: version 2.2 ends a test of a configuration by a signal to itself, whatever it found.
	out, err := exec.CommandContext(t.Context(), keepalived, "--config-test", "-f", file).CombinedOutput()
	if regexp.MustCompile(`keepalived\.conf: Line \d+`).Match(out) {
		t.Errorf("%v\n%s", err, out)
	}
}
