package status

import (
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/admin/catalog"
	"github.com/coteriedb/coterie/internal/lib/admission"
	"github.com/coteriedb/coterie/internal/lib/boottime"
)

// Bounds of the audit: the acts and the denials that are kept, and the length of a text of one.
const (
	auditActs    = 150
	auditDenials = 50
	auditText    = 400
)

// eachDenials bounds the lines in the log about denials: a role that may only look can cause them as often as it likes.
var eachDenials = admission.Rate{PerSecond: 1, Burst: 20}

// audit remembers what administrators asked this node for. Denials have places of their own, so that those of a role
// that may do nothing displace no act.
type audit struct {
	mu        sync.Mutex // guards the fields below
	acts      []catalog.Act
	denials   []catalog.Act
	lines     *admission.Budget
	notLogged int // denials since the last line about one
}

// add keeps an act, and reports whether the log gets a line and how many have got none since the last one.
func (a *audit) add(x catalog.Act) (log bool, notLogged int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if x.Result != catalog.ActDenied {
		a.acts = append(a.acts, x)
		a.acts = a.acts[max(0, len(a.acts)-auditActs):]
		return true, 0
	}
	a.denials = append(a.denials, x)
	a.denials = a.denials[max(0, len(a.denials)-auditDenials):]
	if a.lines == nil {
		a.lines = admission.NewBudget(eachDenials, eachDenials, 1)
	}
	if !a.lines.Spend("", 1, boottime.Now()) {
		a.notLogged++
		return false, 0
	}
	notLogged, a.notLogged = a.notLogged, 0
	return true, notLogged
}

func (a *audit) all() []catalog.Act {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := slices.Concat(a.acts, a.denials)
	slices.SortStableFunc(out, func(x, y catalog.Act) int { return x.At.Compare(y.At) })
	return out
}

// NoteAct keeps for coterie.audit, and writes to the log, what an administrator had this node do, or was denied.
func (s *Service) NoteAct(log *slog.Logger, x catalog.Act) {
	x.At = time.Now()
	x.Operation, x.Message = clip(x.Operation, auditText), clip(x.Message, auditText)
	write, notLogged := s.acts.add(x)
	if !write {
		return
	}
	args := []any{
		"user", x.User, "privilege", x.Privilege, "via", x.Via, "client", x.From, "operation", x.Operation, "result", x.Result,
		"took", x.Took.Round(time.Millisecond).String(),
	}
	if x.Message != "" {
		args = append(args, "number", x.Number, "err", x.Message)
	}
	if notLogged > 0 {
		args = append(args, "not_logged", notLogged)
	}
	log.Info("change by an administrator", args...)
}
