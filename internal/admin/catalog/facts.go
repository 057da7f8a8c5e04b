package catalog

import (
	"net/netip"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/ag/availability"
	"github.com/coteriedb/coterie/internal/backup"
	"github.com/coteriedb/coterie/internal/lib/storage"
)

// Facts are the knowledge of one node about the group at one moment.
type Facts struct {
	Now       time.Time
	Self      ag.ReplicaID
	Group     ag.Group
	Record    ag.Record
	Primary   ag.ReplicaID // the replica that accepts sessions; "": none
	WriteOpen bool
	Quorum    bool
	Nodes     map[ag.ReplicaID]Node
	Journals  func() map[ag.ReplicaID]Journal   // journals of the nodes that answer; nil: no node was asked
	Settings  func() map[ag.ReplicaID][]Setting // settings of their servers, likewise
	Version   string                            // version of PostgreSQL, such as 15.18
	User      string                            // user of the query
	Profile   string
	// Availability is the judgement of the group by the node that answers. Voters are the ids of the quorum's voting
	// members by its own list; nil: not known.
	Availability availability.Report
	Voters       []uint64
}

// Node is the report of one node about itself.
type Node struct {
	Connected bool           `json:"-"` // it answers, and the report is current; otherwise it is the last known one
	Role      ag.Role        `json:"role"`
	Sync      ag.SyncState   `json:"synchronization_state"`
	Data      ag.DataState   `json:"data"`
	Server    ag.ServerState `json:"server"`
	Silent    bool           `json:"silent,omitempty"` // its server runs, and answers no new connection
	Position  ag.Position    `json:"position"`         // end of WAL held durably
	Replay    ag.LSN         `json:"replay"`
	Open      bool           `json:"open"`
	Streaming bool           `json:"streaming"` // it receives WAL from the leader
	Busy      string         `json:"busy,omitempty"`
	Progress  string         `json:"progress,omitempty"`
	Because   string         `json:"because,omitempty"`
	Streams   []Stream       `json:"streams,omitempty"` // streams to the others, if it is the primary
	Databases []Database     `json:"databases,omitempty"`
	Offline   []string       `json:"offline,omitempty"` // those that are not online: their files are missing or cannot be read
	Sessions  []Session      `json:"sessions,omitempty"`
	Outlooks  []Outlook      `json:"outlooks,omitempty"` // of all its sessions
	Coverage  []Coverage     `json:"coverage,omitempty"` // by hour of the last week, oldest first
	// Owners is the same by day, application and user.
	Owners   []OwnerCoverage `json:"coverage_by_application,omitempty"`
	Routes   *ag.Routes      `json:"routes,omitempty"`
	FellBack uint64          `json:"fell_back"` // readers routed to the primary since the node started
	Lagged   uint64          `json:"lagged"`    // times that a replica was skipped because of coterie.max_lag since then
	Readers  []Second        `json:"readers,omitempty"`
	Places   []Place         `json:"places,omitempty"`  // addresses and ports of the group's listener
	Console  string          `json:"console,omitempty"` // host:port at which browsers reach its console
	// Certificates is when its certificates end, by what they are for.
	Certificates map[string]time.Time `json:"certificates,omitempty"`
	Networks     []netip.Prefix       `json:"networks,omitempty"` // addresses of its devices that are up, with their subnets; nil: not known
	Uptime       time.Duration        `json:"uptime_ns"`
	Lease        time.Duration        `json:"lease_ns,omitempty"`    // remaining time, if it is the primary
	Commit       *time.Time           `json:"last_commit,omitempty"` // time of the last transaction that was committed or replayed here
	LogRate      float64              `json:"log_rate"`              // bytes per second that the primary writes or a secondary replays
	// Stale is how old Commit and LogRate are where its server or the node has not answered since; 0: they are current.
	Stale    time.Duration    `json:"stale_ns,omitempty"`
	Links    []Link           `json:"links,omitempty"`    // links that carry WAL
	Commits  *Commits         `json:"commits,omitempty"`  // the waits of synchronous commits here
	Seedings []Seeding        `json:"seedings,omitempty"` // copies made to this node, oldest first
	Storage  []storage.Volume `json:"storage,omitempty"`  // what its directories with data stand on
	Backup   *Backup          `json:"backup,omitempty"`   // the backups as this node sees them; nil: it holds no data, or does not know
}

// Backup is what a node says of the group's backups, and of the archiving of its server if that is the primary.
type Backup struct {
	Enabled      bool      `json:"enabled"` // the node has a plan: it could archive and restore
	Tool         string    `json:"tool,omitempty"`
	Version      string    `json:"version,omitempty"` // of the tool
	Stanza       string    `json:"stanza,omitempty"`
	Repository   string    `json:"repository,omitempty"`
	Problem      string    `json:"problem,omitempty"`   // why the node cannot use it
	Secondary    bool      `json:"secondary,omitempty"` // the node's version makes backups of a secondary, too
	Last         time.Time `json:"last,omitzero"`       // end of the newest backup
	LastLabel    string    `json:"last_label,omitempty"`
	LastNode     string    `json:"last_node,omitempty"` // the replica on which it was made
	Primary      bool      `json:"primary,omitempty"`   // the server takes writes; the rest is known of it alone
	On           bool      `json:"on,omitempty"`        // archive_mode
	Ours         bool      `json:"ours,omitempty"`      // archive_command is the plan's
	Archived     int64     `json:"archived,omitempty"`
	Failed       int64     `json:"failed,omitempty"`
	LastArchived string    `json:"last_archived_wal,omitempty"`
	LastFailed   string    `json:"last_failed_wal,omitempty"`
	ArchivedAt   time.Time `json:"last_archived,omitzero"`
	FailedAt     time.Time `json:"last_failed,omitzero"`
	Waiting      int       `json:"waiting,omitempty"` // segments to be archived
	Timeline     int64     `json:"timeline,omitempty"`
	SegmentSize  int64     `json:"segment_size,omitempty"`
	Since        time.Time `json:"waiting_since,omitzero"`     // since when the archive lacks the first of them
	Kept         int64     `json:"kept_bytes,omitempty"`       // what they take on the disk
	Free         int64     `json:"free_bytes,omitempty"`       // what is left there
	Rate         int64     `json:"kept_bytes_per_s,omitempty"` // how fast they become more
	FullIn       *int64    `json:"full_in_s,omitempty"`        // seconds until the disk is full at that rate; nil: they do not become more
	Reason       string    `json:"behind_because,omitempty"`   // what is wrong with the repository, as far as a look at it tells

	Run      backup.Run       `json:"run,omitzero"`       // the backup that the node makes, or the last one
	Restores []backup.Restore `json:"restores,omitempty"` // begun from the node, and not over
}

// Stream is a secondary's log stream as the primary sees it.
type Stream struct {
	Member ag.ReplicaID  `json:"member"`
	Open   bool          `json:"open"`
	Sent   ag.LSN        `json:"sent"`
	Flush  ag.LSN        `json:"flush"`
	Apply  ag.LSN        `json:"apply"`
	Silent time.Duration `json:"silent_ns"`         // since its last message
	Idle   time.Duration `json:"idle_ns,omitempty"` // since WAL was last sent; 0: unknown
	Rate   float64       `json:"rate"`              // recent bytes of WAL per second
}

// Setting is a setting of a server.
type Setting struct {
	Name    string `json:"name"`
	Value   string `json:"value"`
	Source  string `json:"source"`
	Pending bool   `json:"pending,omitempty"` // another value waits for a restart
}

// marked reports whether a view shows a mark in the place of the value.
func (s Setting) marked() bool {
	name, _, _ := strings.Cut(s.Name, " ")
	return s.Value != "" && ddl.MayBeSecret(name)
}

// MayBeSecret reports whether the value may hold a password or a key: by the setting's name, or because an extension or
// a user has defined it, who may keep anything there. Behind its first word a name may have that of a role, a database
// or a file.
func (s Setting) MayBeSecret() bool {
	name, _, _ := strings.Cut(s.Name, " ")
	return strings.Contains(name, ".") || ddl.MayBeSecret(name)
}

// Database is a database of the instance.
type Database struct {
	OID  uint32 `json:"oid"`
	Name string `json:"name"`
}

// Session is a client's session at a node's listener.
type Session struct {
	ID       uint64       `json:"id"`
	User     string       `json:"user"`
	Database string       `json:"database"`
	Client   string       `json:"client"` // host:port, or local: by a Unix socket
	TLS      string       `json:"tls"`
	TLSName  string       `json:"tls_name"`     // server name that the client asked for (SNI)
	Identity string       `json:"tls_identity"` // of the client's certificate
	Intent   ag.Intent    `json:"intent"`
	Entry    int          `json:"list_entry"` // chosen entry of the routing list; 0: the list was not used
	Replica  ag.ReplicaID `json:"replica"`
	State    string       `json:"state"`
	Since    time.Time    `json:"since"`
	In       uint64       `json:"bytes_in"`
	Out      uint64       `json:"bytes_out"`
	PID      uint32       `json:"pid"`
	Path     string       `json:"path"`    // carrier of the data at that node's listener: kernel, loop or goroutines
	Backend  string       `json:"backend"` // own, ahead (opened in advance), or reused after another client
	// Its prospects, as Outlook has those of many; zero: not known.
	Failover    Prospect `json:"failover,omitzero"`
	NodeLoss    Prospect `json:"node_loss,omitzero"`
	ServerLoss  Prospect `json:"server_loss,omitzero"`
	Transaction Prospect `json:"transaction,omitzero"`
	Commit      Prospect `json:"commit,omitzero"`
	Statement   string   `json:"by,omitempty"`
}

// Outlook is how many of the sessions at a node's listener have the same prospects.
type Outlook struct {
	Replica     ag.ReplicaID `json:"replica"`
	Application string       `json:"application_name"`
	User        string       `json:"user"`
	Others      bool         `json:"others,omitempty"` // of several applications and users, which are not named
	Sessions    int          `json:"sessions"`
	Failover    Prospect     `json:"failover"`        // in a planned failover of their server's role
	NodeLoss    Prospect     `json:"node_loss"`       // if the node of their server died
	ServerLoss  Prospect     `json:"server_loss"`     // if their server alone died
	Transaction Prospect     `json:"transaction"`     // of their open transaction, if they outlived their server; zero: they have none
	Commit      Prospect     `json:"commit,omitzero"` // of a COMMIT whose answer is lost with their server; zero: they commit nothing there
	Statement   string       `json:"by,omitempty"`    // keywords of the statement by which they are not kept
}

// Prospect is what would become of a session.
type Prospect struct {
	Fate string `json:"fate"`          // KEPT, LIKELY or ENDS; of a COMMIT PROVED or UNKNOWN
	Why  string `json:"why,omitempty"` // the reason if it is neither KEPT nor PROVED
}

// OwnerCoverage is what became known of the sessions of an application and user in a day.
type OwnerCoverage struct {
	Application string `json:"application_name"`
	User        string `json:"user"`
	Others      bool   `json:"others,omitempty"` // several of them, which are not named
	Coverage
}

// Coverage is what became known of a listener's sessions in an hour or a day. Its numbers are those of all looks
// together.
type Coverage struct {
	Begin      time.Time `json:"hour"`
	Looks      int       `json:"looks"`
	Sessions   int       `json:"sessions"`
	Failover   Share     `json:"failover"`
	NodeLoss   Share     `json:"node_loss"`
	ServerLoss Share     `json:"server_loss"`
	Open       int       `json:"open,omitempty"` // transactions
	Replayed   Share     `json:"replayed,omitzero"`
}

// Share is how many sessions or transactions an event would have kept.
type Share struct {
	Kept int    `json:"kept"`
	Why  string `json:"why,omitempty"` // the most frequent reason of the others
}

// Place is an address or a port of the group's listener on the node that reports it.
type Place struct {
	Address string `json:"address"` // host:port where it listens, or an address with the length of its subnet's prefix
	State   string `json:"state"`   // ONLINE, OFFLINE, FAILED
	Device  string `json:"device,omitempty"`
	Problem string `json:"problem,omitempty"` // with the remedy
}

// Second counts the readers that logged in at a node's listener in one second, and their routes.
type Second struct {
	At      time.Time `json:"at"`
	Readers uint64    `json:"readers"`
	Routed  uint64    `json:"routed"` // those routed to a secondary
	Pct     float64   `json:"routed_pct"`
}

// Seeding is a copy to the node that reports it, over all attempts.
type Seeding struct {
	ID       string        `json:"id"`
	Source   ag.ReplicaID  `json:"source,omitempty"`
	State    string        `json:"state"` // PENDING, SEEDING, RETRYING, COMPLETED, FAILED, CANCELLED
	Started  time.Time     `json:"started"`
	Ended    time.Time     `json:"ended,omitzero"`
	Attempts int           `json:"attempts"`
	Code     int           `json:"failure_code,omitempty"`  // code of the last failed attempt: 1.. on the source, 2.. on the target
	Word     string        `json:"failure_state,omitempty"` // a word for that code
	Failure  string        `json:"failure,omitempty"`
	Errno    int           `json:"errno,omitempty"`
	FailedAt time.Time     `json:"failed_at,omitzero"`
	Text     string        `json:"text"` // progress as text
	Done     int64         `json:"done_bytes"`
	Total    int64         `json:"total_bytes"`
	Wire     int64         `json:"wire_bytes"`
	Rate     float64       `json:"rate"` // recent bytes of files per second
	Left     time.Duration `json:"left_ns"`
	Disk     time.Duration `json:"disk_wait_ns"`
	Net      time.Duration `json:"network_wait_ns"`
	Packed   bool          `json:"packed"` // the data on the network is compressed
}

// ended reports whether the copy is in a final state.
func (s Seeding) ended() bool {
	return s.State == "COMPLETED" || s.State == "FAILED" || s.State == "CANCELLED"
}

// Link is a link that carries WAL between the reporting node and a peer.
type Link struct {
	Peer      ag.ReplicaID `json:"peer"`
	Transport string       `json:"transport"`
	Codec     string       `json:"codec"`
	Via       ag.ReplicaID `json:"via,omitempty"` // the member that relays it, as the two cannot connect to each other
	RTT       float64      `json:"round_trip_ms"`
	Sent      uint64       `json:"sent"`     // bytes before encoding
	Encoded   uint64       `json:"encoded"`  // bytes after encoding
	Received  uint64       `json:"received"` // bytes after decoding
	Resent    uint64       `json:"resent"`   // bytes
	Carried   int64        `json:"carried"`  // bytes per second while saturated; 0: never saturated
}

// Commits describes the waits of commits for the acknowledgement of secondaries: one wait per block of WAL.
type Commits struct {
	Waits  uint64        `json:"waits"` // since the agent started, like the next two
	Waited time.Duration `json:"waited_ns"`
	Max    time.Duration `json:"max_ns"`
	Mean   time.Duration `json:"mean_ns"` // over the last minute or two, like the rest
	P50    time.Duration `json:"p50_ns"`
	P95    time.Duration `json:"p95_ns"`
	P99    time.Duration `json:"p99_ns"`
}

// Journal is the history that a node keeps of its decisions and of events, each oldest first.
type Journal struct {
	Decisions []Decision `json:"decisions,omitempty"`
	Events    []Event    `json:"events,omitempty"`
	Acts      []Act      `json:"acts,omitempty"`
}

// Act is what an administrator had a node do, or was denied.
type Act struct {
	At        time.Time     `json:"at"` // of its end, by the node's own clock
	User      string        `json:"user"`
	Privilege string        `json:"privilege,omitempty"` // as console.RoleFor has it
	Via       string        `json:"via"`                 // SQL, API or CLI
	From      string        `json:"from,omitempty"`      // the client's address
	Operation string        `json:"operation"`           // the statement or the request, without secrets
	Result    string        `json:"result"`              // done, failed or denied
	Number    int           `json:"number,omitempty"`    // of the message
	Message   string        `json:"message,omitempty"`   // why it failed or was denied
	Took      time.Duration `json:"took_ns"`
}

// The results of acts.
const (
	ActDone   = "done"
	ActFailed = "failed"
	ActDenied = "denied"
)

// Decision is a rule that fired.
type Decision struct {
	At       time.Time `json:"at"` // by the node's own clock
	Rule     string    `json:"rule"`
	Because  string    `json:"because"`
	Epoch    ag.Epoch  `json:"epoch"`
	Revision int64     `json:"revision"` // revision of the record that the decision is based on; it orders decisions of several nodes
}

// Event is a notable event: an unusual decision, a change of a link, a statement.
type Event struct {
	At      time.Time `json:"at"`
	Epoch   ag.Epoch  `json:"epoch,omitempty"`
	Kind    string    `json:"kind"`
	What    string    `json:"what"`
	Because string    `json:"because,omitempty"`
}

// namespace separates the ids of this package from others derived from the same words.
var namespace = uuid.MustParse("6ba7b812-9dad-11d1-80b4-00c04fd430c8")

// ReplicaUUID returns the id of a replica in the views. It depends only on the group and the replica.
func ReplicaUUID(g ag.GroupID, r ag.ReplicaID) string {
	return uuid.NewSHA1(namespace, []byte("coterie replica "+string(g)+" "+string(r))).String()
}

// DatabaseUUID returns the id of a database of the group in the views.
func DatabaseUUID(g ag.GroupID, name string) string {
	return uuid.NewSHA1(namespace, []byte("coterie database "+string(g)+" "+name)).String()
}

// members returns the replicas of the group; none while the group does not exist.
func (f Facts) members() []ag.Replica {
	var out []ag.Replica
	for _, r := range f.Group.Replicas {
		if r.Part() && !f.Group.Draft {
			out = append(out, r)
		}
	}
	return out
}

// leader returns the leader in the record, whether or not it serves sessions; ok is false outside of LEAD.
func (f Facts) leader() (ag.Replica, bool) {
	r, ok := f.Group.Replica(f.Record.Epoch.Leader)
	return r, ok && f.Record.Epoch.Phase == ag.PhaseLead
}

// databases returns the registered databases or, if none is registered, all of the primary's.
func (f Facts) databases() []Database {
	var found []Database
	for _, id := range append([]ag.ReplicaID{f.Record.Epoch.Leader, f.Self}, ids(f.Group)...) {
		if found = f.Nodes[id].Databases; len(found) > 0 {
			break
		}
	}
	if len(f.Group.Options.Databases) == 0 {
		return found
	}
	var out []Database
	for _, name := range f.Group.Options.Databases {
		d := Database{Name: name}
		for _, x := range found {
			if x.Name == name {
				d = x
			}
		}
		out = append(out, d)
	}
	return out
}

func ids(g ag.Group) []ag.ReplicaID {
	var out []ag.ReplicaID
	for _, r := range g.Replicas {
		out = append(out, r.ID)
	}
	return out
}
