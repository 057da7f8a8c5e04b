package leavecmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/cli/clitest"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/provision"
)

// witness makes the node directory that of a witness, which holds no data.
func witness(t *testing.T, l config.Layout) {
	t.Helper()
	c := config.Config{Node: "w", Kind: "witness", Group: "0d5a8f7e-6f0b-4f0e-9d0c-6a4f1f5c2b11", GroupName: "orders", Endpoint: config.Address{Listen: ":5022", Advertise: "w:5022"}}
	if err := c.Save(l.Dir); err != nil {
		t.Fatal(err)
	}
}

// seenBy is the group as a member sees it.
func seenBy(node string, change func(st *api.Status)) api.Status {
	st := group()
	for _, r := range st.Replicas {
		if string(r.Name) == node {
			st.Node = r.Name
		}
	}
	if change != nil {
		change(&st)
	}
	return st
}

// TestLeaveChangesNothing holds that a refusal, and a dry run, ask no member and leave no mark in the node directory.
func TestLeaveChangesNothing(t *testing.T) {
	a := clitest.NewAgent(t)
	witness(t, a.Layout)
	for name, tt := range map[string]struct {
		st   api.Status
		args []string
		code int
		says string
	}{
		"a member that has lost its quorum": {seenBy("w", func(st *api.Status) { st.Quorum = false }), nil, 3, " --force"},
		"the primary":                       {seenBy("n1", nil), nil, 4, "coterie failover --to n2"},
		"data of a witness":                 {seenBy("w", nil), []string{"--keep-data", "/srv/data"}, 2, "holds no data"},
	} {
		a.SetStatus(tt.st)
		clitest.Run(t, Leave(), a.Layout.Dir, append([]string{"--yes"}, tt.args...)...).Refused(t, tt.code, tt.says)
		if _, err := os.Stat(a.Layout.LeavingFile()); err == nil || len(a.Asked("Leave")) > 0 {
			t.Errorf("%s: it was begun", name)
		}
	}
	a.SetStatus(seenBy("w", nil))
	r := clitest.Run(t, Leave(), a.Layout.Dir, "--dry-run", "--json")
	var out outcome
	if err := json.Unmarshal([]byte(r.Out), &out); err != nil || r.Code != 0 || !out.DryRun || out.Completed || !strings.HasPrefix(out.Steps[0], "another member removes w") || out.Steps[1] != "the agent stops" {
		t.Errorf("a dry run: %+v, %v, %+v", r, err, out)
	}
	if _, err := os.Stat(a.Layout.LeavingFile()); err == nil || len(a.Asked("Leave")) > 0 {
		t.Error("a dry run has begun it")
	}
}

// TestLeaveOnAFullDisk holds that an error of a full disk, of this program or of PostgreSQL, comes with what to do.
func TestLeaveOnAFullDisk(t *testing.T) {
	l := clitest.NewNode(t)
	for name, full := range map[string]error{
		"this program": fmt.Errorf("the record: %w", &fs.PathError{Op: "write", Path: l.LeavingFile(), Err: syscall.ENOSPC}),
		"PostgreSQL":   errors.New("FATAL: could not write lock file: No space left on device"),
	} {
		for _, destroy := range []bool{false, true} {
			x := &leaving{layout: l, destroy: destroy}
			if err := x.noRoom(full); fail.KindOf(err) != fail.Unhealthy || !strings.Contains(err.Error(), "make room there (old files in "+l.Log()+" may go), and run "+x.command()+" again") {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	x := &leaving{layout: l}
	if err := x.noRoom(errTest); err != errTest || x.noRoom(nil) != nil { //nolint:errorlint // it is this very error
		t.Errorf("another error: %v", err)
	}
}

var errTest = errors.New("it failed in a test")

// TestLeaveIsRefusedByTheGroup holds that the refusal of the member that was asked is told, and ends the command.
func TestLeaveIsRefusedByTheGroup(t *testing.T) {
	a := clitest.NewAgent(t)
	witness(t, a.Layout)
	a.SetStatus(seenBy("w", nil))
	a.On("Leave", func(any) (any, error) { return nil, fail.Refusedf("w is needed") })
	clitest.Run(t, Leave(), a.Layout.Dir).Refused(t, 4, "w is needed")
	if _, err := os.Stat(a.Layout.LeavingFile()); err == nil {
		t.Error("the node directory says that the node leaves")
	}
}

// TestLeaveIsInterrupted holds that a Ctrl-C is not told as two minutes of waiting, and that the command says how it
// goes on.
func TestLeaveIsInterrupted(t *testing.T) {
	a := clitest.NewAgent(t)
	witness(t, a.Layout)
	a.SetStatus(seenBy("w", nil))
	ctx, cancel := context.WithCancel(t.Context())
	a.On("Leave", func(any) (any, error) { cancel(); return nil, errors.New("too late") })
	clitest.RunIn(ctx, Leave(), a.Layout.Dir).Refused(t, 1, "interrupted: the group may have removed w already; its data is as it was. Run coterie leave --node "+a.Layout.Dir+" again")
}

// TestAnswerOfTheRemovalIsLost holds that a node whose status says that it is out has left, whatever was answered. Its
// agent, which is this test, cannot be stopped here: the command ends before that because the record cannot be written.
func TestAnswerOfTheRemovalIsLost(t *testing.T) {
	a := clitest.NewAgent(t)
	witness(t, a.Layout)
	out := seenBy("w", func(st *api.Status) { st.Availability.Removed = true })
	a.SetStatus(seenBy("w", nil), out)
	a.On("Leave", func(any) (any, error) { return nil, errors.New("the connection ended") })
	if err := os.MkdirAll(filepath.Join(a.Layout.LeavingFile(), "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	r := clitest.Run(t, Leave(), a.Layout.Dir)
	if r.Code == 0 || len(a.Asked("Leave")) > 1 {
		t.Errorf("%+v, asked %d times", r, len(a.Asked("Leave")))
	}
}

// TestLeaveWithoutAgent holds what a node does whose agent is stopped: it refuses, unless it is forced; then it says
// what remains to be done, ends being a node, and can be told so again.
func TestLeaveWithoutAgent(t *testing.T) {
	l := clitest.NewNode(t)
	witness(t, l)
	clitest.Run(t, Leave(), l.Dir).Refused(t, 3, "coterie leave --node "+l.Dir+" --force") // it must not end another node
	for _, args := range [][]string{{"--force", "--json"}, {"--json"}} {
		r := clitest.Run(t, Leave(), l.Dir, args...)
		var out outcome
		if err := json.Unmarshal([]byte(r.Out), &out); err != nil || r.Code != 0 {
			t.Fatalf("%v: %+v, %v", args, r, err)
		}
		if !out.Completed || !out.Forced || out.Data != "" || !slices.Equal(out.Remaining, []string{"on another member, unless another node has joined by this name: coterie member remove w"}) {
			t.Errorf("%v: %+v", args, out)
		}
	}
	if _, err := config.Load(l.Dir); err == nil {
		t.Error("an agent could start")
	}
	if _, err := os.Stat(filepath.Join(l.Dir, provision.LeftConfig)); err != nil {
		t.Error(err)
	}
}

// TestLeaveGoesOn holds that a node that is recorded as leaving asks no member again.
func TestLeaveGoesOn(t *testing.T) {
	l := clitest.NewNode(t)
	witness(t, l)
	if err := (&provision.Departure{Node: "w", Group: "orders"}).Save(l); err != nil {
		t.Fatal(err)
	}
	r := clitest.Run(t, Leave(), l.Dir)
	if r.Code != 0 || !strings.Contains(r.Said, "going on") || !strings.Contains(r.Said, "w has left the group orders") {
		t.Errorf("%+v", r)
	}
}

// TestKeepNothing holds that a node which held no whole copy when it began to leave refuses a place for its data, and
// can still end being a node.
func TestKeepNothing(t *testing.T) {
	l := clitest.NewNode(t)
	c := config.Config{
		Node: "n2", Kind: "replica", Group: "0d5a8f7e-6f0b-4f0e-9d0c-6a4f1f5c2b11", GroupName: "orders", Endpoint: config.Address{Listen: ":5022", Advertise: "n2:5022"},
		PostgreSQL: &config.PostgreSQL{BinDir: "/nowhere", Data: l.Data(), Superuser: "postgres"},
	}
	d := &provision.Departure{Node: "n2", Group: "orders"}
	if err := errors.Join(c.Save(l.Dir), os.Mkdir(l.Data(), 0o700), d.Save(l)); err != nil {
		t.Fatal(err)
	}
	clitest.Run(t, Leave(), l.Dir, "--keep-data", filepath.Join(l.Dir, "kept")).Refused(t, 2, "no whole copy")
	if now, err := provision.ReadDeparture(l); err != nil || now.Data != "" {
		t.Errorf("%+v, %v", now, err)
	}
	if r := clitest.Run(t, Leave(), l.Dir); r.Code != 0 || !strings.Contains(r.Said, "it holds no copy") {
		t.Errorf("%+v", r)
	}
}
