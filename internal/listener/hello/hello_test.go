package hello

import (
	"testing"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/startup"
)

// packet returns the startup packet of a client with these parameters beside its own, without its length.
func packet(own ...pgwire.Parameter) []byte {
	return (&startup.Message{User: "alice", Database: "orders"}).Packet(own...)[4:]
}

// A session is read as it was written.
func TestReadsWhatIsWritten(t *testing.T) {
	for _, h := range []Hello{
		{ClientAddr: "192.0.2.1:5", TLS: "TLSv1.3", Intent: ag.ReadWrite, Reads: startup.ReadsDurable, Moves: true, Outlives: true},
		{ClientAddr: "local", Intent: ag.ReadOnly, Reads: startup.ReadsLease},
		{Intent: ag.ReadOnly, Reads: startup.ReadsLease, Moves: true},
	} {
		got, bad := Read(packet(h.Parameters("b")...))
		if h.User, h.Database = "alice", "orders"; bad != nil || got != h || got.Check() != nil {
			t.Errorf("%+v, %v; want %+v", got, bad, h)
		}
	}
	if got, bad := Read(packet(Hello{Intent: ag.ReadOnly}.Parameters("b")...)); bad != nil || got.Reads != startup.ReadsLease {
		t.Errorf("reads %q, %v", got.Reads, bad)
	}
}

// A version of the exchange that this node does not speak counts as none.
func TestAnotherVersion(t *testing.T) {
	h, bad := Read(packet(pgwire.Parameter{Name: Moves, Value: "999"}, pgwire.Parameter{Name: outlives, Value: "999"}))
	if bad != nil || h.Moves || h.Outlives {
		t.Errorf("%+v, %v", h, bad)
	}
}

// No client's packet passes for one of a listener.
func TestRefusals(t *testing.T) {
	for name, b := range map[string][]byte{
		"another protocol":     {0, 2, 0, 0, 0},
		"a name twice":         packet(pgwire.Parameter{Name: "coterie.intent", Value: "read_write"}, pgwire.Parameter{Name: "COTERIE.INTENT", Value: "read_only"}),
		"options":              packet(pgwire.Parameter{Name: "options", Value: "-c x=1"}),
		"physical replication": packet(pgwire.Parameter{Name: "replication", Value: "yes"}),
		"half a parameter":     append(packet()[:8:8], 'x'),
	} {
		if h, bad := Read(b); bad == nil || bad.Code != pgwire.StateProtocolViolation {
			t.Errorf("%s: %+v, %v", name, h, bad)
		}
	}
	for name, h := range map[string]Hello{"no user": {Intent: ag.ReadWrite}, "no intent": {User: "alice"}, "an unknown intent": {User: "alice", Intent: "either"}} {
		if h.Check() == nil {
			t.Errorf("%s is admitted", name)
		}
	}
}
