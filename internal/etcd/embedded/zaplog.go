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
}

// newZap returns etcd's logger. Each message is forwarded at most 3 times in 10 minutes: etcd reports an unreachable
// peer several times per second, and the agent reports it better. gaveUp handles etcd's fatal errors and panics.
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
	if strings.HasPrefix(e.Message, "Running http and grpc server on single port") || strings.HasPrefix(e.Message, "simple token is not cryptographically signed") {
		return nil // intended on a private socket; etcd has no users here, and so no tokens
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
