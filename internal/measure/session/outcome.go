package session

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"
)

// Outcome is what a client may conclude about a transaction.
type Outcome uint8

// The outcomes. A fourth does not exist: a client without an answer is in doubt.
const (
	OK      Outcome = iota // the server acknowledged the commit
	Fail                   // the server said that it rolled back, or nothing was ever sent
	Unknown                // the connection broke, or the time was up, after the commit may have been sent
)

// String returns the word that reports use.
func (o Outcome) String() string {
	switch o {
	case OK:
		return "ok"
	case Fail:
		return "fail"
	case Unknown:
		return "unknown"
	}
	return "outcome?"
}

// Classify returns the outcome that err means for a statement that is a transaction of its own, and the SQLSTATE. For
// an error that did not come from a server it returns a word instead (timeout, reset, eof, closed, refused, not-sent,
// client).
//
// An ERROR proves a rollback, and so does class 40 ("transaction rollback") at any severity: a listener that gives a
// session up answers 40001 only for a transaction that was not committed. Other FATALs do not: a backend that is
// terminated while its commit waits for a synchronous secondary has already committed locally. Nor do class 08 and
// 40003, whose meaning is that the fate is not known. (PostgreSQL manual, Appendix A, Error Codes.)
func Classify(err error) (Outcome, string) {
	if err == nil {
		return OK, "00000"
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		if strings.HasPrefix(pg.Code, "08") || pg.Code == "40003" {
			return Unknown, pg.Code
		}
		if severity(pg) == "ERROR" || strings.HasPrefix(pg.Code, "40") {
			return Fail, pg.Code
		}
		return Unknown, pg.Code
	}
	if errors.Is(err, pgconn.ErrConnClosed) { // pgx says so, and that nothing was sent, also if a Query's answer was lost
		return Unknown, "closed"
	}
	if pgconn.SafeToRetry(err) {
		return Fail, "not-sent"
	}
	return Unknown, word(err)
}

// Retryable reports for the SQLSTATE of a failed transaction whether the same transaction may succeed when it is tried
// again: others were in its way (40001, serialization failure; 40P01, deadlock).
func Retryable(state string) bool { return state == "40001" || state == "40P01" }

func severity(e *pgconn.PgError) string {
	if e.SeverityUnlocalized != "" {
		return e.SeverityUnlocalized
	}
	return e.Severity // servers before 9.6
}

func word(err error) string {
	var ne net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "reset"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "eof"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &ne) && ne.Timeout():
		return "timeout"
	}
	return "client"
}
