package hbacmd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// TestFileOf holds which files become rules, and that what is wrong with one is said with its line.
func TestFileOf(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for text, refused := range map[string]string{
		"host all all all md5\n":                             "",
		"# office\r\nhost\tall all 10.0.0.0/8 md5\r\n\r\n":   "",
		"host all all all ldap\nhost all all 10.0.0.0/8 x\n": "line 1: method ldap",
		"":                           "would let nobody in",
		"# only a comment\n":         "would let nobody in",
		strings.Repeat("#", 1<<20+1): "more than 1048576 bytes",
	} {
		file := filepath.Join(dir, "rules")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, in := range []string{file, "-"} {
			a, err := fileOf(strings.NewReader(text), in)
			if (err == nil) != (refused == "") || err != nil && (!strings.Contains(err.Error(), refused) || fail.KindOf(err) != fail.Usage) {
				t.Errorf("%.40q from %s: %v", text, in, err)
			}
			if err == nil && len(a.Lines) == 0 {
				t.Errorf("%.40q: no rules", text)
			}
		}
	}
	for _, file := range []string{filepath.Join(dir, "absent"), dir} {
		if _, err := fileOf(nil, file); fail.KindOf(err) != fail.Usage {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// TestQueriesAreTheConsoles holds that each query of the commands is one that the console's grammar takes.
func TestQueriesAreTheConsoles(t *testing.T) {
	for _, q := range []string{list, show, history} {
		if ddl.Owns(q) {
			t.Errorf("%s is taken for a statement", q)
		}
	}
}
