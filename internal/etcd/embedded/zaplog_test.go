package embedded

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// TestExpectedMessagesAreNoFaults holds that what etcd logs in every founding and join is no warning and no error, and
// that the same words at another time, or about another cause, are.
func TestExpectedMessagesAreNoFaults(t *testing.T) {
	t.Parallel()
	const storage, unhealthy = "failed to update storage version", "etcdserver: unhealthy cluster"
	for _, c := range []struct {
		level        zapcore.Level
		message, err string
		founded      time.Duration // ago; 0: the member was started before
		want         string
	}{
		{zap.ErrorLevel, storage, "cannot detect storage schema version: missing term information", time.Second, "DEBUG"},
		{zap.ErrorLevel, storage, "cannot detect storage schema version: missing term information", 2 * foundingTime, "ERROR"},
		{zap.ErrorLevel, storage, "cannot detect storage schema version: missing term information", 0, "ERROR"},
		{zap.ErrorLevel, storage, "something else", time.Second, "ERROR"},
		{zap.WarnLevel, "Failed to detect schema version", "missing term information", time.Second, "DEBUG"},
		{zap.WarnLevel, "Failed to detect schema version", "missing term information", 0, "WARN"},
		{zap.WarnLevel, "failed to promote a member", "etcdserver: can only promote a learner member which is in sync with leader", 0, "DEBUG"},
		{zap.WarnLevel, "failed to promote a member", unhealthy, 0, "WARN"},
		{zap.ErrorLevel, "rejecting promote learner: learner is not ready", "", 0, "DEBUG"},
		{zap.WarnLevel, "rejecting member add request; not enough healthy members", unhealthy, 0, "DEBUG"},
		{zap.WarnLevel, "rejecting member add request; local member has not been connected to majority peers, reconfigure breaks active quorum", unhealthy, 0, "DEBUG"},
		{zap.WarnLevel, "rejecting member add request; not enough healthy members", "something else", 0, "WARN"},
		{zap.WarnLevel, "rejecting member remove request; local member has not been connected to majority peers, reconfigure breaks active quorum", unhealthy, time.Second, "WARN"},
	} {
		m := &Member{}
		if c.founded > 0 {
			m.founded.Store(new(time.Now().Add(-c.founded)))
		}
		var out bytes.Buffer
		log := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
		newZap(zapToSlog{log: log, removed: &atomic.Bool{}, young: m.young}, newFailure()).Log(c.level, c.message, zap.Error(errors.New(c.err)))
		if !strings.Contains(out.String(), " level="+c.want+" ") {
			t.Errorf("%s (%s), founded %v ago: want %s, got %s", c.message, c.err, c.founded, c.want, out.String())
		}
	}
}
