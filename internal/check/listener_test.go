package check

import (
	"context"
	"errors"
	"strings"
	"testing"
)

func TestJudgeListenerName(t *testing.T) {
	dns := func(found ...string) func(context.Context, string) ([]string, error) {
		return func(context.Context, string) ([]string, error) {
			if found == nil {
				return nil, errors.New("no such host")
			}
			return found, nil
		}
	}
	for _, c := range []struct {
		name, want string
		addresses  []string
		found      []string
	}{
		{"not there", "has no address here: no such host", []string{"10.0.0.9"}, nil},
		{"elsewhere", "leads to 10.0.0.1, and the listener is at 10.0.0.9", []string{"10.0.0.9"}, []string{"10.0.0.1"}},
		{"one of two", "leads to 10.0.0.9, and the listener is at 10.0.0.9, fd00::9", []string{"10.0.0.9", "fd00::9"}, []string{"10.0.0.9"}},
		{"all", "", []string{"10.0.0.9", "fd00::9"}, []string{"fd00::9", "10.0.0.9"}},
		{"the nodes' own", "", nil, []string{"10.0.0.1"}},
	} {
		got := judgeListenerName(t.Context(), "shop-l", c.addresses, dns(c.found...))
		if c.want == "" && len(got) != 0 || c.want != "" && (len(got) != 1 || !strings.Contains(got[0].What, c.want) || got[0].Run == "") {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
	if got := judgePlaces([][]any{{"n1", "10.0.0.9/24", "no right; run it by the unit"}}); len(got) != 1 || got[0].Run != "run it by the unit" {
		t.Errorf("%+v", got)
	}
}

func TestJudgeOffline(t *testing.T) {
	off, on, failed := []any{"10.0.0.9", "OFFLINE"}, []any{"10.0.1.9", "ONLINE"}, []any{"10.0.2.9", "FAILED"}
	why := []string{"no device of this node is in 10.0.0.0/24"}
	for _, c := range []struct {
		name  string
		held  [][]any
		why   []string
		found int
	}{
		{"none is up", [][]any{off, off}, why, 1},
		{"one is", [][]any{off, on}, why, 0},
		{"a failure is told elsewhere", [][]any{off, failed}, why, 0},
		{"a listener without addresses", nil, nil, 0},
		{"no primary", [][]any{off}, nil, 0},
	} {
		if got := judgeOffline(c.held, c.why); len(got) != c.found {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
}
