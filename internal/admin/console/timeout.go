package console

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/admin/ddl"
)

// The causes of the end of a statement that took too long: for the console, and for its client's statement_timeout.
var (
	errLate    = errors.New("the statement took too long")
	errTimeout = errors.New("canceling statement due to statement timeout")
)

// limit returns how long a statement may take.
func (s *Session) limit(k kind, text string) time.Duration {
	if k == kindLanguage && s.who.May >= ddl.MayOperate {
		if st, err := ddl.Parse(text); err == nil && st.Kind() != ddl.KindReport {
			return s.limits.Operation
		}
	}
	return s.limits.Statement
}

// waited reports whether the error says that the statement did not begin, as others were under way.
func waited(err error) bool {
	var known *Error
	return errors.As(err, &known) && known.State == "53300"
}

// timeout returns statement_timeout; zero: the client has set none.
func (s *Session) timeout() time.Duration {
	d, _ := durationOf(s.settings["statement_timeout"])
	return d
}

// durationOf returns a time as PostgreSQL reads that of a setting: milliseconds, or with a unit.
func durationOf(v string) (time.Duration, bool) {
	v = strings.TrimSpace(v)
	at := strings.LastIndexFunc(v, func(r rune) bool { return r >= '0' && r <= '9' || r == '.' }) + 1
	unit, known := map[string]time.Duration{
		"": time.Millisecond, "us": time.Microsecond, "ms": time.Millisecond, "s": time.Second, "min": time.Minute, "h": time.Hour, "d": 24 * time.Hour,
	}[strings.TrimSpace(v[at:])]
	n, err := strconv.ParseFloat(v[:at], 64)
	ms := n * float64(unit) / float64(time.Millisecond)
	if err != nil || !known || n < 0 || ms > 1<<31-1 {
		return 0, false
	}
	if n > 0 && ms < 1 {
		ms = 1 // zero would be none
	}
	return time.Duration(ms) * time.Millisecond, true
}

var errInterrupted = errors.New("canceling statement due to user request")

// interruptible returns a context that ends when the client cancels the running statement. The caller calls stop after
// the statement.
func (s *Session) interruptible(ctx context.Context) (out context.Context, stop func()) {
	interrupt := s.interrupt
	if interrupt == nil {
		return ctx, func() {}
	}
	select {
	case <-interrupt: // it arrived while nothing ran
	default:
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case <-interrupt:
			cancel(errInterrupted)
		case <-ctx.Done():
		}
	})
	return ctx, func() { cancel(nil); wg.Wait() }
}
