package coverage

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coteriedb/coterie/internal/listener/continuity"
)

var kept = continuity.Prospect{Fate: continuity.Kept}

func ends(why string) continuity.Prospect {
	return continuity.Prospect{Fate: continuity.Ends, Why: why}
}

func group(n int, o continuity.Outlook) continuity.Group {
	return continuity.Group{Outlook: o, Sessions: n}
}

// An hour has the sums of its looks over all sessions, a day those of each application and user.
func TestSums(t *testing.T) {
	t.Parallel()
	var h History
	now := time.Date(2026, 11, 23, 10, 5, 0, 0, time.FixedZone("x", 1800))
	shop := continuity.Outlook{Application: "shop", User: "app", Failover: kept, Node: ends("a"), Server: kept, Transaction: ends("t")}
	jobs := continuity.Outlook{
		Application: "jobs", User: "app", Failover: continuity.Prospect{Fate: continuity.Likely, Why: "w"}, Node: ends("s"), Server: ends("s"), Transaction: kept,
		Statement: "CREATE TEMP TABLE",
	}
	h.take(now, []continuity.Group{group(3, shop), group(2, jobs)})
	more := jobs
	more.Failover, more.Transaction = ends("f"), continuity.Prospect{}
	h.take(now.Add(time.Minute), []continuity.Group{group(3, shop), group(2, jobs), group(5, more)})
	got := h.copied()
	if len(got.Hours) != 1 || len(got.Owners) != 2 {
		t.Fatalf("%+v", got)
	}
	hour := got.Hours[0]
	want := Span{
		Begin: time.Date(2026, 11, 23, 9, 0, 0, 0, time.UTC), Looks: 2, Sessions: 15, Open: 10,
		Failover: Share{10, map[string]int{"f (CREATE TEMP TABLE)": 5}}, Node: Share{0, map[string]int{"a": 6, "s (CREATE TEMP TABLE)": 9}},
		Server: Share{6, map[string]int{"s (CREATE TEMP TABLE)": 9}}, Replayed: Share{4, map[string]int{"t": 6}},
	}
	if !reflect.DeepEqual(hour, want) || hour.Node.Why() != "s (CREATE TEMP TABLE)" {
		t.Errorf("hour: %+v\nwant  %+v", hour, want)
	}
	first, second := got.Owners[0], got.Owners[1]
	if first.Application != "jobs" || first.Looks != 2 || first.Sessions != 9 || first.Failover.Kept != 4 || first.Open != 4 || first.Replayed.Kept != 4 || !first.Begin.Equal(now.UTC().Truncate(24*time.Hour)) {
		t.Errorf("jobs: %+v", first)
	}
	if second.Application != "shop" || second.Sessions != 6 || second.Failover.Kept != 6 || second.Node.Kept != 0 || second.Node.Why() != "a" {
		t.Errorf("shop: %+v", second)
	}
}

// A history has its bounds with any names of clients and after any time. A clock that was wrong hides nothing after the
// next look.
func TestBounds(t *testing.T) {
	t.Parallel()
	var h History
	now := time.Date(2026, 11, 23, 10, 5, 0, 0, time.UTC)
	var many []continuity.Group
	for i := range 3 * maxReasons {
		name := strings.Repeat("é", 60) + fmt.Sprint(i)
		many = append(many, group(1, continuity.Outlook{Application: fmt.Sprint(i, name), User: name, Node: ends(fmt.Sprint(i) + strings.Repeat("x", 1000))}))
	}
	many = append(many, group(7, continuity.Outlook{Others: true, Node: kept}))
	h.take(now.Add(100*365*24*time.Hour), many)
	for i := range 3 * maxHours {
		h.take(now.Add(time.Duration(i)*time.Hour), many)
	}
	now = now.Add(time.Duration(3*maxHours-1) * time.Hour)
	got := h.copied()
	if n := len(got.Hours); n != maxHours || !got.Hours[n-1].Begin.Equal(now.Truncate(time.Hour)) || len(got.Hours[n-1].Node.Not) != maxReasons || len(got.Hours[0].Node.Not) != 1 {
		t.Errorf("%d hours, the last %+v", n, got.Hours[n-1])
	}
	if len(got.Owners) != maxDays*(maxOwners+1) {
		t.Errorf("%d owners", len(got.Owners))
	}
	rest := got.Owners[len(got.Owners)-1]
	if !rest.Others || rest.Sessions != rest.Looks*(3*maxReasons-maxOwners+7) || rest.Node.Kept != 7*rest.Looks {
		t.Errorf("the rest: %d sessions of %d looks, %d kept", rest.Sessions, rest.Looks, rest.Node.Kept)
	}
	for _, o := range got.Owners {
		if len(o.Application) > maxName || len(o.User) > maxName || len(o.Node.Why()) > maxReason {
			t.Fatalf("%+v", o)
		}
	}
	if text, err := json.Marshal(got); err != nil || len(text) > maxFile/2 {
		t.Errorf("%d bytes, %v", len(text), err)
	}
	h.take(now.Add(-2*time.Hour), many)
	if n := len(h.Hours); h.Hours[n-1].Begin.After(now.Add(-2 * time.Hour)) {
		t.Error("hours of the future are kept")
	}
}

// A history survives the end of the agent, and a file that cannot be read or written costs history and nothing else.
func TestRecorder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "coverage.json")
	var text bytes.Buffer
	log := slog.New(slog.NewTextHandler(&text, nil))
	groups := []continuity.Group{group(3, continuity.Outlook{Application: "shop", User: "app", Node: ends("a")})}
	run := func(minutes int) (h History) {
		synctest.Test(t, func(t *testing.T) {
			r := New(path, func() []continuity.Group { return groups }, log)
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(minutes)*time.Minute+time.Second)
			defer cancel()
			if err := r.Run(ctx); err != nil {
				t.Error(err)
			}
			h = r.Read()
		})
		return h
	}
	if h := run(3); len(h.Hours) != 1 || h.Hours[0].Sessions != 9 || text.Len() != 0 {
		t.Errorf("%+v, %s", h, &text)
	}
	if h := run(2); h.Hours[0].Sessions != 15 || h.Owners[0].Looks != 5 || h.Owners[0].Node.Not["a"] != 15 || text.Len() != 0 {
		t.Errorf("after a restart: %+v, %s", h, &text)
	}
	for _, broken := range []string{"", "{", `{"version":2}`, `[]`, `{"version":1,"hours":[` + strings.Repeat("{},", maxHours) + `{}]}`} {
		text.Reset()
		if err := os.WriteFile(path, []byte(broken), 0o600); err != nil {
			t.Fatal(err)
		}
		if h := run(1); h.Hours[0].Sessions != 3 || !strings.Contains(text.String(), "begins anew") {
			t.Errorf("%q: %+v, %s", broken, h, &text)
		}
	}
	text.Reset()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(path, "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	if h := run(40); h.Hours[0].Sessions != 120 || strings.Count(text.String(), "is in memory only") != 1 {
		t.Errorf("%+v, %s", h, &text)
	}
	groups = nil
	r := New(path, func() []continuity.Group { panic("x") }, log)
	r.take()
	if !strings.Contains(text.String(), "panicked") {
		t.Errorf("%s", &text)
	}
}
