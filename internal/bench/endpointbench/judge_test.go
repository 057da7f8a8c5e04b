package endpointbench

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestQuotients(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ ours, theirs, want []float64 }{
		{[]float64{10, 20}, []float64{5, 4}, []float64{2, 5}},
		{[]float64{10, 20, 30}, []float64{5, 10}, []float64{2, 2, 3}}, // the last of theirs serves for the rest
		{nil, nil, nil},
	} {
		if got := quotients(tt.ours, tt.theirs); !slices.Equal(got, tt.want) {
			t.Errorf("%v over %v: %v, want %v", tt.ours, tt.theirs, got, tt.want)
		}
	}
}

// TestTable checks that the published figures stand beside ours, and a run with other rows is named so.
func TestTable(t *testing.T) {
	t.Parallel()
	s := &Samples{Runs: []tunnelRun{{Link: "wan-good", Arm: "coterie", Seconds: 12.34, Rows: 10000}, {Link: "wan-bad", Arm: "ssh -C", Random: true, Seconds: 60, Rows: 17}}}
	var out strings.Builder
	if err := s.Table(&out); err != nil {
		t.Fatal(err)
	}
	var got []string
	for l := range strings.Lines(out.String()) {
		got = append(got, strings.Join(strings.Fields(l), " "))
	}
	want := []string{
		"link way seconds rows", "a VPN published: standard 142.5 10000", "a VPN published: tunnel 82.2 10000",
		"wan-good coterie 12.3 10000", "wan-bad ssh -C, random 60.0 17",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestPartsThatFail checks that each figure of a part that fails, or whose bed cannot be made, has the reason, that
// those which were not asked for have another, and that the other parts run.
func TestPartsThatFail(t *testing.T) {
	t.Parallel()
	var said strings.Builder
	b := &EndpointBench{Progress: &said, O: EndpointOptions{Only: []string{"bad", "good", "bedless"}}}
	ran := ""
	part := func(name string, err error) endpointPart {
		return endpointPart{name, []string{name + "-1", name + "-2"}, func(context.Context) error {
			ran += name + " "
			return err
		}}
	}
	closed := 0
	open := func(context.Context) (func() error, error) { return func() error { closed++; return nil }, nil }
	b.parts(t.Context(), []endpointPart{part("bad", errors.New("no\nlink")), part("other", nil), part("good", nil)}, open)
	if ran != "bad good " || closed != 1 {
		t.Errorf("ran %q, closed %d times", ran, closed)
	}
	b.parts(t.Context(), []endpointPart{part("bedless", nil)}, func(context.Context) (func() error, error) { return nil, errors.New("needs root") })
	got := map[string]string{}
	for _, f := range b.Figures {
		got[f.Name] = f.NotRun
	}
	for name, want := range map[string]string{"bad-1": "no; link", "bad-2": "no; link", "other-1": "not among --only", "bedless-2": "needs root"} {
		if !strings.Contains(got[name], want) {
			t.Errorf("%s: %q, want %q", name, got[name], want)
		}
	}
	if _, made := got["good-1"]; made {
		t.Errorf("a part that ran makes its figures itself: %q", got)
	}
}

func TestLastLines(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"a\nb\nc\n": "b\nc", "a": "a", "": ""} {
		if got := lastLines(text, 2); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
