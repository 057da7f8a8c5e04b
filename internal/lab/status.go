package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lab/linkem"
	"github.com/coteriedb/coterie/internal/lab/mirror"
	"github.com/coteriedb/coterie/internal/lib/retry"
)

// askTimeout bounds the wait for one agent, so that a status takes at most a second even if nodes are dead.
const askTimeout = 600 * time.Millisecond

// Listener holds connection strings of clients: complete libpq URIs.
type Listener struct {
	ReadWrite string `json:"read_write"`
	ReadOnly  string `json:"read_only"`
}

// PIDs are the processes of a node; null: it has none. A witness has only an agent.
type PIDs struct {
	Agent    *int `json:"agent"`
	Keeper   *int `json:"keeper"`
	Postgres *int `json:"postgres"`
}

// Replica is one node in a Status.
type Replica struct {
	Name         string        `json:"name"`
	Role         ag.Role       `json:"role"`
	Sync         ag.SyncState  `json:"synchronization_state"`
	Join         ag.JoinState  `json:"join_state,omitempty"` // empty: a replica of the group
	Connected    string        `json:"connected_state"`
	State        string        `json:"state"` // not made, down, running or paused
	AgentAnswers bool          `json:"agent_answers"`
	Position     string        `json:"position"`  // timeline:LSN; empty while not known
	LagBytes     *int64        `json:"lag_bytes"` // behind the primary; null while not known
	Now          string        `json:"now"`       // its present action or wait
	Dir          string        `json:"dir"`
	Address      string        `json:"address"`
	Namespace    string        `json:"namespace,omitempty"` // of its network; see ip netns
	HTTP         string        `json:"http"`
	Console      string        `json:"console,omitempty"` // address of its console in the browser; a witness has none
	Endpoint     string        `json:"endpoint"`
	Listener     *Listener     `json:"listener,omitempty"` // its own; a witness has none
	PIDs         PIDs          `json:"pids"`
	Disk         *DiskStatus   `json:"disk,omitempty"`   // with coterie lab up --disk-faults
	Mirror       *mirror.State `json:"mirror,omitempty"` // with coterie lab up --storage mirror
	Clock        *ClockStatus  `json:"clock,omitempty"`  // once coterie lab clock was used
	Caps         *CapStatus    `json:"caps,omitempty"`   // with coterie lab up --node-cpu or --node-memory
}

// Status is a lab as its nodes and the system's process table show it.
type Status struct {
	Dir       string         `json:"dir"`
	Net       Network        `json:"net"`
	Listener  Listener       `json:"listener"`
	Group     string         `json:"group"`
	Draft     bool           `json:"draft,omitempty"` // the nodes have joined each other, but no group exists
	Primary   *string        `json:"primary"`         // the node that takes writes now; null: none
	Epoch     ag.Epoch       `json:"epoch"`
	Voters    int            `json:"voters"`
	WaitsFor  string         `json:"commits_wait_for"`
	Failover  string         `json:"automatic_failover"` // ready, or why not
	Replicas  []Replica      `json:"replicas"`
	Witnesses []Replica      `json:"witnesses"`
	Links     []linkem.Stats `json:"links"` // every direction of every link; empty on the loopback interface
}

// Replica finds a replica or witness by its name.
func (s Status) Replica(name string) (Replica, bool) {
	for _, list := range [][]Replica{s.Replicas, s.Witnesses} {
		for _, r := range list {
			if r.Name == name {
				return r, true
			}
		}
	}
	return Replica{}, false
}

// Ready reports whether the group takes writes, every replica of it is SYNCHRONIZED and every node connected.
func (s Status) Ready() bool {
	for _, r := range s.Replicas {
		replica := !s.Draft && r.Join != ag.Detached
		if replica && r.Sync != ag.Synchronized || r.Connected != connected {
			return false
		}
	}
	for _, w := range s.Witnesses {
		if w.Connected != connected {
			return false
		}
	}
	return s.Primary != nil
}

const (
	connected    = "CONNECTED"
	disconnected = "DISCONNECTED"
)

// ask asks the node's agent.
func ask(ctx context.Context, n Node) (api.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	l, err := config.NewLayout(n.Dir)
	if err != nil {
		return api.Status{}, err
	}
	return api.NewClient(l.AgentSock(), l.Owner()).Status(ctx)
}

// Status asks every node at once and answers within a second, even if nodes are dead.
func (l *Lab) Status(ctx context.Context) (Status, error) {
	nodes := l.Nodes()
	answers, disks := make([]*api.Status, len(nodes)), make([]*DiskStatus, len(nodes))
	var wg sync.WaitGroup
	for i, n := range nodes {
		wg.Go(func() {
			if s, err := ask(ctx, n); err == nil {
				answers[i] = &s
			}
		})
		wg.Go(func() { disks[i] = l.diskStatus(ctx, n) })
	}
	var network Network
	var links []linkem.Stats
	wg.Go(func() { network, links = l.networkStatus() })
	wg.Wait()
	ps, err := processes()
	if err != nil {
		return Status{}, err
	}
	uid, _, err := nodeUser()
	if err != nil {
		return Status{}, err
	}
	clocks, err := l.clocks()
	if err != nil {
		return Status{}, err
	}
	s := Status{Dir: l.dir, Net: network, Links: links, Listener: Listener{l.ReadWrite(), l.ReadOnly()}, Replicas: []Replica{}, Witnesses: []Replica{}}
	best := bestAnswer(answers)
	if best != nil {
		s.Group, s.Draft, s.Epoch, s.Voters, s.WaitsFor, s.Failover = best.Group, best.Draft, best.Epoch, best.Voters, best.WaitsFor, best.FailoverReady
		if leads(best) {
			name := string(best.Primary)
			s.Primary = &name
		}
	}
	live := false
	for i, n := range nodes {
		r := l.replica(n, answers[i], best)
		t := treeOf(ps, n, uid)
		r.addProcesses(t, n)
		r.Disk, r.Mirror, r.Caps = disks[i], l.mirrorState(ctx, n), l.capStatus(n)
		if offset, ok := clocks[n.Name]; ok {
			c := clockOf(t, offset)
			r.Clock = &c
		}
		live = live || r.State == "running" || strings.HasSuffix(r.State, "paused")
		if n.Witness {
			s.Witnesses = append(s.Witnesses, r)
		} else {
			s.Replicas = append(s.Replicas, r)
		}
	}
	if !live && s.Net.PID == nil { // a lab that was stopped needs no network
		s.Net.Finding = ""
	}
	return s, nil
}

// leads reports whether the answer is that of a primary that takes writes.
func leads(s *api.Status) bool { return s.WriteOpen && s.Primary == s.Node }

// bestAnswer returns the answer to believe about the group: the primary's if there is one, else that of a node with a
// quorum, and of several the one with the highest epoch.
func bestAnswer(answers []*api.Status) *api.Status {
	rank := func(s *api.Status) int {
		switch {
		case leads(s):
			return 2
		case s.Quorum:
			return 1
		}
		return 0
	}
	var best *api.Status
	for _, s := range answers {
		switch {
		case s == nil:
		case best == nil, rank(s) > rank(best), rank(s) == rank(best) && s.Epoch > best.Epoch:
			best = s
		}
	}
	return best
}

// replica combines a node's own report with the group's report of it.
func (l *Lab) replica(n Node, own, group *api.Status) Replica {
	r := Replica{
		Name: n.Name, Role: ag.RoleResolving, Sync: ag.NotSynchronizing, Connected: disconnected, Dir: n.Dir, HTTP: "http://" + n.http(),
		Address: n.host, Namespace: l.namespace(n), Endpoint: n.endpoint(), Now: "does not answer",
	}
	if !n.Witness {
		r.Listener, r.Console = &Listener{l.uri(Node.readWrite, n), l.uri(Node.readOnly, n)}, "https://"+n.https()+"/"
	}
	if own == nil {
		return r
	}
	self, _ := entry(own, n.Name)
	r.AgentAnswers, r.Connected, r.Now = true, connected, self.Because
	if self.Position.LSN != 0 {
		r.Position = self.Position.String()
	}
	if self.Role != "" {
		r.Role = self.Role
	}
	if self.Progress != "" {
		r.Now = self.Progress
	}
	if seen, ok := entry(group, n.Name); ok {
		r.Sync, r.LagBytes, r.Connected, r.Join = seen.Sync, seen.LagBytes, seen.Connected, seen.Join
	} else if group != own {
		r.Connected = disconnected
	}
	return r
}

func entry(s *api.Status, name string) (api.Replica, bool) {
	for _, r := range s.Replicas {
		if string(r.Name) == name {
			return r, true
		}
	}
	return api.Replica{}, false
}

func (r *Replica) addProcesses(t tree, n Node) {
	pid := func(p *process) *int {
		if p == nil {
			return nil
		}
		return &p.pid
	}
	r.PIDs = PIDs{pid(t.agent), pid(t.keeper), pid(t.postgres)}
	switch {
	case !n.made():
		r.State = "not made"
	case t.paused():
		r.State = "paused"
	case slices.ContainsFunc(t.all, process.stopped):
		r.State = "partly paused"
	case t.running():
		r.State = "running"
	default:
		r.State = "down"
	}
}

// logFiles are the logs of a node, in the order in which they explain something.
var logFiles = []string{"agent.out", "agent.log", "keeper.log", "postgres.log"}

// LogLine is one line of a node's log.
type LogLine struct {
	Node string `json:"node"`
	File string `json:"file"`
	Line string `json:"line"`
}

// Logs gives the last lines of every log of a node, or of all nodes if none is named; with follow, also what comes,
// until ctx is done.
func (l *Lab) Logs(ctx context.Context, node string, last int, follow bool, to func(LogLine)) error {
	nodes := l.Nodes()
	if node != "" {
		n, err := l.node(node)
		if err != nil {
			return err
		}
		nodes = []Node{n}
	}
	var tails []*tail
	for _, n := range nodes {
		for _, f := range logFiles {
			t := &tail{node: n, file: f}
			for _, line := range t.lastLines(last) {
				to(LogLine{n.Name, f, line})
			}
			tails = append(tails, t)
		}
	}
	for follow {
		if retry.Sleep(ctx, 200*time.Millisecond) != nil {
			return nil
		}
		for _, t := range tails {
			for _, line := range t.more() {
				to(LogLine{t.node.Name, t.file, line})
			}
		}
	}
	return nil
}

// tail reads a growing file. A file that is not there yet has no lines.
type tail struct {
	node Node
	file string
	at   int64
}

// open opens the log without being led out of the node's directory, which another user may own.
func (t *tail) open() (*os.File, error) {
	root, err := os.OpenRoot(t.node.files())
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	return root.Open(filepath.Join("log", t.file))
}

func (t *tail) lastLines(n int) []string {
	f, err := t.open()
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	const most = 256 << 10
	if st, err := f.Stat(); err == nil && st.Size() > most {
		t.at = st.Size() - most
	}
	lines := t.read(f)
	return lines[max(0, len(lines)-n):]
}

func (t *tail) more() []string {
	f, err := t.open()
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	if st, err := f.Stat(); err == nil && st.Size() < t.at { // written anew
		t.at = 0
	}
	return t.read(f)
}

// read returns the whole lines from where it stopped.
func (t *tail) read(f *os.File) []string {
	b, err := io.ReadAll(io.NewSectionReader(f, t.at, 1<<20))
	if err != nil {
		return nil
	}
	end := bytes.LastIndexByte(b, '\n')
	if end < 0 {
		return nil
	}
	t.at += int64(end) + 1
	return strings.Split(string(b[:end]), "\n")
}

// nodeError is an error of one node, whose log explains it.
type nodeError struct {
	node string
	error
}

func (e nodeError) Unwrap() error { return e.error }

// explain adds the last log lines of the nodes that failed; without one it returns the error as it is.
func (l *Lab) explain(err error) error {
	var failed nodeError
	if !errors.As(err, &failed) {
		return err
	}
	n, nodeErr := l.node(failed.node)
	if nodeErr != nil {
		return err
	}
	var b strings.Builder
	for _, f := range logFiles {
		for _, line := range (&tail{node: n, file: f}).lastLines(8) {
			_, _ = fmt.Fprintf(&b, "\n  %s %s: %s", n.Name, f, line)
		}
	}
	if b.Len() == 0 {
		return err
	}
	return fmt.Errorf("%w\nthe last that %s logged:%s", err, n.Name, b.String())
}
