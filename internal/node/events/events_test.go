package events

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestEachEventOnce holds that an event is told of once however often the node lists it, that those from before are
// not, and that no more is remembered than the node lists.
func TestEachEventOnce(t *testing.T) {
	t.Parallel()
	list := []Event{{What: "before"}}
	f := NewFeed(func() []Event { return list })
	list = append(list, Event{What: "a"}, Event{What: "b"}, Event{What: "b"})
	if got := f.Next(); len(got) != 2 || got[0].What != "a" || got[1].What != "b" {
		t.Errorf("%v", got)
	}
	if got := f.Next(); got != nil {
		t.Errorf("told again: %v", got)
	}
	list = list[2:]
	if got := f.Next(); got != nil || len(f.told) != 1 {
		t.Errorf("%v; %d are remembered", got, len(f.told))
	}
}

// TestAClockThatIsSetBack holds that an event is told of whose time is before that of the start, and of every event
// before it: the node's clock was set back.
func TestAClockThatIsSetBack(t *testing.T) {
	t.Parallel()
	now := time.Now()
	list := []Event{{At: now, What: "before"}}
	f := NewFeed(func() []Event { return list })
	list = append([]Event{{At: now.Add(-time.Hour), What: "took over"}}, list...)
	if got := f.Next(); len(got) != 1 || got[0].What != "took over" {
		t.Errorf("%v", got)
	}
	list = []Event{{At: now.Add(-time.Hour), What: "took over"}, {At: now.Add(-time.Hour).In(time.FixedZone("x", 3600)), What: "took over"}}
	if got := f.Next(); got != nil {
		t.Errorf("told again: %v", got)
	}
}

// TestLog holds that a log has each event once, with its parts, also one of the node's last moment.
func TestLog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var text bytes.Buffer
		list := []Event{{What: "before"}}
		run := Log(func() []Event { return list }, slog.New(slog.NewTextHandler(&text, nil)))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- run(ctx) }()
		time.Sleep(2 * lookEvery)
		list = append(list, Event{Group: "g", Node: "n1", Epoch: 3, Kind: "leadership", What: "took over", Because: "it was chosen", At: time.Unix(5, 0)})
		time.Sleep(2 * lookEvery)
		synctest.Wait()
		list = append(list, Event{What: "ended"})
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		got := text.String()
		if strings.Count(got, "\n") != 2 || strings.Contains(got, "before") || !strings.Contains(got, `msg="took over" event=leadership group=g node=n1 epoch=3 because="it was chosen" at=1970-01-01T00:00:05Z`) || !strings.Contains(got, "msg=ended") {
			t.Errorf("%s", got)
		}
	})
}
