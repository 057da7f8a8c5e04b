package membercmd

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/ag/availability"
	"github.com/coteriedb/coterie/internal/cli/clitest"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// TestMember holds what the agent is asked for, and what is printed of its answer, under both spellings.
func TestMember(t *testing.T) {
	t.Parallel()
	a := clitest.NewAgent(t)
	a.On("Remove", func(any) (any, error) { return nil, nil }) //nolint:nilnil // the method has no answer
	a.On("CreateToken", func(any) (any, error) {
		return api.TokenResult{Token: "secret", Role: "witness", Command: "coterie witness secret"}, nil
	})
	a.On("Replace", func(any) (any, error) {
		return api.TokenResult{Token: "other", Role: "replica", Command: "coterie join other"}, nil
	})
	for _, tt := range []struct{ args, said, out string }{
		{"remove n3 --yes", "n3 is not a member any more\n", ""},
		{"remove n3 --yes --json", "n3 is not a member any more\n", `"member": "n3"`},
		{"add-token --role witness --ttl 1m", "on the new node, until ", "coterie witness secret\n"},
		{"add-token --json", "", `"token": "secret"`},
		{"replace n3 --yes --ttl 2h", "on the machine that replaces n3, until ", "coterie join other\n"},
		{"replace n3 --yes --json", "", `"token": "other"`},
	} {
		r := clitest.Run(t, Member(), a.Layout.Dir, strings.Fields(tt.args)...)
		if r.Err != nil || !strings.HasPrefix(r.Said, tt.said) || !strings.Contains(r.Out, tt.out) {
			t.Errorf("%s: %v, said %q, printed %q", tt.args, r.Err, r.Said, r.Out)
		}
	}
	if r := clitest.Run(t, Remove(), a.Layout.Dir, "n4", "--yes"); r.Err != nil {
		t.Error(r.Err)
	}
	if r := clitest.Run(t, Token(), a.Layout.Dir, "create"); r.Err != nil {
		t.Error(r.Err)
	}
	for method, want := range map[string][]any{
		"Remove":      {ag.ReplicaID("n3"), ag.ReplicaID("n3"), ag.ReplicaID("n4")},
		"CreateToken": {api.TokenRequest{Role: "witness", TTL: time.Minute}, api.TokenRequest{Role: "replica", TTL: 15 * time.Minute}, api.TokenRequest{Role: "replica", TTL: 15 * time.Minute}},
		"Replace":     {api.ReplaceRequest{Member: "n3", TTL: 2 * time.Hour}, api.ReplaceRequest{Member: "n3", TTL: time.Hour}},
	} {
		if diff := cmp.Diff(want, a.Asked(method)); diff != "" {
			t.Errorf("%s: %s", method, diff)
		}
	}
	for _, verb := range []string{"remove", "replace"} { // a script says that it means it
		clitest.Run(t, Member(), a.Layout.Dir, verb, "n3").Refused(t, 4, "nothing was changed: add --yes")
	}
	if n := len(a.Asked("Remove")) + len(a.Asked("Replace")); n != 5 {
		t.Errorf("%d requests", n)
	}
	a.On("Remove", func(any) (any, error) { return nil, fail.Refusedf("n1 is the primary") })
	clitest.Run(t, Member(), a.Layout.Dir, "remove", "n1", "--yes").Refused(t, 4, "n1 is the primary")
}

// TestNamesOfMembers holds that names ignore case, as in statements, and that a member which the group does not have is
// refused before anybody is asked to confirm.
func TestNamesOfMembers(t *testing.T) {
	t.Parallel()
	a := clitest.NewAgent(t)
	a.SetStatus(api.Status{Node: "n1", Quorum: true, Replicas: []api.Replica{{Name: "n1"}, {Name: "n3"}}})
	a.On("Remove", func(any) (any, error) { return nil, nil }) //nolint:nilnil // the method has no answer
	if r := clitest.Run(t, Member(), a.Layout.Dir, "remove", "N3", "--yes"); r.Err != nil || r.Said != "n3 is not a member any more\n" {
		t.Errorf("%v, said %q", r.Err, r.Said)
	}
	for _, verb := range []string{"remove", "replace"} {
		clitest.Run(t, Member(), a.Layout.Dir, verb, "n4").Refused(t, 2, `the group has no member "n4"; nothing was changed`)
		clitest.Run(t, Member(), a.Layout.Dir, verb, "").Refused(t, 2, "needs the member's name, and that is empty")
	}
	if diff := cmp.Diff([]any{ag.ReplicaID("n3")}, a.Asked("Remove")); diff != "" {
		t.Error(diff)
	}
}

// TestMoment holds that a time on another day has its date.
func TestMoment(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 26, 13, 5, 0, 0, time.UTC)
	for after, want := range map[time.Duration]string{15 * time.Minute: "13:20", 9000 * time.Hour: "2027-12-06 13:05", 11 * time.Hour: "2026-11-27 00:05"} {
		if got := moment(now.Add(after), now); got != want {
			t.Errorf("%v: %s, want %s", after, got, want)
		}
	}
}

// TestSlowRemoval holds that a removal which takes longer than the command waits is said to go on when it is run again.
func TestSlowRemoval(t *testing.T) {
	defer func(was time.Duration) { limit = was }(limit)
	limit = 50 * time.Millisecond
	a := clitest.NewAgent(t)
	done := make(chan struct{})
	defer close(done)
	slow := func(any) (any, error) { <-done; return api.TokenResult{}, nil }
	a.On("Remove", slow)
	a.On("Replace", slow)
	for _, args := range []string{"remove n3", "replace n3"} {
		clitest.Run(t, Member(), a.Layout.Dir, append(strings.Fields(args), "--yes")...).Refused(t, 3, "run it again, it continues: coterie member "+args)
	}
}

// TestNoAgent checks that every command names the command that starts the agent, with exit code 3.
func TestNoAgent(t *testing.T) {
	t.Parallel()
	dir, empty := clitest.NewStopped(t), t.TempDir()
	for _, args := range []string{"list", "add-token", "remove n2 --yes", "replace n2 --yes"} {
		clitest.Run(t, Member(), dir, strings.Fields(args)...).Refused(t, 3, "start it with: coterie agent --node "+dir)
		clitest.Run(t, Member(), empty, strings.Fields(args)...).Refused(t, 2, empty+" is not a node directory")
		clitest.Run(t, Member(), dir+"/none", strings.Fields(args)...).Refused(t, 2, "there is no node directory")
	}
}

// TestList holds that every member is listed with its vote, and that one which does not answer, or is awaited, comes
// with the command to run.
func TestList(t *testing.T) {
	t.Parallel()
	a := clitest.NewAgent(t)
	a.SetStatus(api.Status{Node: "n1", Awaited: []ag.ReplicaID{"n4"}, Replicas: []api.Replica{
		{Name: "n1", Role: ag.RolePrimary, Voter: true, Endpoint: "a:5022", Connected: "CONNECTED"},
		{Name: "n2", Role: ag.RoleResolving, Endpoint: "b:5022", Connected: "DISCONNECTED"},
		{Name: "w", Mode: ag.ConfigurationOnly, Voter: true, NoVote: "its disk is full", Endpoint: "w:5022", Connected: "CONNECTED"},
	}})
	r := clitest.Run(t, Member(), a.Layout.Dir, "list")
	want := "MEMBER KIND ROLE VOTE ENDPOINT STATE n1 replica PRIMARY yes a:5022 CONNECTED (this node) " +
		"n2 replica RESOLVING no b:5022 DISCONNECTED w witness no: its disk is full w:5022 CONNECTED n4 - no AWAITED"
	if got := strings.Join(strings.Fields(r.Out), " "); r.Err != nil || got != want {
		t.Errorf("%v, %s", r.Err, got)
	}
	for _, says := range []string{"coterie member replace n2", "coterie member replace n4", "coterie member remove n4"} {
		if !strings.Contains(r.Said, says) {
			t.Errorf("it does not say %q: %s", says, r.Said)
		}
	}
	for _, tt := range []struct {
		st   api.Status
		says string
	}{
		{api.Status{Node: "n4", Replicas: []api.Replica{{Name: "n1", Connected: "DISCONNECTED"}}, Availability: availability.Report{Removed: true}}, "n4 is no member of the group any more: this is what it saw last"},
		{api.Status{Node: "n1"}, "no majority of the quorum answers n1: this is what it saw last"},
		{api.Status{Node: "n1", Quorum: true}, ""},
	} {
		a.SetStatus(tt.st)
		if r := clitest.Run(t, Member(), a.Layout.Dir, "list"); r.Err != nil || !strings.Contains(r.Said, tt.says) || tt.says == "" && r.Said != "" || strings.Contains(r.Said, "replace") {
			t.Errorf("%v, %q, want %q", r.Err, r.Said, tt.says)
		}
	}
	a.SetStatus(api.Status{Quorum: true, Awaited: []ag.ReplicaID{"n4"}})
	if r := clitest.Run(t, Member(), a.Layout.Dir, "list", "--json"); r.Err != nil || !strings.Contains(r.Out, `"state": "AWAITED"`) {
		t.Errorf("%v, %s", r.Err, r.Out)
	}
}

// TestRemoveGivesAReplacementUp holds that a name which is only awaited is not told to have been a member.
func TestRemoveGivesAReplacementUp(t *testing.T) {
	t.Parallel()
	a := clitest.NewAgent(t)
	a.SetStatus(api.Status{Node: "n1", Awaited: []ag.ReplicaID{"n3"}})
	a.On("Remove", func(any) (any, error) { return nil, nil })
	for name, want := range map[string]string{"n3": "the replacement of n3 is given up: nobody is awaited by that name; a token that was made for it is refused", "n2": "n2 is not a member any more"} {
		if r := clitest.Run(t, Remove(), a.Layout.Dir, name, "--yes"); r.Err != nil || !strings.HasPrefix(r.Said, want) {
			t.Errorf("%s: %+v", name, r)
		}
	}
}
