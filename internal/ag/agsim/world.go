package agsim

import (
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// maxMembers bounds the group, so that a World is a value of fixed size that can be a key of a map.
const maxMembers = 5

// set is a set of members, by their index.
type set uint8

func (s set) has(i int) bool { return s>>i&1 == 1 }
func one(i int) set          { return 1 << i }

func (s set) String() string {
	var b strings.Builder
	for i := range maxMembers {
		if s.has(i) {
			b.WriteString(string(names[i]))
		}
	}
	return "{" + b.String() + "}"
}

var names = [maxMembers]ag.ReplicaID{"a", "b", "c", "d", "e"}

func index(id ag.ReplicaID) int {
	if id == "" {
		return -1
	}
	return int(id[0] - 'a')
}

func setOf(ids []ag.ReplicaID) (s set) {
	for _, id := range ids {
		s |= one(index(id))
	}
	return s
}

func (s set) size() int { return bits.OnesCount8(uint8(s)) }

// ids returns the names of the members of the set. The result is shared, and has no room for more.
func (s set) ids() []ag.ReplicaID { return idsOf[s] }

// idsOf are the names of the members of each set; nil for the empty one.
var idsOf = func() (t [1 << maxMembers][]ag.ReplicaID) {
	for s := range t {
		for i := range maxMembers {
			if set(s).has(i) {
				t[s] = append(t[s], names[i])
			}
		}
		t[s] = slices.Clip(t[s])
	}
	return t
}()

// copyID names a copy; 0 is none, and unknownCopy an entry of V whose copy the leader did not know.
type copyID uint16

const unknownCopy copyID = 1<<16 - 1

func (c copyID) id() ag.CopyID {
	switch {
	case c == 0 || c == unknownCopy:
		return ""
	case int(c) < len(copyNames):
		return copyNames[c]
	}
	return ag.CopyID("copy" + strconv.Itoa(int(c)))
}

// copyNames are the names of the first copies: histories seldom have more.
var copyNames = func() (n [256]ag.CopyID) {
	for i := range n {
		n[i] = ag.CopyID("copy" + strconv.Itoa(i))
	}
	return n
}()

func copyOf(id ag.CopyID) copyID {
	if id == "" {
		return unknownCopy
	}
	c, err := strconv.ParseUint(strings.TrimPrefix(string(id), "copy"), 10, 16)
	if err != nil {
		panic("no copy " + id)
	}
	return copyID(c)
}

// phase is ag.Phase as a small number.
type phase uint8

const (
	seal phase = iota
	promote
	lead
)

var phases = [...]ag.Phase{ag.PhaseSeal, ag.PhasePromote, ag.PhaseLead}

func phaseOf(p ag.Phase) phase {
	for i, q := range phases {
		if p == q {
			return phase(i)
		}
	}
	panic("no phase " + p)
}

// epochRec is /epoch. leader counts from 1.
type epochRec struct {
	epoch  uint16
	phase  phase
	leader uint8
	tli    uint16
	maxTLI uint16
	forced bool
	unled  uint64 // timeline ids
	// outgoing is the leader that a forced failover deposed, counted from 1, and ticks for how long it is waited for.
	outgoing  uint8
	ticks     uint16
	outAnswer declaration
	now       bool // an operator accepted that both answer

	fromTLI, fromLSN uint16
	copy             copyID
	v                [maxMembers]copyID
	k                uint8
}

// stateRec is /state. v holds the copy of each member of V, 0 for those outside.
type stateRec struct {
	epoch  uint16
	leader uint8
	copy   copyID
	v      [maxMembers]copyID
	k      uint8
	set    setting
	former uint8
	fcopy  copyID
	basis  wal // the log at the end of recovery: the timelines are those on its path
}

func (s stateRec) size() int { return count(s.v) }

// count returns how many members V has.
func count(v [maxMembers]copyID) (n int) {
	for _, c := range v {
		if c != 0 {
			n++
		}
	}
	return n
}

// setting is a synchronous setting: n of p.
type setting struct {
	p set
	n uint8
}

// begun is where a log ended before promotions, and the timeline of the first of them.
type begun struct {
	log   wal
	first uint16
}

type dataState uint8

const (
	empty dataState = iota
	partial
	present
)

var dataStates = [...]ag.DataState{ag.DataEmpty, ag.DataPartial, ag.DataPresent}

type serverState uint8

const (
	down serverState = iota
	recovery
	writable
)

var serverStates = [...]ag.ServerState{ag.ServerDown, ag.ServerRecovery, ag.ServerWritable}

// kind is the kind of a node's pending action: a plan between its decision and its effect.
type kind uint8

const (
	idle kind = iota
	committing
	promoting
	setting1 // SetSync
	proving
	seeding
	rewinding
	handing
)

var kinds = [...]string{"", "commit", "promote", "sync", "sync", "seed", "rewind", "hand-over"}

// illness is the result of a node's probes of its server.
type illness uint8

const (
	healthy illness = iota
	ill             // a restart does not cure it
	curable         // by a restart
)

// inPlace is the progress of an agent's restart while its server keeps running.
type inPlace uint8

const (
	settled   inPlace = iota
	announced         // /lead announces it, and no client is connected any more
	away              // the keeper waits for the successor
)

// pending is a decided plan that has had no effect yet.
type pending struct {
	kind               kind
	guardState         bool
	guardLead          bool
	guardConf          bool
	conf               settings // the configuration of the view
	staleEpoch         bool     // the key was changed since the view
	staleState         bool
	staleLead          bool
	hasEpoch, hasState bool
	release            bool
	votes              set   // compared, by their voters
	staleVotes         bool  // one of them was changed since the view
	vote, unvote       bool  // this node's own
	against            uint8 // the incarnation that the vote is against
	waited             uint8 // in ticks
	resumes            bool  // acknowledges again once it is made
	standsDown         bool  // gives up the leadership because of its health or a crash
	silent             bool  // claims from a leader that was silent for O
	hasty              bool  // claims from a leader that was not silent for long
	epoch              epochRec
	state              stateRec
	at                 uint16 // epoch it was decided in
	tli                uint16
	from               begun
	sync               setting
	other              uint8 // source or target
}

// node is one member: its server, its durable marks and its agent.
type node struct {
	up       bool // the agent runs
	data     dataState
	server   serverState
	log      wal
	copy     copyID
	promised uint16
	began    uint16 // the timeline of the last promotion that was begun
	from     begun  // of that promotion, and of those before it that did not come to lead either
	armed    uint16
	lease    uint16 // epoch of a valid lease
	source   uint8
	sourceEp uint16
	refused  bool
	noRewind bool
	busy     pending

	leading  uint16 // the epoch in which its downstream admits members
	sync     setting
	older    [3]setting // older settings that a backend or walsender may still use
	olders   uint8
	proven   bool
	barrier  uint16
	endOfRec uint16
	opened   uint16

	streams set // members whose streams are open
	got     [maxMembers]uint16
	gotCopy [maxMembers]copyID

	// Fast takeover. Only models with votes use it.
	withheld uint16      // the epoch whose heartbeats it does not acknowledge
	fresh    bool        // it acknowledges nothing yet: its vote from before the restart is not withdrawn
	known    uint16      // the latest epoch it has read
	answerEp uint16      // as a primary: the epoch in which
	answer   set         // these acknowledged a heartbeat that its answers may still rely on
	obeysEp  uint16      // as a holder: the epoch in which
	obeys    declaration // its answers obey this
	doubts   declaration // and this, which it may have declared as well

	// Health, and the state left by the previous agent (trouble.go, handover.go).
	ill         illness
	stood       bool // it gave up the leadership because of its health or a crash, and that still counts
	quarantine  bool // its storage lost a write
	renew       bool // and an operator has resumed it since
	foreign     bool // a reserved setting of its server was changed behind the agent's back
	free        bool // that setting lets commits wait for nobody
	doubled     set  // members in whose names a walsender runs here that is not theirs
	inPlace     inPlace
	attached    bool   // the previous agent left the server running, and its setting is not proven yet
	restart     uint16 // the server was restarted within its epoch: the end of its log at that time
	feeds       uint16 // the epoch in which it lets its candidate stream from here, without leading; 0: none
	feedTo      uint8
	takes       routes // the sessions that its listener takes, by its last turn
	unfitToRead bool   // it has found that its copy is not of the leader's history; a ghost
	gone        copyID // the copy that it last reported as lost, or as waiting for V to drop; 0: none
	bare        uint16 // the epoch in which it last reported that it has no whole copy; 0: it has one

	half    bool // the beginning of a record has arrived, and not its end
	torn    set  // of the members that sealed: those that have received more than whole records
	slow    bool // it has long to replay
	late    set  // of the members that sealed: those that had
	seals   set  // the members that answered it, as a candidate of the epoch in sealEp
	unfit   set  // of them, those that may not be promoted
	sealEp  uint16
	sealLog [maxMembers]wal
	sealCpy [maxMembers]copyID
}

// World is the whole state at one moment.
type World struct {
	epoch    epochRec
	state    stateRec
	released bool
	op       ag.OpKind
	opTo     uint8
	opEpoch  uint16

	restarting  bool               // /lead announces a restart in place
	settled     bool               // /lead says that the outgoing leader can answer nobody any more
	opNow       bool               // the operator that forces does not want to wait
	incarnation uint8              // of the agent that leads, by /lead
	votes       [maxMembers]uint16 // the epoch each member voted in; 0: no vote
	against     [maxMembers]uint8  // the incarnation it saw die
	waited      [maxMembers]uint8  // the answer lease for which it has waited, in ticks
	declared    declaration        // by the holder of the epoch
	observer    time.Duration      // for how long it must be silent; 0: as the profile says
	removing    uint8              // the member that an operator is about to take out; 0: none

	nodes    [maxMembers]node
	sessions [maxSessions]session
	settings settings
	copies   copyID

	late   pending // a transaction whose author no longer waits for the answer: it may still take effect
	lateBy uint8
	letter letter

	// Ghosts: the memory of the checks, which no node has.
	acked    wal    // the last acknowledged commit; every earlier one is on its path
	ackEpoch uint16 // forced epochs forgive acknowledgements of epochs before
	used     uint64 // timeline ids promoted onto
	byVotes  uint16 // the latest epoch that was claimed by votes
	nowEpoch uint16 // the latest epoch in which an operator accepted that its predecessor answers as well

	// The remaining faults and events that the explorer may spend.
	faults, writes, ops, wipes, losses, deaths, ills, restarts, asks, tears, changes uint8
}

// wal is a write-ahead log: a node of the tree of all logs, the path from the root being its records.
type wal uint32

type record struct {
	parent wal
	depth  uint16
	tli    uint16
	writer uint32 // its author and epoch: distinguishes records that carry the same position
}

// logs is the tree of all logs. Equal logs are equal numbers.
type logs struct {
	records []record
	next    map[record]wal
	history map[wal][]ag.TimelineEntry
}

func newLogs() *logs {
	return &logs{records: []record{{}}, next: map[record]wal{}, history: map[wal][]ag.TimelineEntry{}}
}

func (l *logs) append(w wal, tli uint16, writer uint32) wal {
	r := record{w, l.records[w].depth + 1, tli, writer}
	if n, ok := l.next[r]; ok {
		return n
	}
	n := wal(len(l.records))
	l.records = append(l.records, r)
	l.next[r] = n
	return n
}

func (l *logs) depth(w wal) uint16 { return l.records[w].depth }
func (l *logs) tli(w wal) uint16   { return l.records[w].tli }
func (l *logs) of(w wal) record    { return l.records[w] }
func (l *logs) in(c, w wal) bool   { return l.at(w, l.depth(c)) == c }
func (l *logs) position(w wal) ag.Position {
	return ag.Position{Timeline: ag.Timeline(l.tli(w)), LSN: ag.LSN(l.depth(w))}
}

// at returns the log cut to that many records.
func (l *logs) at(w wal, depth uint16) wal {
	for l.depth(w) > depth {
		w = l.records[w].parent
	}
	return w
}

// common returns the longest common beginning of two logs.
func (l *logs) common(x, y wal) wal {
	x, y = l.at(x, l.depth(y)), l.at(y, l.depth(x))
	for x != y {
		x, y = l.records[x].parent, l.records[y].parent
	}
	return x
}

// timelines returns the history of a log's path, oldest first. The result is shared.
func (l *logs) timelines(w wal) []ag.TimelineEntry {
	if h, ok := l.history[w]; ok {
		return h
	}
	var h []ag.TimelineEntry
	for x := w; x != 0; x = l.records[x].parent {
		r := l.records[x]
		p := l.records[r.parent]
		if r.parent == 0 {
			h = append(h, ag.TimelineEntry{TLI: ag.Timeline(r.tli)})
		} else if p.tli != r.tli {
			h = append(h, ag.TimelineEntry{TLI: ag.Timeline(r.tli), Parent: ag.Timeline(p.tli), Switch: ag.LSN(p.depth)})
		}
	}
	for i, j := 0, len(h)-1; i < j; i, j = i+1, j-1 {
		h[i], h[j] = h[j], h[i]
	}
	l.history[w] = h
	return h
}
