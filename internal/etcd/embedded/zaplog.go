package embedded

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// zapToSlog forwards etcd's warnings and errors to slog. Lower levels are dropped: they are raft's routine messages.
type zapToSlog struct {
	log     *slog.Logger
	fields  []zapcore.Field
	removed *atomic.Bool // set when etcd logs that this member was removed, which it reports nowhere else
	young   func() bool  // whether the member was started for the first time, less than foundingTime ago
}

// foundingTime is for how long after its first start a member is expected to have written no state of its own yet.
const foundingTime = time.Minute

// expected reports whether a message is part of every founding or join, and not a fault. The requests about a learner
// are made only while a member joins: the caller repeats them, and its error says what the last answer was.
func expected(message, err string, young bool) bool {
	switch message {
	case "failed to update storage version", "Failed to detect schema version":
		return young && strings.Contains(err, "missing term information")
	case "rejecting promote learner: learner is not ready":
		return true
	case "failed to promote a member":
		return strings.Contains(err, "can only promote a learner member which is in sync with leader")
	case "rejecting member add request; not enough healthy members",
		"rejecting member add request; local member has not been connected to majority peers, reconfigure breaks active quorum":
		return strings.Contains(err, "unhealthy cluster")
	}
	return false
}

// newZap returns etcd's logger. Each message is forwarded at most 3 times in 10 minutes: etcd reports an unreachable
// peer several times per second, and the agent reports it better. gaveUp handles etcd's fatal errors and panics.
func newZap(z zapToSlog, gaveUp zapcore.CheckWriteHook) *zap.Logger {
	core := zapcore.NewSamplerWithOptions(&z, 10*time.Minute, 3, 0)
	return zap.New(core, zap.WithFatalHook(gaveUp), zap.WithPanicHook(gaveUp))
}

func (z *zapToSlog) Enabled(l zapcore.Level) bool { return l >= zapcore.WarnLevel }

func (z *zapToSlog) With(fields []zapcore.Field) zapcore.Core {
	c := *z
	c.fields = append(append([]zapcore.Field{}, z.fields...), fields...)
	return &c
}

func (z *zapToSlog) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if !z.Enabled(e.Level) {
		return ce
	}
	return ce.AddCore(e, z)
}

func (z *zapToSlog) Write(e zapcore.Entry, fields []zapcore.Field) error {
	enc := zapcore.NewMapObjectEncoder()
	for _, f := range append(append([]zapcore.Field{}, z.fields...), fields...) {
		f.AddTo(enc)
	}
	text, _ := enc.Fields["error"].(string)
	if strings.Contains(text, "removed from the cluster") {
		z.removed.Store(true)
	}
	if strings.HasPrefix(e.Message, "Running http and grpc server on single port") || strings.HasPrefix(e.Message, "simple token is not cryptographically signed") {
		return nil // intended on a private socket; etcd has no users here, and so no tokens
	}
	level := slog.LevelWarn
	if e.Level > zapcore.WarnLevel {
		level = slog.LevelError
	}
	if expected(e.Message, text, z.young()) {
		level = slog.LevelDebug
	}
	attrs := []slog.Attr{slog.String("etcd", e.Message)}
	for k, v := range enc.Fields {
		attrs = append(attrs, slog.Any(k, v))
	}
	z.log.LogAttrs(context.Background(), level, "quorum member", attrs...)
	return nil
}

func (z *zapToSlog) Sync() error { return nil }
