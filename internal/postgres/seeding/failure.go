package seeding

import (
	"context"
	"errors"
	"syscall"

	"github.com/coteriedb/coterie/internal/postgres/seeding/tree"
	"github.com/coteriedb/coterie/internal/postgres/seeding/wire"
)

// Failure is the state, the side and the reason in which a seeding ended. A code that begins with 1 is the source's,
// with 2 the target's.
type Failure struct {
	Code  int    `json:"code"`
	State string `json:"state"`           // a word for the code
	Errno int    `json:"errno,omitempty"` // the operating system's number, if the cause has one
	Text  string `json:"text"`
}

// Errors that end a seeding by intent.
var (
	ErrCancelled = errors.New("cancelled")
	ErrForbidden = errors.New("seeding is not allowed here")
)

// ErrVersion is returned for a source of another major version than the programs of this node.
var ErrVersion = errors.New("after a major upgrade of the group run coterie upgrade major again on the primary's node, else install the programs of that version and name them")

// Explain classifies an error of Run.
func Explain(err error) Failure {
	f := Failure{Code: 202, State: "TARGET_FAILED", Text: err.Error()}
	var refused *wire.RefusedError
	var local *localError
	var errno syscall.Errno
	if errors.As(err, &errno) {
		f.Errno = int(errno)
	}
	switch {
	case errors.Is(err, ErrCancelled):
		f.Code, f.State = 203, "CANCELLED"
	case errors.Is(err, ErrForbidden):
		f.Code, f.State = 205, "TARGET_FORBIDS"
	case errors.Is(err, tree.ErrOther):
		f.Code, f.State = 206, "TARGET_HOLDS_OTHER"
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, tree.ErrNoRoom):
		f.Code, f.State = 201, "TARGET_FULL"
	case errors.As(err, &refused):
		known, ok := refusals[refused.Code]
		if !ok {
			known = refusals[wire.CodeFailed]
		}
		f.Code, f.State = known.code, known.state
	case errors.As(err, &local):
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		f.Code, f.State = 207, "INTERRUPTED"
	}
	return f
}

// refusals maps a source's codes to the codes that are shown.
var refusals = map[string]struct {
	code  int
	state string
}{
	wire.CodeRefused: {101, "SOURCE_REFUSED"}, wire.CodeBusy: {102, "SOURCE_BUSY"}, wire.CodeGone: {103, "WINDOW_ENDED"},
	wire.CodeFailed: {104, "SOURCE_FAILED"}, wire.CodeCorrupt: {105, "SOURCE_DAMAGED"},
}
