package web

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// TestManyEventsAtOnce holds that a stream which gets many events at once, as the first one of an agent's life
// does, is not ended as one that reads slowly, and gets all of them.
func TestManyEventsAtOnce(t *testing.T) {
	t.Parallel()
	h := newHub(nil, nil)
	s, _, _, _ := h.enter("", maxStreams)
	var many []Event
	for i := range 10 * streamQueue {
		many = append(many, Event{Node: "n1", At: fmt.Sprintf("%06d", i), Kind: "link"})
	}
	h.add(many)
	if h.open() != 1 || h.dropped.Load() != 0 {
		t.Fatal("the stream was ended")
	}
	var got strings.Builder
	for len(s.out) > 0 {
		got.Write(<-s.out)
	}
	if n := strings.Count(got.String(), "event: event\n"); n != len(many) {
		t.Errorf("%d events, want %d", n, len(many))
	}
	if last := fmt.Sprintf("id: %s-%d\n", h.life, len(many)); !strings.Contains(got.String(), last) {
		t.Errorf("the last one has not %q", last)
	}
}

// TestStreamsOutliveAPanic holds that a bug in the look for the status or the events ends neither the node nor the
// streams.
func TestStreamsOutliveAPanic(t *testing.T) {
	t.Parallel()
	var status, events atomic.Int32
	s := New(Config{Logger: slog.New(slog.DiscardHandler)})
	s.hub = newHub(func() []byte {
		if status.Add(1) == 1 {
			panic("a bug")
		}
		return []byte(`{"epoch":1}`)
	}, func(context.Context) ([]Event, error) {
		if events.Add(1) == 1 {
			panic("a bug")
		}
		return []Event{{Node: "n1", At: "1", What: "it goes on"}}, nil
	})
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { s.goesOn(ctx, "status", s.hub.run) })
	running.Go(func() { s.goesOn(ctx, "events", s.hub.runEvents) })
	defer func() { stop(); running.Wait() }()
	x, _, _, _ := s.hub.enter("", maxStreams)
	for all := ""; !strings.Contains(all, `{"epoch":1}`) || !strings.Contains(all, "it goes on"); {
		all += string(<-x.out)
	}
}

// TestEventsFollowATurn holds that the status which turns, and an event which its node notes a moment later, are told
// of within 300 ms, although the nodes are asked once a second else.
func TestEventsFollowATurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		doc, known, asked := `{"epoch":1,"replicas":[{"name":"n2"}]}`, []Event(nil), 0
		h := newHub(func() []byte {
			mu.Lock()
			defer mu.Unlock()
			return []byte(doc)
		}, func(context.Context) ([]Event, error) {
			mu.Lock()
			defer mu.Unlock()
			asked++
			return slices.Clone(known), nil
		})
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { h.run(ctx) })
		running.Go(func() { h.runEvents(ctx) })
		defer func() { stop(); running.Wait() }()
		s, _, _, _ := h.enter("", maxStreams)
		time.Sleep(10*time.Second + 40*time.Millisecond)
		for len(s.out) > 0 {
			<-s.out
		}
		mu.Lock()
		if asked > 12 {
			t.Errorf("asked %d times in 10 s in which nothing happened", asked)
		}
		doc = `{"epoch":1,"replicas":[{"name":"n2","suspended":true}]}`
		mu.Unlock()
		began := time.Now()
		time.Sleep(150 * time.Millisecond)
		mu.Lock()
		known = append(known, Event{Node: "n1", At: "1", What: "suspended"})
		mu.Unlock()
		for all := ""; !strings.Contains(all, `"suspended":true`) || !strings.Contains(all, `"what":"suspended"`); {
			all += string(<-s.out)
		}
		if took := time.Since(began); took > 300*time.Millisecond {
			t.Errorf("told after %v", took)
		}
	})
}

// TestQuietNode holds that an event is sent once, also if its node has told of nothing else while others told of more
// than a stream can resume from, and that what is remembered for that is bounded.
func TestQuietNode(t *testing.T) {
	t.Parallel()
	h := newHub(nil, nil)
	quiet := Event{Node: "n1", At: "000000"}
	const others = 2*maxRing + 10
	for i := range others {
		h.add([]Event{quiet, {Node: "n2", At: fmt.Sprintf("%06d", i+1)}})
	}
	if h.next != others+2 {
		t.Errorf("%d events, want %d", h.next-1, others+1)
	}
	if n := len(h.past); n > maxRing {
		t.Errorf("%d past events are remembered", n)
	}
}

// TestEveryAnswerIsJSON holds that a view or a query with a number that JSON does not have is answered with a document,
// and not with an empty body.
func TestEveryAnswerIsJSON(t *testing.T) {
	t.Parallel()
	b := serve(t, newGroup())
	b.logIn("vera")
	code, text, _ := b.do("POST", "/api/v1/query", `{"sql":"SELECT infinite"}`)
	if code != 200 || !strings.Contains(string(text), `"rows":[["Infinity",1.5]]`) {
		t.Errorf("%d %q", code, text)
	}
}

// TestHistory holds the document of the charts: its spans, points that are not known, and that many who ask at once
// cost what one does.
func TestHistory(t *testing.T) {
	t.Parallel()
	g := newGroup()
	b := serve(t, g)
	b.logIn("vera")
	for _, query := range []string{"", "?span=", "?span=year", "?span=hour%00"} {
		if code, text, _ := b.do("GET", "/api/v1/history"+query, ""); code != 400 || !strings.Contains(string(text), "hour or day") {
			t.Errorf("%q: %d %s", query, code, text)
		}
	}
	for range 20 {
		for _, span := range []string{"hour", "day"} {
			code, text, _ := b.do("GET", "/api/v1/history?span="+span, "")
			if code != 200 || !strings.Contains(string(text), `"mean":[1,null,3e+09]`) {
				t.Fatalf("%s: %d %s", span, code, text)
			}
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if n := len(g.asked); n < 2 || n > 6 {
		t.Errorf("40 requests were answered by %d looks: %v", n, g.asked)
	}
}

// TestPlan holds that everybody who may look may have a member planned, that the state of the group is part of what is
// found, and that nothing is run for it.
func TestPlan(t *testing.T) {
	t.Parallel()
	g := newGroup()
	b := serve(t, g)
	b.logIn("vera")
	ask := func(body string, want int, texts ...string) {
		t.Helper()
		code, text, _ := b.do("POST", "/api/v1/plan", body)
		for _, x := range texts {
			if code != want || !strings.Contains(string(text), x) {
				t.Errorf("%s: %d %s", body, code, text)
			}
		}
	}
	ask(`{"name":"n4","role":"replica","options":{"FAILOVER_MODE":"MANUAL"}}`, 200, "MODIFY REPLICA ON N'n4' WITH (FAILOVER_MODE = MANUAL)", "the name n4 is free", "coterie join TOKEN --name n4")
	ask(`{"name":"n1","role":"replica"}`, 200, "PROBLEM")
	ask(`{"name":"n4","role":"king"}`, 400, "replica or witness")
	ask(`[]`, 400, "not the JSON")
	g.mu.Lock()
	g.st.Quorum = false
	g.mu.Unlock()
	ask(`{"name":"n4","role":"replica"}`, 200, "the quorum does not answer")
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.ran)+len(g.asked)+len(g.noted) > 0 {
		t.Errorf("ran %v, asked %v, noted %v", g.ran, g.asked, g.noted)
	}
}

// apart are nodes that have joined each other and have no group.
func apart() ag.Group {
	g := ag.Group{ID: "i", Name: "g", Draft: true, CommitRule: ag.RuleQuorum, Profile: "default"}
	for i, id := range []ag.ReplicaID{"n1", "n2", "n3"} {
		g.Replicas = append(g.Replicas, ag.Replica{ID: id, Endpoint: string(id), Major: 17, Voter: true, Join: ag.Detached, Suspended: i > 0, AvailabilityMode: ag.SynchronousCommit, FailoverMode: ag.Automatic, Allow: ag.AllowReadOnly})
	}
	return g
}

// TestPlanOfAGroup holds that everybody who may look may have a group planned, that the state of the nodes is part of
// what is found, and that nothing is run for it.
func TestPlanOfAGroup(t *testing.T) {
	t.Parallel()
	g := newGroup()
	g.nodes = apart()
	g.tables = map[string]rows{"coterie.databases": {{"name", "present"}, {"shop", true}}}
	b := serve(t, g)
	b.logIn("vera")
	ask := func(body string, want int, texts ...string) {
		t.Helper()
		code, text, _ := b.do("POST", "/api/v1/plan/create", body)
		for _, x := range texts {
			if code != want || !strings.Contains(string(text), x) {
				t.Errorf("%s: %d %s, want %q", body, code, text, x)
			}
		}
	}
	const whole = `{"group":"Sales","databases":["shop","o'neil"],"options":{"LEASE_PROFILE":"FAST"},"replicas":[{"replica":"n1"},{"replica":"n2"}]}`
	ask(whole, 200, "these databases exist: [shop]", "these databases are created empty: [o'neil]", `"joins":["n2"]`, "JOIN REPLICA ON N'n2'", "CREATE AVAILABILITY GROUP [Sales]")
	ask(`{"group":"Sales","replicas":[{"replica":"n2"}]}`, 200, "PROBLEM", "none of the replicas is n1")
	ask(`{"group":"Sales","drop":"it"}`, 400, "not the JSON")
	ask(`[]`, 400, "not the JSON")
	ask(`{"group":"`+strings.Repeat("x", maxBody)+`"}`, 413, "too large")
	var leave [userQueries]func()
	for i := range leave {
		leave[i], _ = b.s.plans.enter("vera")
	}
	ask(whole, 429, "too many plans of this role")
	for _, f := range leave {
		f()
	}
	g.mu.Lock()
	g.cannot = fail.Refusedf("the host of n2 is slow")
	g.st.WriteOpen = false
	g.st.Replicas = append(g.st.Replicas, api.Replica{Name: "n2", Connected: "DISCONNECTED"})
	g.mu.Unlock()
	ask(whole, 200, "the host of n2 is slow", "n1 does not take writes now", "n2 does not answer")
	g.mu.Lock()
	g.st.Quorum = false
	g.mu.Unlock()
	ask(whole, 200, "the quorum does not answer")
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.ran)+len(g.noted) > 0 {
		t.Errorf("ran %v, noted %v", g.ran, g.noted)
	}
}
