package linkem

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"
)

// request is a request of a Remote, one JSON object per line. Add names a node; Set has From.
type request struct {
	Add   string `json:"add,omitempty"`
	From  string `json:"from,omitempty"`
	To    string `json:"to,omitempty"`
	Shape *Shape `json:"shape,omitempty"` // nil with From: the first shape again
	Stats bool   `json:"stats,omitempty"`
}

// reply answers a request; it always lists the nodes.
type reply struct {
	Error string                `json:"error,omitempty"`
	Lab   string                `json:"lab"`
	Addrs map[string]netip.Addr `json:"addrs"`
	Stats []Stats               `json:"stats,omitempty"`
}

// maxLine bounds what either side reads: counters of a full network are about 300 bytes per direction.
const maxLine = 32 << 20

// Serve does what a Remote at the other end of c asks, until c ends. A network wants a process of its own: where other
// goroutines are busy, its packets are late.
func (n *Network) Serve(c io.ReadWriter) error {
	lines := bufio.NewScanner(c)
	lines.Buffer(nil, maxLine)
	out := json.NewEncoder(c)
	for lines.Scan() {
		var q request
		err := json.Unmarshal(lines.Bytes(), &q)
		if err == nil {
			err = n.perform(q)
		}
		a := reply{Lab: n.o.Lab, Addrs: n.addrs()}
		if err != nil {
			a.Error = err.Error()
		}
		if q.Stats {
			a.Stats = n.Stats()
		}
		if err := out.Encode(a); err != nil {
			return fmt.Errorf("answer: %w", err)
		}
	}
	return lines.Err()
}

func (n *Network) perform(q request) error {
	switch {
	case q.Add != "":
		return n.Add(q.Add)
	case q.From == "":
		return nil
	case q.Shape == nil:
		return n.Set(q.From, q.To, n.o.Shape)
	}
	return n.Set(q.From, q.To, *q.Shape)
}

func (n *Network) addrs() map[string]netip.Addr {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := map[string]netip.Addr{}
	for _, p := range n.ports {
		all[p.node] = n.addr(p)
	}
	return all
}

// Remote is a Network that another process serves. Its methods are those of Network.
type Remote struct {
	mu    sync.Mutex // one request at a time
	lines *bufio.Scanner
	out   *json.Encoder
	last  reply
}

// Connect talks to Serve at the other end of c.
func Connect(c io.ReadWriter) (*Remote, error) {
	r := &Remote{lines: bufio.NewScanner(c), out: json.NewEncoder(c)}
	r.lines.Buffer(nil, maxLine)
	_, err := r.ask(request{})
	return r, err
}

func (r *Remote) ask(q request) (reply, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.out.Encode(q); err != nil {
		return reply{}, fmt.Errorf("ask the process of the lab's network: %w", err)
	}
	if !r.lines.Scan() {
		err := r.lines.Err()
		if err == nil {
			err = io.ErrUnexpectedEOF
		}
		return reply{}, fmt.Errorf("the process of the lab's network has ended: %w", err)
	}
	var a reply
	if err := json.Unmarshal(r.lines.Bytes(), &a); err != nil {
		return reply{}, fmt.Errorf("the process of the lab's network answered %.100q: %w", r.lines.Bytes(), err)
	}
	r.last = a
	if a.Error != "" {
		return a, errors.New(a.Error)
	}
	return a, nil
}

// Add makes one more node; see Network.Add.
func (r *Remote) Add(node string) error {
	_, err := r.ask(request{Add: node})
	return err
}

// Set changes links; see Network.Set.
func (r *Remote) Set(from, to string, s Shape) error {
	if from == "" {
		return errors.New(`no node ""`)
	}
	_, err := r.ask(request{From: from, To: to, Shape: &s})
	return err
}

// Heal makes every link as it was at first.
func (r *Remote) Heal() error {
	_, err := r.ask(request{From: Any, To: Any})
	return err
}

// Stats returns the counters of every direction; see Network.Stats.
func (r *Remote) Stats() ([]Stats, error) {
	a, err := r.ask(request{Stats: true})
	return a.Stats, err
}

// Addr returns the address of a node, the zero Addr if there is none.
func (r *Remote) Addr(node string) netip.Addr {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last.Addrs[node]
}

// Namespace returns the name of a node's network namespace; "" for Client.
func (r *Remote) Namespace(node string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return Namespace(r.last.Lab, node)
}

// Do calls f on a thread that is in the node's network; see Enter.
func (r *Remote) Do(node string, f func() error) error { return do(r.Namespace(node), f) }

// Overruns returns how many packets of a node no link ever saw; see Network.Overruns.
func (r *Remote) Overruns(node string) (uint64, error) {
	r.mu.Lock()
	lab := r.last.Lab
	r.mu.Unlock()
	return overruns(lab, node)
}
