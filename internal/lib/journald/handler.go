// Package journald writes the records of a logger to the journal of systemd, each attribute as a field of its own.
//
// It owns the names of the fields, their bounds, and that a journal which hangs delays nobody: records that find no
// place are dropped and counted. It must not know what is logged. Start reading at Handler.
package journald

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"

	"github.com/coreos/go-systemd/v22/journal"

	"github.com/coteriedb/coterie/internal/lib/asyncwriter"
)

// Prefix is the beginning of the names of fields that attributes become.
const Prefix = "COTERIE_"

// Bounds of a record: fields, and bytes of a value and of a field's name.
const (
	maxFields = 64
	maxValue  = 8 << 10
	maxName   = 64
)

// Connected reports whether standard error of this process is the journal, as it is in a unit of systemd.
func Connected() bool {
	is, err := journal.StderrIsJournalStream()
	return is && err == nil
}

// Handler is a slog.Handler that writes to the journal. Make it with New; the loggers made of it share its queue.
type Handler struct {
	to    *queue
	level slog.Leveler
	with  []attribute
	group string // with a dot at its end; "": none
}

// attribute has the name that it has in texts.
type attribute struct{ name, value string }

// queue sends records, one after the other.
type queue struct {
	jobs *asyncwriter.Queue
	send func(text string, p journal.Priority, fields map[string]string) error

	mu   sync.Mutex // guards lost
	lost int
}

// New returns a handler of records of at least that level, whose queue has so many places. The caller closes it.
func New(level slog.Leveler, size int) *Handler {
	return newHandler(level, size, journal.Send)
}

func newHandler(level slog.Leveler, size int, send func(string, journal.Priority, map[string]string) error) *Handler {
	h := &Handler{to: &queue{jobs: asyncwriter.NewQueue(size), send: send}, level: level}
	h.to.jobs.Start()
	return h
}

// Close sends what waits, for at most a second. Later records are dropped.
func (h *Handler) Close() { h.to.jobs.Close() }

// Enabled implements slog.Handler.
func (h *Handler) Enabled(_ context.Context, l slog.Level) bool { return l >= h.level.Level() }

// WithAttrs implements slog.Handler.
func (h *Handler) WithAttrs(list []slog.Attr) slog.Handler {
	c := *h
	c.with = append([]attribute(nil), h.with...)
	for _, a := range list {
		c.with = flat(c.with, h.group, a)
	}
	return &c
}

// WithGroup implements slog.Handler.
func (h *Handler) WithGroup(name string) slog.Handler {
	c := *h
	if name != "" {
		c.group += name + "."
	}
	return &c
}

// Handle implements slog.Handler. It never waits, and returns no error.
func (h *Handler) Handle(_ context.Context, r slog.Record) error {
	list := append([]attribute(nil), h.with...)
	r.Attrs(func(a slog.Attr) bool {
		list = flat(list, h.group, a)
		return len(list) < maxFields
	})
	var text strings.Builder
	text.WriteString(cut(r.Message))
	fields := map[string]string{"SYSLOG_IDENTIFIER": "coterie"}
	for _, a := range list[:min(len(list), maxFields)] {
		value := cut(a.value)
		if text.Len() < 2*maxValue {
			fmt.Fprintf(&text, " %s=%s", a.name, quoted(value))
		}
		fields[fieldName(a.name)] = value
	}
	h.to.put(text.String(), priority(r.Level), fields)
	return nil
}

// put has a record sent, and before it the number of those that found no place.
func (q *queue) put(text string, p journal.Priority, fields map[string]string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	lost := q.lost
	queued := q.jobs.Do(func() {
		if lost > 0 {
			_ = q.send(fmt.Sprintf("%d records of this log are lost: the journal did not keep up", lost), journal.PriErr, map[string]string{"SYSLOG_IDENTIFIER": "coterie"})
		}
		_ = q.send(text, p, fields) // there is nowhere to report that the journal takes nothing
	})
	if queued {
		q.lost = 0
	} else {
		q.lost++
	}
}

// flat appends an attribute, a group as its members.
func flat(list []attribute, group string, a slog.Attr) []attribute {
	v := a.Value.Resolve()
	if v.Kind() != slog.KindGroup {
		if a.Key == "" {
			return list
		}
		return append(list, attribute{group + a.Key, v.String()})
	}
	if a.Key != "" {
		group += a.Key + "."
	}
	for _, m := range v.Group() {
		list = flat(list, group, m)
	}
	return list
}

// fieldName returns the name of a field: capitals, digits and underscores.
func fieldName(name string) string {
	name = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z':
			return r - 'a' + 'A'
		case r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
			return r
		}
		return '_'
	}, name)
	return Prefix + name[:min(len(name), maxName-len(Prefix))]
}

// quoted returns a value as it stands in a text.
func quoted(v string) string {
	if v == "" || strings.ContainsFunc(v, func(r rune) bool { return r <= ' ' || r == '"' || r == '=' || !strconv.IsPrint(r) }) {
		return strconv.Quote(v)
	}
	return v
}

func cut(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), maxValue)], "?")
}

// priority returns the priority of syslog for a level.
func priority(l slog.Level) journal.Priority {
	switch {
	case l >= slog.LevelError:
		return journal.PriErr
	case l >= slog.LevelWarn:
		return journal.PriWarning
	case l >= slog.LevelInfo:
		return journal.PriInfo
	}
	return journal.PriDebug
}
