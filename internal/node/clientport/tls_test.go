package clientport

import (
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/hba"
)

// TestTLSOnly holds that tls_only refuses clients without TLS whatever the rules are, and no others.
func TestTLSOnly(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "hba.conf")
	const text = "local all all peer\nhost all all all trust\nhost replication all all trust\n"
	write(t, file, text)
	for name, n := range map[string]*fakeNode{"the default": primary(), "of a file": primary(), "of the group": primary()} {
		if name == "of the group" {
			n.group.HBA = text
		}
		p := n.port(t, func(c *config.Config) {
			if c.TLSOnly = true; name == "of a file" {
				c.HBA = file
			}
		})
		rules, err := p.rules()
		if err != nil {
			t.Fatal(err)
		}
		admits := func(l hba.Login) bool {
			l.User, l.Database = "bob", "x"
			r, ok := hba.Match(rules.rules, l)
			return ok && r.Method != hba.MethodReject
		}
		from := netip.MustParseAddr("10.0.0.1")
		if admits(hba.Login{Addr: from}) || admits(hba.Login{Addr: from, Replication: pgwire.ReplicationPhysical}) {
			t.Errorf("%s: a client without TLS is admitted", name)
		}
		if !admits(hba.Login{Addr: from, TLS: true}) || !admits(hba.Login{Local: true}) {
			t.Errorf("%s: a client with TLS, or of this machine, is refused", name)
		}
	}
}
