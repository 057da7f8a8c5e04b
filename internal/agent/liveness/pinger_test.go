package liveness

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/boottime"
)

func TestMemberThatAnswersHeartbeatsNeedNotBePinged(t *testing.T) {
	a := newAnswered()
	if a.lately("b", time.Hour) {
		t.Fatal("nobody has answered yet")
	}
	a.note("b", boottime.Now()-time.Minute)
	if a.lately("b", time.Second) || !a.lately("b", time.Hour) {
		t.Fatal("what counts is when the answered heartbeat was sent")
	}
	a.note("b", boottime.Now())
	a.over("b")
	if a.lately("b", time.Hour) {
		t.Fatal("a stream that ended says nothing of the member any more")
	}
	select {
	case <-a.ended:
	default:
		t.Fatal("the end of a stream asks for a ping")
	}
}

// TestMemberThatSendsHeartbeatsNeedNotBePinged counts the calls that a replica makes to an idle primary.
func TestMemberThatSendsHeartbeatsNeedNotBePinged(t *testing.T) {
	v := NewVoter(nil, func() {}, slog.New(slog.DiscardHandler))
	var calls atomic.Int32
	p := NewPinger(PingConfig{
		Ping:    func(context.Context, ag.Replica) error { calls.Add(1); return ErrRefused },
		Members: func() []ag.Replica { return []ag.Replica{{ID: "a"}} },
		Beats:   v.Beats,
		Profile: func() ag.Profile { return ag.Profile{Beat: time.Hour} },
		Changed: func() {},
	}, NewHeartbeater(HeartbeatConfig{}))
	rounds := func(n int, want int32, refused bool, why string) {
		t.Helper()
		calls.Store(0)
		for round := range n {
			p.once(t.Context(), round%askAll == 0)
		}
		if got := calls.Load(); got != want || p.Reach().Refused("a") != refused {
			t.Fatalf("%s: %d calls, refused %v; want %d, %v", why, got, p.Reach().Refused("a"), want, refused)
		}
	}
	rounds(6, 6, true, "a member that sends nothing")
	v.began("a", "x")
	rounds(6, 6, true, "a stream without a heartbeat")
	v.beat("a", "x", 1)
	v.members["a"].beat += time.Hour // however slow this machine is
	rounds(12, 2, false, "a member that sends heartbeats")
	v.over("a", "x", false)
	rounds(6, 6, true, "a stream that ended")
}

// TestSilenceIsOfTheNodeThatJoined holds that a node which joins by the name of one that has left is not said to be
// silent for as long as that one.
func TestSilenceIsOfTheNodeThatJoined(t *testing.T) {
	members := []ag.Replica{{ID: "a"}}
	var answer error
	p := NewPinger(PingConfig{
		Ping:    func(context.Context, ag.Replica) error { return answer },
		Members: func() []ag.Replica { return members },
		Beats:   func(ag.ReplicaID, time.Duration) bool { return false },
		Profile: func() ag.Profile { return ag.Profile{Beat: time.Hour} },
		Changed: func() {},
	}, NewHeartbeater(HeartbeatConfig{}))
	p.once(t.Context(), true)
	answer = ErrRefused
	p.once(t.Context(), true)
	if p.Reach().Heard("a").IsZero() {
		t.Error("it was heard, and is a member")
	}
	for _, now := range [][]ag.Replica{{}, {{ID: "a"}}} {
		members = now
		p.once(t.Context(), true)
		if at := p.Reach().Heard("a"); !at.IsZero() {
			t.Errorf("with %d members, a was heard at %v", len(now), at)
		}
	}
}

// TestBeats holds that a heartbeat of long ago is no sign of life.
func TestBeats(t *testing.T) {
	v := NewVoter(nil, func() {}, slog.New(slog.DiscardHandler))
	v.began("a", "x")
	v.beat("a", "x", 1)
	v.members["a"].beat = boottime.Now() - time.Minute
	if v.Beats("a", time.Second) || !v.Beats("a", time.Hour) || v.Beats("b", time.Hour) {
		t.Fatal("what counts is when the newest heartbeat came")
	}
}
