package clientport

import (
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/admin/catalog"
)

// TestUnserved holds that an address or a port of the listener which should be served here, and is not, is told; an
// address in another node's subnet is not while the listener has one here.
func TestUnserved(t *testing.T) {
	t.Parallel()
	const elsewhere = "no device of this node is in 10.9.0.0/16: its clients reach the group by another address"
	port, other := catalog.Place{Address: "*:1433", State: "ONLINE"}, catalog.Place{Address: "10.9.0.1/16", State: "OFFLINE", Problem: elsewhere}
	for want, places := range map[string][]catalog.Place{
		"": {port, other, {Address: "10.0.0.9/24", State: "ONLINE"}},
		"no address of the listener is up: " + elsewhere:               {port, other},
		"10.0.0.9/24 of the listener is not served here: 00:11 has it": {other, {Address: "10.0.0.9/24", State: "FAILED", Problem: "00:11 has it; remove it there"}},
		"*:1433 of the listener is not served here: taken":             {{Address: "*:1433", State: "FAILED", Problem: "taken"}, {Address: "10.0.0.9/24", State: "OFFLINE"}},
	} {
		if got := strings.Join(unserved(places), "|"); got != want {
			t.Errorf("%+v: %q, want %q", places, got, want)
		}
	}
}
