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

// zapToSlog passes etcd's warnings and errors on to slog. The rest is dropped: it is the day-to-day chatter of raft.
type zapToSlog struct {
	log     *slog.Logger
	fields  []zapcore.Field
	removed *atomic.Bool // set when etcd says that this member was removed, which it says in its log only
}

// newZap returns etcd's logger. Each message is passed on at most 3 times in 10 minutes: an unreachable peer is reported by
// etcd several times per second, and by the agent in better words. etcd's fatal errors and panics are met by gaveUp.
func newZap(log *slog.Logger, removed *atomic.Bool, gaveUp zapcore.CheckWriteHook) *zap.Logger {
	core := zapcore.NewSamplerWithOptions(&zapToSlog{log: log, removed: removed}, 10*time.Minute, 3, 0)
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
	if text, ok := enc.Fields["error"].(string); ok && strings.Contains(text, "removed from the cluster") {
		z.removed.Store(true)
	}
	if strings.HasPrefix(e.Message, "Running http and grpc server on single port") {
		return nil // on a private socket it is right
	}
	level := slog.LevelWarn
	if e.Level > zapcore.WarnLevel {
		level = slog.LevelError
	}
	attrs := []slog.Attr{slog.String("etcd", e.Message)}
	for k, v := range enc.Fields {
		attrs = append(attrs, slog.Any(k, v))
	}
	z.log.LogAttrs(context.Background(), level, "quorum member", attrs...)
	return nil
}

func (z *zapToSlog) Sync() error { return nil }
