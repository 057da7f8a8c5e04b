package liveness

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/ag/silence"
	"github.com/coteriedb/coterie/internal/lib/boottime"
)

// An answer lease of an earlier epoch cannot be extended by a voter that has acknowledged a later one.
func TestLaterEpochEndsEarlierOnes(t *testing.T) {
	v := NewVoter(nil, nil, slog.New(slog.DiscardHandler))
	v.Resume()
	if !v.acknowledge(3) || !v.acknowledge(4) {
		t.Fatal("not acknowledged")
	}
	if v.acknowledge(3) {
		t.Error("a heartbeat of an earlier epoch was acknowledged after one of a later epoch")
	}
}

// The time in which a member did not lead is no pause of its rhythm when it leads again.
func TestNewLeadershipIsANewRhythm(t *testing.T) {
	v := NewVoter(nil, func() {}, slog.New(slog.DiscardHandler))
	now := time.Hour
	defer boottime.SetForTest(func() time.Duration { return now })()
	if !v.began("a", "a-1") {
		t.Fatal("refused")
	}
	lead := func(e ag.Epoch) (said string) {
		for range 50 {
			now += 100 * time.Millisecond
			v.beat("a", "a-1", e)
		}
		w := Watched{Leader: "a", Judge: true, Beat: 100 * time.Millisecond, Limits: silence.Limits{Floor: 1500 * time.Millisecond, Most: 6500 * time.Millisecond}}
		v.judge(w, now, 0)
		return v.doubts.said
	}
	if said := lead(3); !strings.Contains(said, "every 100ms") || !strings.Contains(said, "1.6s is unusual") {
		t.Error(said)
	}
	now += time.Minute
	if said := lead(5); !strings.Contains(said, "1.6s is unusual") {
		t.Error(said)
	}
}
