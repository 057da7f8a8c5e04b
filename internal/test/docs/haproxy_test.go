package docs

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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
