package e2e

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lab"
)

var example = regexp.MustCompile(`(?s)(.*?);    -- on (\w+)\n`)

// TestLanguageExamples runs every example of docs/language.md on a lab, with its servers' names, one after the other,
// each on the node it names.
func TestLanguageExamples(t *testing.T) {
	long(t)
	b, err := os.ReadFile("../../../docs/language.md")
	if err != nil {
		t.Fatal(err)
	}
	names := strings.NewReplacer("SRV153", "N1", "SRV154", "N2", "SRV155", "N3", "srv153", "n1", "srv154", "n2", "srv155", "n3", "'WIT'", "'W'", "wit", "w")
	g := raise(t, lab.Options{NoGroup: true, Witness: true})
	ran := 0
	for _, block := range strings.Split(string(b), "```sql\n")[1:] {
		block, _, _ = strings.Cut(block, "```")
		for _, m := range example.FindAllStringSubmatch(block, -1) {
			text, on := names.Replace(m[1]), names.Replace(m[2])
			st, err := ddl.Parse(text)
			if err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			if f, ok := st.Action.(ddl.Failover); ok {
				to := on
				if f.To != "" {
					to = string(ddl.ReplicaID(f.To))
				}
				g.followed(t, to, f.Force)
			}
			r, err := g.answered(t, on, text)
			if err != nil {
				t.Fatalf("%s on %s: %v", text, on, err)
			}
			for _, n := range r.Notices {
				if n.Severity == "WARNING" && strings.Contains(n.Message, "still to come") {
					t.Errorf("%s on %s: %s", text, on, n.Message)
				}
			}
			ran++
		}
	}
	if ran < 30 {
		t.Errorf("%d examples ran", ran)
	}
	g.down(t)
}

// followed waits until the group has a primary, which is not to, and a secondary is synchronized: a statement WITH
// NOWAIT has taken effect.
func (g *group) followed(t *testing.T, to string, forced bool) {
	t.Helper()
	g.await(t, "a primary other than "+to+", and a secondary that is synchronized", func(s lab.Status) bool {
		n := 0
		for _, r := range s.Replicas {
			if r.Sync == ag.Synchronized {
				n++
			}
		}
		return s.Primary != nil && *s.Primary != to && (n > 1 || forced) // a forced one before has suspended all others
	})
}
