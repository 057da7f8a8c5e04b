package groupcmd

import (
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/postgres/seeding"
	"github.com/coteriedb/coterie/internal/postgres/seeding/progress"
)

// TestSeedLine checks the progress line. It has no remaining time while the source is unreachable.
func TestSeedLine(t *testing.T) {
	t.Parallel()
	p := progress.Progress{Phase: progress.PhaseCopy, Done: 50 << 20, Total: 100 << 20, Wire: 25 << 20, Rate: 10 << 20, Pace: 10 << 20}
	waits, early := p, progress.Progress{Phase: progress.PhaseCheckpoint, Waiting: "waiting for a source: connection refused"}
	waits.Waiting = early.Waiting
	const gone = "target n3 not seen since 2026-01-01 12:00:00; goes on when it is back"
	there := p
	there.Same, there.Wire = p.Done-1000, 12<<10
	for want, op := range map[string]seeding.Operation{
		"[############............]  50.0 %  50.0 MiB of 100.0 MiB  wire 25.0 MiB (2.0x)  10.0 MiB/s  5s left  copying from n1":          {Progress: p},
		"[############............]  50.0 %  50.0 MiB of 100.0 MiB  wire 25.0 MiB (2.0x)  " + waits.Waiting:                              {Progress: waits},
		"[############............]  50.0 %  50.0 MiB of 100.0 MiB  wire 12.0 KiB  there 50.0 MiB  10.0 MiB/s  5s left  copying from n1": {Progress: there},
		early.Waiting:            {Progress: early},
		"waiting for checkpoint": {Progress: progress.Progress{Phase: progress.PhaseCheckpoint}},
		"attempt 2: the disk is full; next at 12:00:00": {
			State: seeding.Retrying, Attempts: 2, Failure: &seeding.Failure{Text: "the disk is full"}, Next: time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC),
		},
		"[############............]  50.0 %  50.0 MiB of 100.0 MiB  wire 25.0 MiB (2.0x)  " + gone: {Progress: p, Absent: gone},
		"retrying: " + gone: {State: seeding.Retrying, Attempts: 2, Failure: &seeding.Failure{Text: "the disk is full"}, Absent: gone},
	} {
		if op.State == "" {
			op.State = seeding.Seeding
		}
		op.Source = "n1"
		if got := seedLine(op); strings.TrimSpace(got) != want {
			t.Errorf("got  %q\nwant %q", got, want)
		}
	}
}
