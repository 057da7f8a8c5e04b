package groupcmd

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/cli/clitest"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/postgres/seeding"
	"github.com/coteriedb/coterie/internal/postgres/seeding/pagesum"
	"github.com/coteriedb/coterie/internal/postgres/seeding/progress"
)

// TestSeedRefusals checks that flags which contradict each other ask the agent for nothing.
func TestSeedRefusals(t *testing.T) {
	t.Parallel()
	a := clitest.NewAgent(t)
	for args, says := range map[string]string{
		"n3 --cancel --watch":      "--cancel stands alone",
		"n3 --cancel --full":       "--cancel stands alone",
		"n3 --cancel --from /x":    "--cancel stands alone",
		"n3 --verify --full":       "--verify changes nothing",
		"n3 --verify --from /x":    "--verify changes nothing",
		"n3 --from pgdata --watch": "--from pgdata: name an absolute path",
		"":                         "needs the replica's name",
		"n3 n4":                    `does not know what to do with "n4"`,
	} {
		clitest.Run(t, Seed(), a.Layout.Dir, strings.Fields(args)...).Refused(t, 2, says)
	}
	if n := append(a.Asked("Seed"), a.Asked("CancelSeeding")...); len(n) > 0 {
		t.Errorf("the agent was asked for %v", n)
	}
}

// TestSeedOutcome checks the last line and the exit code for each end of an operation.
func TestSeedOutcome(t *testing.T) {
	t.Parallel()
	a := clitest.NewAgent(t)
	began := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	copied := progress.Progress{Total: 100 << 20, Same: 50 << 20, Done: 100 << 20, Wire: 25 << 20, Codec: "zstd"}
	clean := &pagesum.Report{Checksums: true, Files: 3, Pages: 12, Bytes: 12 * 8192}
	damaged := &pagesum.Report{Checksums: true, Pages: 12, Damaged: 1, First: []pagesum.CorruptError{{File: "base/5/1259", Block: 7}}}
	for _, tt := range []struct {
		name, args string
		op         seeding.Operation
		code       int
		said, fail string
	}{
		{"begun", "n3", seeding.Operation{State: seeding.Seeding}, 0, "n3: seeding; follow it with coterie replica seed n3 --watch", ""},
		{
			"whole", "n3 --watch",
			seeding.Operation{State: seeding.Completed, Source: "n2", Chosen: "nearest", Attempts: 2, Progress: copied},
			0, "n3: copied from n2 (nearest) in 1m0s: 100.0 MiB of files, 50.0 MiB of them were there, on the wire 25.0 MiB (2.0x), attempts: 2; codec zstd", "",
		},
		{"failed", "n3 --watch", seeding.Operation{State: seeding.Failed, Failure: &seeding.Failure{Text: "the disk is full"}}, 3, "", "n3: the disk is full"},
		{"cancelled by this", "n3 --cancel", seeding.Operation{State: seeding.Cancelled, Attempts: 1}, 0, "n3: cancelled; coterie replica seed n3 goes on with what has arrived", ""},
		{"cancelled before it began", "n3 --cancel", seeding.Operation{State: seeding.Cancelled}, 0, "n3: cancelled before anything changed; coterie replica seed n3 --full asks for it again", ""},
		{"a verification cancelled", "n3 --cancel", seeding.Operation{State: seeding.Cancelled, Attempts: 1, Report: clean}, 0, "n3: the verification is cancelled; nothing was changed", ""},
		{"cancelled by another", "n3 --watch", seeding.Operation{State: seeding.Cancelled}, 3, "", "n3: cancelled; coterie replica seed n3 goes on"},
		{"no damage", "n3 --verify", seeding.Operation{State: seeding.Completed, Report: clean}, 0, "n3: 12 pages in 3 files (96.0 KiB) read in 1m0s, 0 damaged", ""},
		{"damage", "n3 --verify", seeding.Operation{State: seeding.Completed, Report: damaged}, 3, "page 7 of base/5/1259", "n3 has 1 damaged pages; coterie replica seed n3 --full replaces"},
	} {
		tt.op.ID, tt.op.Started, tt.op.Ended = "op", began, began.Add(time.Minute)
		answer := func(any) (any, error) { return tt.op, nil }
		a.On("Seed", answer)
		a.On("CancelSeeding", answer)
		r := clitest.Run(t, Seed(), a.Layout.Dir, strings.Fields(tt.args)...)
		if r.Code != tt.code || !strings.Contains(r.Said, tt.said) || r.Out != "" || tt.fail != "" && !strings.Contains(r.Err.Error(), tt.fail) {
			t.Errorf("%s: exit code %d, %v, said %q, printed %q; want %d, %q", tt.name, r.Code, r.Err, r.Said, r.Out, tt.code, tt.said)
		}
		r = clitest.Run(t, Seed(), a.Layout.Dir, append(strings.Fields(tt.args), "--json")...)
		var op seeding.Operation
		if err := json.Unmarshal([]byte(r.Out), &op); err != nil || r.Code != tt.code || op.State != tt.op.State || strings.Contains(r.Said, "copied") || strings.Contains(r.Said, "page 7") {
			t.Errorf("%s --json: %v, exit code %d, %+v, said %q", tt.name, err, r.Code, op, r.Said)
		}
	}
	if diff := cmp.Diff(api.SeedRequest{Replica: "n3"}, a.Asked("Seed")[0]); diff != "" {
		t.Error(diff)
	}
}

// TestSeedAttaches checks which earlier operation --watch shows when a new one is refused.
func TestSeedAttaches(t *testing.T) {
	t.Parallel()
	done := seeding.Operation{ID: "1", State: seeding.Completed, Source: "n2"}
	failed := seeding.Operation{ID: "2", State: seeding.Failed, Failure: &seeding.Failure{Text: "no space"}}
	refused, away := fail.Refusedf("n3 has a copy that is whole"), fail.Unhealthyf("n3 does not answer")
	for _, tt := range []struct {
		name, args string
		err        error
		ops        []seeding.Operation
		code       int
		says       string
	}{
		{"the last one", "n3 --watch", refused, []seeding.Operation{failed, done}, 0, "n3: copied from n2"},
		{"which failed", "n3 --watch", refused, []seeding.Operation{done, failed}, 3, "n3: no space"},
		{"none yet", "n3 --watch", refused, nil, 4, "n3 has a copy that is whole"},
		{"not watched", "n3", refused, []seeding.Operation{done}, 4, "n3 has a copy that is whole"},
		{"another request", "n3 --watch --full", refused, []seeding.Operation{done}, 4, "n3 has a copy that is whole"},
		{"one that ended before the replica was gone", "n3 --watch", away, []seeding.Operation{done}, 3, "n3 does not answer"},
	} {
		a := clitest.NewAgent(t)
		a.On("Seed", func(any) (any, error) { return nil, tt.err })
		a.On("Seedings", func(in any) (any, error) {
			if in != ag.ReplicaID("n3") {
				return nil, errors.New("asked of another replica")
			}
			return tt.ops, nil
		})
		r := clitest.Run(t, Seed(), a.Layout.Dir, strings.Fields(tt.args)...)
		said := r.Said
		if r.Err != nil {
			said += r.Err.Error()
		}
		if r.Code != tt.code || !strings.Contains(said, tt.says) {
			t.Errorf("%s: exit code %d, %q; want %d, %q", tt.name, r.Code, said, tt.code, tt.says)
		}
	}
}

// TestSeedWatch follows an operation to its end, through a moment in which the replica does not answer.
func TestSeedWatch(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("waits for several turns of the progress")
	}
	a := clitest.NewAgent(t)
	op := seeding.Operation{ID: "op", State: seeding.Seeding, Source: "n1", Progress: progress.Progress{Phase: progress.PhaseCheckpoint}}
	a.On("Seed", func(any) (any, error) { return op, nil })
	asked := 0 // by one request at a time
	a.On("Seedings", func(any) (any, error) {
		asked++
		next := op
		switch asked {
		case 1:
			return nil, fail.Unhealthyf("n3 does not answer")
		case 2:
			next.State = seeding.Completed
		default:
			return nil, fail.Unhealthyf("asked after the end")
		}
		return []seeding.Operation{{ID: "another", State: seeding.Failed}, next}, nil
	})
	r := clitest.Run(t, Seed(), a.Layout.Dir, "n3", "--watch")
	if r.Err != nil || r.Out != "waiting for checkpoint\n" || !strings.Contains(r.Said, "n3: copied from n1") {
		t.Errorf("%v, printed %q, said %q", r.Err, r.Out, r.Said)
	}
}
