package docs

import (
	"strings"
	"testing"
)

// TestNumbersOfThePages holds that numbers which pages for users say are those of the code: what a page says, and the
// line of the source that makes it so.
func TestNumbersOfThePages(t *testing.T) {
	for _, c := range []struct{ page, said, file, line string }{
		{"failures.md", "lease L 5 s, silence O 6.5 s, answer lease G 0.4 s, SESSION_TIMEOUT 10 s", "internal/ag/record.go", "Lease: 5 * time.Second"},
		{"failures.md", "silence O 6.5 s", "internal/ag/record.go", "Observer: 6500 * time.Millisecond"},
		{"failures.md", "answer lease G 0.4 s", "internal/ag/record.go", "Answer: 400 * time.Millisecond"},
		{"failures.md", "U is 1.5 s (0.6 s at `fast`, 4 s at `wan`", "internal/ag/record.go", "Floor: 1500 * time.Millisecond"},
		{"failures.md", "0.6 s at `fast`", "internal/ag/record.go", "Floor: 600 * time.Millisecond"},
		{"failures.md", "4 s at `wan`", "internal/ag/record.go", "Floor: 4 * time.Second"},
		{"failures.md", "twice as long for ten minutes", "internal/agent/observe.go", "dampedFor = 10 * time.Minute"},
		{"failures.md", "renews no lease after 10 s", "internal/agent/health.go", "loopLimit = 10 * time.Second"},
		{"failures.md", "after 1 s if its endpoint refuses connections", "internal/ag/quorum.go", "RefusedTimeout = time.Second"},
		{"failures.md", "no progress for 1.5 s", "internal/ag/decide.go", "ProgressTimeout = 1500 * time.Millisecond"},
		{"failures.md", "less than 4 MB free", "internal/node/quorum/member_disk.go", "suspendBelow = 4 << 20"},
		{"failures.md", "votes again when there are 16 MB", "internal/node/quorum/member_disk.go", "startAbove = 16 << 20"},
		{"failures.md", "once a minute at most", "internal/node/quorum/member_disk.go", "fullPause, brokenPause = time.Minute, 10 * time.Minute"},
		{"failures.md", "every ten minutes at most", "internal/node/quorum/member_disk.go", "fullPause, brokenPause = time.Minute, 10 * time.Minute"},
		{"health.md", "`HEALTH_CHECK_TIMEOUT` (T) is 10 s", "internal/ag/group.go", "DefaultHealthTimeout  = 10 * time.Second"},
		{"health.md", "every T/3", "internal/postgres/health/monitor.go", "probesPerWait = 3"},
		{"health.md", "8 KiB written, synced and read", "internal/postgres/health/place.go", "block = 8192"},
		{"health.md", "three times in 10 min", "internal/agent/health.go", "loopCrashes      = 3"},
		{"health.md", "WAL: less than 48 MiB free", "internal/node/pgserver/health.go", "walFloor  = 48 << 20"},
		{"health.md", "elsewhere 16 MiB", "internal/node/pgserver/health.go", "dataFloor = 16 << 20"},
		{"health.md", "Databases are looked into every 10 s", "internal/postgres/health/monitor.go", "basesEvery    = 10 * time.Second"},
		{"health.md", "the first 32 that take connections", "internal/postgres/diagnose/checks.go", "maxDatabases = 32"},
		{"health.md", "once for its health in 6 h", "internal/agent/health.go", "healthDamped     = 6 * time.Hour"},
		{"health.md", "once for a crash in 10 min", "internal/agent/health.go", "crashDamped      = 10 * time.Minute"},
		{"health.md", "comes forward 5 s after the others", "internal/ag/health.go", "IllGrace = 5 * time.Second"},
		{"health.md", "up to 60 s", "internal/agent/health.go", "mostBackoff      = time.Minute"},
		{"health.md", "while less than 16 MiB is free", "internal/postgres/health/place.go", "walSegment = 16 << 20"},
		{"health.md", "a quarter of the file system of WAL, 64 GiB at most", "internal/postgres/args.go", "slotKeepMost  = 64 << 10 // MB"},
		{"health.md", "without a slot an eighth is kept", "internal/postgres/args.go", "walKeepShare  = 8 "},
		{"continuity.md", "busy for longer than 0.2 s", "internal/listener/leave.go", "readerPatience = 200 * time.Millisecond"},
		{"continuity.md", "Between two questions to one session lie 10 s to 5 minutes", "internal/listener/known/known.go", "PauseMin = 10 * time.Second"},
		{"continuity.md", "10 s to 5 minutes", "internal/listener/known/known.go", "pauseMax = 5 * time.Minute"},
		{"continuity.md", "once it has been idle for 5 s", "internal/listener/known/known.go", "Idle        = 5 * time.Second"},
		{"continuity.md", "at most 1,000 texts of statements", "internal/listener/known/known.go", "maxFollowed = 1000"},
		{"continuity.md", "takes more than 4 s", "internal/listener/continue.go", "x.srv.cfg.HoldMax/2)"},
		{"continuity.md", "longer than 1 MB", "internal/listener/replay/log.go", "maxSession = 1 << 20"},
		{"continuity.md", "than 64 MB", "internal/listener/replay/log.go", "maxAll     = 64 << 20"},
		{"continuity.md", "a state of more than 1 MB, or more than 2,000 prepared statements", "internal/listener/continuity/question.go", "maxStatements = 2000"},
		{"continuity.md", "The 250 largest groups", "internal/listener/server.go", "maxGroups = 250"},
		{"guarantees.md", "cannot be confirmed within 8 s", "internal/listener/config.go", "setDefault(&d.GateHold, 8*time.Second)"},
		{"guarantees.md", "without a successor after 3 s", "internal/agent/restart.go", "detachFor     = 3 * time.Second"},
		{"guarantees.md", "noticed within five seconds", "internal/node/pgserver/serverlog.go", "settingsEvery = 5 * time.Second"},
		{"glossary.md", "5 s in profile `default`", "internal/ag/record.go", "Lease: 5 * time.Second"},
		{"glossary.md", "6.5 s in profile `default`", "internal/ag/record.go", "Observer: 6500 * time.Millisecond"},
		{"connecting.md", "waits, at most 30 s, and then gets 57P03", "internal/listener/config.go", "setDefault(&d.ConnectWait, 30*time.Second)"},
		{"connecting.md", "known to be at most 60 s old", "internal/listener/config.go", "setDefault(&d.AuthStaleness, time.Minute)"},
		{"operating.md", "less than 16 MiB to replay", "internal/agent/handover.go", "maxReplayLag   = 16 << 20"},
		{"operating.md", "A request waits 8 s at most", "internal/listener/config.go", "setDefault(&d.HoldMax, 8*time.Second)"},
	} {
		if !strings.Contains(strings.Join(strings.Fields(pages(t)["docs/"+c.page]), " "), c.said) {
			t.Errorf("docs/%s does not say %q any more: change this test", c.page, c.said)
		}
		if !strings.Contains(source(t, c.file), c.line) {
			t.Errorf("docs/%s says %q, and %s does not have %q", c.page, c.said, c.file, c.line)
		}
	}
}
