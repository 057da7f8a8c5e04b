package membership

import (
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/endpoint"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
)

// Members is the group's configuration as this node last saw it, also while the quorum does not answer. Any goroutine
// may use it.
type Members struct {
	self   ag.ReplicaID
	layout config.Layout
	log    *slog.Logger
	group  atomic.Pointer[ag.Group]
	saving sync.Mutex // held while a configuration is taken over and saved
}

// New returns the members of the group of the node self. Load or Update must follow before anything is looked up.
func New(self ag.ReplicaID, layout config.Layout, log *slog.Logger) *Members {
	return &Members{self: self, layout: layout, log: log}
}

// Load takes the configuration from the node directory.
func (m *Members) Load() error {
	g, err := ReadGroup(m.layout)
	if err == nil {
		m.group.Store(&g)
	}
	return err
}

// Set takes a configuration over without saving it.
func (m *Members) Set(g ag.Group) { m.group.Store(&g) }

// Update takes a new configuration over and saves it. A configuration that cannot be saved counts all the same: the log
// says why, and the next start knows the older one. One that was read before a later one, and comes after it, is
// dropped: nobody would bring the later one again, and a member that it removed would be let in.
func (m *Members) Update(g ag.Group) {
	m.saving.Lock() // an admission and the watch of the store may come at once
	defer m.saving.Unlock()
	if is := m.group.Load(); is != nil && is.SignedOnly && g.Serial < is.Serial { // before that the numbers mean nothing
		return
	}
	m.Set(g)
	if err := SaveGroup(m.layout, g); err != nil {
		m.log.Warn("the group's configuration was not saved", "err", err)
	}
}

// Group returns the configuration, which the caller must not change; nil before Load.
func (m *Members) Group() *ag.Group { return m.group.Load() }

// Replica returns a member by its name, and whether it exists.
func (m *Members) Replica(id ag.ReplicaID) (ag.Replica, bool) {
	if g := m.group.Load(); g != nil {
		return g.Replica(id)
	}
	return ag.Replica{}, false
}

// Options returns what the group says of a member; nothing of one that does not exist.
func (m *Members) Options(id ag.ReplicaID) ag.ReplicaOptions {
	r, _ := m.Replica(id)
	return r.Options
}

// SystemID returns the system identifier that every copy of the group carries; "" while the group is not known.
func (m *Members) SystemID() string {
	if g := m.group.Load(); g != nil {
		return g.SystemID
	}
	return ""
}

// Voters returns the members that vote in the embedded quorum.
func (m *Members) Voters() (voters []ag.Replica) {
	g := m.group.Load()
	if g == nil {
		return nil
	}
	for _, r := range g.Replicas {
		if g.Votes(r) {
			voters = append(voters, r)
		}
	}
	return voters
}

// Others returns the other members that hold data.
func (m *Members) Others() (others []ag.Replica) {
	g := m.group.Load()
	if g == nil {
		return nil
	}
	for _, r := range g.Replicas {
		if r.ID != m.self && r.HasData() {
			others = append(others, r)
		}
	}
	return others
}

// Address returns where a member is reached by others that this node relays, and whether it exists.
func (m *Members) Address(id ag.ReplicaID) (string, bool) {
	r, ok := m.Replica(id)
	return r.Endpoint, ok
}

// Witnesses returns those of the names and addresses that the certificate of a witness may have: none at which clients
// reach the group. Clients believe every certificate of the group's authority, for the names in it.
func (m *Members) Witnesses(hosts []string) []string {
	g := m.group.Load()
	if g == nil {
		return nil
	}
	var taken []string
	take := func(addresses ...string) {
		for _, a := range addresses {
			if host, _, err := net.SplitHostPort(a); err == nil {
				taken = append(taken, host)
			}
		}
	}
	for _, r := range g.Replicas {
		if r.HasData() {
			take(r.Endpoint, r.Listener, r.ReadOnly, r.HTTP)
		}
	}
	for _, l := range g.Options.Listeners {
		taken = append(taken, l.Name)
		for _, a := range l.Addresses {
			ip, _, _ := strings.Cut(a, "/")
			taken = append(taken, ip)
		}
	}
	return slices.DeleteFunc(slices.Clone(hosts), func(h string) bool {
		return slices.ContainsFunc(taken, func(t string) bool { return sameHost(h, t) })
	})
}

// sameHost reports whether two texts are the same name or address.
func sameHost(a, b string) bool {
	x, y := net.ParseIP(a), net.ParseIP(b)
	return strings.EqualFold(a, b) || x != nil && y != nil && x.Equal(y)
}

// Authorize decides by the configuration which peer may open what here. A witness may use the quorum and control, and
// no data. It sends no heartbeats either: one of a late epoch would keep this node from acknowledging those of the
// primary. A peer is a replica only if both the configuration and its certificate say so: a witness takes part in
// writing the configuration, and has no part in issuing certificates.
func (m *Members) Authorize(peer certs.Identity, pin string, class endpoint.Class) error {
	r, ok := m.Replica(peer.ID)
	if !ok || r.KeyPin != pin {
		return fmt.Errorf("%s is not a member of this group", peer.ID)
	}
	ofReplicas := class == endpoint.ClassWAL || class == endpoint.ClassSeed || class == endpoint.ClassSQL || class == endpoint.ClassHeart
	if ofReplicas && (!r.HasData() || peer.Kind != certs.KindReplica) {
		return fmt.Errorf("%s is a witness: it votes, and has no business with data or with leading", peer.ID)
	}
	return nil
}

// Trust refuses a dialled member whose key is not the one in the configuration: a certificate alone is not enough.
func (m *Members) Trust(peer certs.Identity, pin string) error {
	if r, ok := m.Replica(peer.ID); !ok || r.KeyPin != pin {
		return fmt.Errorf("%s answers with a key that the group does not know", peer.ID)
	}
	return nil
}
