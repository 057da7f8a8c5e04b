package check

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

func TestRun(t *testing.T) {
	var r Registry
	r.Add("store", 0, func(context.Context) ([]Finding, error) {
		return []Finding{{Level: OK, What: "three voters"}, {Level: Warning, What: "slow disk"}}, nil
	})
	r.Add("fence", 0, func(context.Context) ([]Finding, error) { return nil, errors.New("no /proc") })
	r.Add("links", 20*time.Millisecond, func(context.Context) ([]Finding, error) { select {} })
	found := r.Run(t.Context())
	var got []string
	for _, f := range found {
		got = append(got, f.Area+" "+string(f.Level)+" "+f.What)
	}
	want := "fence failed not checked: no /proc; links failed not checked: no answer within 20ms; store warning slow disk; store ok three voters"
	if s := strings.Join(got, "; "); s != want {
		t.Errorf("found %s\nwant %s", s, want)
	}
	if w := Worst(found); w != Failed {
		t.Errorf("worst is %s", w)
	}
	if f := r.Run(t.Context(), "store"); len(f) != 2 || Worst(f) != Warning || Worst(nil) != OK {
		t.Errorf("%v", f)
	}
	if a := strings.Join(r.Areas(), " "); a != "fence links store" {
		t.Error(a)
	}
}

// A probe that panics is a problem that names it, and the other probes still report.
func TestPanicOfAProbe(t *testing.T) {
	var r Registry
	r.Add("store", 0, func(context.Context) ([]Finding, error) { return []Finding{{Level: OK, What: "three voters"}}, nil })
	r.Add("fence", 0, func(context.Context) ([]Finding, error) {
		var none []Finding
		return none[:1], nil
	})
	found := r.Run(t.Context())
	if len(found) != 2 || Worst(found) != Problem || found[1].What != "three voters" {
		t.Fatalf("%+v", found)
	}
	f := found[0]
	if f.Area != "fence" || !strings.Contains(f.What, "the probe of fence panicked: runtime error: slice bounds out of range") ||
		!strings.Contains(f.Why, "TestPanicOfAProbe") || f.Run == "" {
		t.Errorf("%+v", f)
	}
}
