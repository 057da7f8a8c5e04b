package membership

import (
	"bytes"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/endpoint"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
)

func group() ag.Group {
	return ag.Group{ID: "g", SystemID: "7", Replicas: []ag.Replica{
		{ID: "n1", KeyPin: "p1", Endpoint: "a:1", Voter: true, EtcdID: 1, AvailabilityMode: ag.SynchronousCommit},
		{ID: "n2", KeyPin: "p2", Endpoint: "b:1", Voter: true, EtcdID: 1, AvailabilityMode: ag.SynchronousCommit},
		{ID: "n3", KeyPin: "p3", Endpoint: "c:1", AvailabilityMode: ag.AsynchronousCommit},
		{ID: "w1", KeyPin: "p4", Endpoint: "d:1", Voter: true, EtcdID: 1, AvailabilityMode: ag.ConfigurationOnly},
	}}
}

func members() *Members {
	m := New("n1", config.Layout{}, slog.New(slog.DiscardHandler))
	m.Set(group())
	return m
}

// TestNamesOfAWitness holds that no certificate of a witness names what clients believe to be the group.
func TestNamesOfAWitness(t *testing.T) {
	t.Parallel()
	m, g := members(), group()
	if got := New("n1", config.Layout{}, slog.New(slog.DiscardHandler)).Witnesses([]string{"d"}); got != nil {
		t.Errorf("without a group: %v", got)
	}
	g.Replicas[1].Listener, g.Replicas[1].ReadOnly, g.Replicas[1].HTTP = "b2.example:5432", "[2001:db8::7]:5433", "b3:8008"
	g.Options.Listeners = []ag.Listener{{Name: "sales", Addresses: []string{"10.0.0.9/24"}}}
	m.Set(g)
	asked := []string{"d", "a", "B2.Example", "2001:db8:0::7", "b3", "Sales", "10.0.0.9", "10.0.0.8", "::ffff:10.0.0.9"}
	if got := strings.Join(m.Witnesses(asked), " "); got != "d 10.0.0.8" {
		t.Error(got)
	}
}

// TestAuthorize holds which peer may open what; everything that the configuration does not name is refused.
func TestAuthorize(t *testing.T) {
	t.Parallel()
	data := []endpoint.Class{endpoint.ClassWAL, endpoint.ClassSeed, endpoint.ClassSQL, endpoint.ClassHeart}
	votes := []endpoint.Class{endpoint.ClassControl, endpoint.ClassQuorum}
	for _, tt := range []struct {
		id          ag.ReplicaID
		kind, pin   string
		data, votes bool
	}{
		{"n2", certs.KindReplica, "p2", true, true},
		{"n2", certs.KindReplica, "p3", false, false}, // another member's key
		{"n9", certs.KindReplica, "p2", false, false}, // no member, or no longer one
		{"w1", certs.KindWitness, "p4", false, true},
		{"n2", certs.KindWitness, "p2", false, true}, // a witness that the configuration calls a replica
		{"w1", certs.KindReplica, "p4", false, true}, // a replica that the configuration calls a witness
		{"", "", "", false, false},
	} {
		for want, classes := range map[bool][]endpoint.Class{tt.data: data, tt.votes: votes} {
			if tt.data == tt.votes {
				classes = append(append([]endpoint.Class{}, data...), votes...)
			}
			for _, class := range classes {
				if err := members().Authorize(certs.Identity{ID: tt.id, Kind: tt.kind}, tt.pin, class); (err == nil) != want {
					t.Errorf("%s %s with %s opens %s: %v", tt.kind, tt.id, tt.pin, class, err)
				}
			}
		}
	}
	if err := New("n1", config.Layout{}, nil).Authorize(certs.Identity{ID: "n2"}, "p2", endpoint.ClassControl); err == nil {
		t.Error("a peer is let in before the group is known")
	}
}

func TestTrust(t *testing.T) {
	t.Parallel()
	for id, pins := range map[ag.ReplicaID]map[string]bool{"n2": {"p2": true, "p1": false, "": false}, "n9": {"p2": false}} {
		for pin, want := range pins {
			if err := members().Trust(certs.Identity{ID: id}, pin); (err == nil) != want {
				t.Errorf("%s with %q: %v", id, pin, err)
			}
		}
	}
}

func TestLookups(t *testing.T) {
	t.Parallel()
	m := members()
	if r, ok := m.Replica("n3"); !ok || r.Endpoint != "c:1" {
		t.Errorf("n3: %+v, %v", r, ok)
	}
	if at, ok := m.Address("n9"); ok || at != "" {
		t.Errorf("n9 is at %q, %v", at, ok)
	}
	var voters []string
	for _, r := range m.Voters() {
		voters = append(voters, string(r.ID))
	}
	if got := strings.Join(voters, " "); got != "n1 n2 w1" {
		t.Errorf("voters: %s", got)
	}
	empty := New("n1", config.Layout{}, nil)
	if _, ok := empty.Replica("n1"); ok || empty.SystemID() != "" || empty.Voters() != nil || empty.Group() != nil {
		t.Error("an unknown group has members")
	}
}

// TestUpdateIsKept walks a configuration from one run of a node to the next, and through a disk that cannot be written.
func TestUpdateIsKept(t *testing.T) {
	t.Parallel()
	l := config.Layout{Dir: t.TempDir()}
	if err := New("n1", l, nil).Load(); err == nil || !strings.Contains(err.Error(), "coterie init or coterie join") {
		t.Errorf("a directory without a group: %v", err)
	}
	if err := os.MkdirAll(l.State(), 0o700); err != nil {
		t.Fatal(err)
	}
	New("n1", l, slog.New(slog.DiscardHandler)).Update(group())
	next := New("n1", l, nil)
	if err := next.Load(); err != nil {
		t.Fatal(err)
	}
	if r, ok := next.Replica("n2"); !ok || r.KeyPin != "p2" {
		t.Errorf("after a restart n2 is %+v", r)
	}
	var log bytes.Buffer
	lost := New("n1", config.Layout{Dir: "/nonexistent"}, slog.New(slog.NewTextHandler(&log, nil)))
	lost.Update(group())
	if _, ok := lost.Replica("n2"); !ok || !strings.Contains(log.String(), "not saved") {
		t.Errorf("a configuration that could not be saved: known %v, log %s", ok, log.String())
	}
	if err := os.WriteFile(l.GroupFile(), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := next.Load(); err == nil || !strings.Contains(err.Error(), "group.json") {
		t.Errorf("a torn file: %v", err)
	}
}

// TestUpdatesAtOnce checks that configurations which come at the same moment, as by an admission and by the watch of
// the store, are each saved whole, and that the file and the memory agree in the end.
func TestUpdatesAtOnce(t *testing.T) {
	t.Parallel()
	l := config.Layout{Dir: t.TempDir()}
	if err := os.Mkdir(l.State(), 0o700); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	m := New("n1", l, slog.New(slog.NewTextHandler(&log, nil)))
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			g := group()
			g.Name = strings.Repeat("x", 1+i*1000) // of different lengths
			for range 20 {
				m.Update(g)
			}
		})
	}
	all.Wait()
	if log.Len() > 0 {
		t.Error(log.String())
	}
	if saved, err := ReadGroup(l); err != nil || saved.Name != m.Group().Name {
		t.Errorf("saved %d bytes of a name, has %d: %v", len(saved.Name), len(m.Group().Name), err)
	}
}

// TestUpdateKeepsTheLater holds that of two configurations the later one stays, in memory and on the disk, in whatever
// order they come: an admission hands over what it has read, and the watch of the store may have been quicker. Before
// every configuration is signed, the numbers of some are those of others.
func TestUpdateKeepsTheLater(t *testing.T) {
	t.Parallel()
	l := config.Layout{Dir: t.TempDir()}
	if err := os.Mkdir(l.State(), 0o700); err != nil {
		t.Fatal(err)
	}
	m := New("n1", l, slog.New(slog.DiscardHandler))
	of := func(serial uint64, signed bool, members ...ag.ReplicaID) ag.Group {
		g := ag.Group{ID: "g", Serial: serial, SignedOnly: signed}
		for _, id := range members {
			g.Replicas = append(g.Replicas, ag.Replica{ID: id, KeyPin: "pin"})
		}
		return g
	}
	for _, tt := range []struct {
		next ag.Group
		n2   bool // is a member then
	}{
		{of(9, false, "n1", "n2"), true},
		{of(0, false, "n1"), false}, // by an earlier program
		{of(1, true, "n1", "n2"), true},
		{of(3, true, "n1"), false},       // n2 was removed
		{of(2, true, "n1", "n2"), false}, // read before that
		{of(3, true, "n1"), false},
		{of(4, true, "n1", "n2"), true},
	} {
		m.Update(tt.next)
		err := m.Authorize(certs.Identity{ID: "n2", Kind: certs.KindReplica}, "pin", endpoint.ClassControl)
		saved, unread := ReadGroup(l)
		_, there := saved.Replica("n2")
		if (err == nil) != tt.n2 || unread != nil || there != tt.n2 {
			t.Errorf("after %d of %v: n2 is let in: %v; saved: %v, %v", tt.next.Serial, tt.next.Replicas, err, there, unread)
		}
	}
}
