package walstream

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/endpoint"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/endpoint/link"
	"github.com/coteriedb/coterie/internal/lib/codec"
	"github.com/coteriedb/coterie/internal/node/membership"
	"github.com/coteriedb/coterie/internal/postgres/replication"
)

func TestDescribeStatus(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	a := describeStatus(link.Status{
		Peer: "n2", Dialled: true, RTT: 1500 * time.Microsecond, Sent: 300, SentEncoded: 100, Reason: "loss above 1 %", Carried: 7,
		Legs: []link.LegStatus{
			{Kind: "tcp", Congestion: "cubic", Rate: 1},
			{Kind: "quic", Congestion: "bbr", Rate: 2, Main: true, Via: "n3"},
		},
		Events: []link.Event{{At: at, What: "leg lost", Reason: "reset"}},
	})
	if a.Peer != "n2" || !a.Dialled || a.RTT != 1.5 || a.Ratio != 3 || a.Carried != 7 {
		t.Errorf("%+v", a)
	}
	if !slices.Equal(a.Legs, []string{"tcp cubic", "quic bbr by way of n3"}) {
		t.Errorf("legs %q", a.Legs)
	}
	if a.Transport != "quic" || a.Congestion != "bbr" || a.Rate != 2 || a.Via != "n3" {
		t.Errorf("the main leg is not the one that is shown: %+v", a)
	}
	if a.Reason != "n2 does not answer directly, and n3 relays; loss above 1 %" {
		t.Errorf("reason %q", a.Reason)
	}
	if len(a.Events) != 1 || a.Events[0].What != "leg lost" || !a.Events[0].At.Equal(at) {
		t.Errorf("events %+v", a.Events)
	}
	a = describeStatus(link.Status{Peer: "n2", Legs: []link.LegStatus{{Kind: "tcp"}}}) // between two main legs
	if a.Transport != "" || a.Via != "" || a.Reason != "" || a.Ratio != 1 || !slices.Equal(a.Legs, []string{"tcp"}) {
		t.Errorf("without a main leg: %+v", a)
	}
}

func links(options map[ag.ReplicaID]ag.ReplicaOptions) *Links {
	return NewLinks("n1", func(id ag.ReplicaID) ag.ReplicaOptions { return options[id] }, slog.New(slog.DiscardHandler), func(context.Context, ag.ReplicaID, net.Conn) {})
}

// TestOptionsInForce checks that a link takes the options of its secondary as they are at each use, and the defaults
// for options that a newer version may have written.
func TestOptionsInForce(t *testing.T) {
	t.Parallel()
	options := map[ag.ReplicaID]ag.ReplicaOptions{}
	l := links(options)
	compression := l.config("n2").Compression
	if !compression().Auto || l.prefer() != link.PreferAuto {
		t.Errorf("without options: %+v, %v", compression(), l.prefer())
	}
	options["n2"] = ag.ReplicaOptions{LogCompression: "ZSTD:3"}
	options["n1"] = ag.ReplicaOptions{LogCompression: "OFF", Transport: "TCP"}
	if c := compression(); c.Auto || c == (codec.Setting{}) {
		t.Errorf("the compression of n2: %+v", c)
	}
	if p, err := link.ParsePreference("TCP"); err != nil || l.prefer() != p {
		t.Errorf("the transport of n1: %v", l.prefer())
	}
	options["n2"] = ag.ReplicaOptions{LogCompression: "BROTLI"}
	options["n1"] = ag.ReplicaOptions{Transport: "PIGEON"}
	if !compression().Auto || l.prefer() != link.PreferAuto {
		t.Errorf("options of a newer version: %+v, %v", compression(), l.prefer())
	}
}

// TestDialersAreKept checks that a dialer, which knows the path, serves all links to one address, and that a replica
// that moved has a path of its own.
func TestDialersAreKept(t *testing.T) {
	t.Parallel()
	l := links(nil)
	n2 := ag.Replica{ID: "n2", Endpoint: "10.0.0.2:5022"}
	first := l.dialer(n2)
	if l.dialer(n2) != first {
		t.Error("a second link has a dialer of its own")
	}
	n2.Endpoint = "10.0.1.2:5022"
	if l.dialer(n2) == first {
		t.Error("a replica that moved has the path of its old address")
	}
	for err, final := range map[error]bool{
		&endpoint.RefusedError{}: true, endpoint.ErrIdentity: true, endpoint.ErrClosed: true, errors.New("connection refused"): false, context.DeadlineExceeded: false,
	} {
		if got := first.Final(err); got != final {
			t.Errorf("%v ends the link: %v", err, got)
		}
	}
}

// TestNoLinks checks what is told before any link exists, and that only connections of the endpoint are taken.
func TestNoLinks(t *testing.T) {
	t.Parallel()
	l := links(nil)
	if len(l.Status()) > 0 || l.Describe() != nil {
		t.Errorf("%v %v", l.Status(), l.Describe())
	}
	near, far := net.Pipe()
	defer func() { _, _ = near.Close(), far.Close() }()
	l.Serve(t.Context(), certs.Identity{ID: "n2"}, far) // returns at once
	l.Close()
}

// TestPathRefusals checks that a path is described to other members only.
func TestPathRefusals(t *testing.T) {
	t.Parallel()
	m := membership.New("n1", config.Layout{}, slog.New(slog.DiscardHandler))
	m.Set(ag.Group{Replicas: []ag.Replica{{ID: "n1"}, {ID: "n2"}}})
	p := &Paths{Self: "n1", Members: m, Links: links(nil)}
	for _, id := range []ag.ReplicaID{"n1", "n9", ""} {
		if l, err := p.Describe(t.Context(), id); err == nil || err.Error() != string(id)+" is no other member of this group" {
			t.Errorf("%q: %+v, %v", id, l, err)
		}
	}
}

// TestFacts checks that a source tells the last timeline and its start; before a promotion there is none.
func TestFacts(t *testing.T) {
	t.Parallel()
	d := decider{}
	d.facts.Leading, d.facts.Epoch = true, 3
	if f := streams(&files{}, d).Facts(); !f.Leading || f.Epoch != 3 || f.TLI != 0 || f.Switch != 0 {
		t.Errorf("%+v", f)
	}
	d.facts.Timelines = []ag.TimelineEntry{{TLI: 1}, {TLI: 4, Parent: 1, Switch: 0x2000}}
	if f := streams(&files{}, d).Facts(); f.TLI != 4 || f.Switch != 0x2000 || len(f.Timelines) != 2 {
		t.Errorf("%+v", f)
	}
}

// TestUpstreamStatus checks that a refusal counts only for the source and the epoch that gave it: a copy that diverged
// from a former leader may be a prefix of the new one's history.
func TestUpstreamStatus(t *testing.T) {
	t.Parallel()
	of := func(code string) replication.UpstreamStatus {
		return replication.UpstreamStatus{Replica: "n2", Epoch: 3, Held: 1, AnswerFrom: "n2", AnswerEpoch: 3, AnswerAt: time.Second, Answer: replication.Answer{Code: code}}
	}
	another, earlier, none := of(replication.CodeDiverged), of(replication.CodeGone), of(replication.CodeDiverged)
	another.AnswerFrom, earlier.AnswerEpoch, none.AnswerAt = "n3", 2, 0
	for name, tt := range map[string]struct {
		s              replication.UpstreamStatus
		diverged, gone bool
	}{
		"it diverged": {of(replication.CodeDiverged), true, false}, "the WAL is gone": {of(replication.CodeGone), false, true}, "another refusal": {of("busy"), false, false},
		"another source": {another, false, false}, "an earlier epoch": {earlier, false, false}, "no answer yet": {none, false, false},
	} {
		if got := describeUpstream(tt.s); got.Diverged != tt.diverged || got.Gone != tt.gone || !got.Held || got.Connected || got.Source != "n2" || got.Epoch != 3 {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
