package health

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// The FAILURE_CONDITION_LEVELs. Each includes those below it. Level 1, a server that ended, needs no probe.
const (
	levelUnresponsive = 2 // no answer within HEALTH_CHECK_TIMEOUT
	levelCritical     = 3 // a directory with data cannot be written, synced or read
	levelModerate     = 4 // a disk is full; no connection, process or memory left
	levelAny          = 5 // a tiny commit that waits for no secondary does not end
)

// patient is the factor by which an answer may take longer on a machine or a disk that is merely busy.
const patient = 3

// sure is how many clear errors in a row make a finding.
const sure = 2

// judge turns the results of the probes into findings.
func (m *Monitor) judge(t Target, now time.Duration) Report {
	if n := m.forgets.Load(); n != m.forgot {
		m.lost, m.forgot = "", n
	}
	r := Report{forgot: m.forgot}
	var found []ag.Health
	if t.Running {
		found = append(found, m.judgeAnswer(t, now), m.judgeCommit(t, now))
		r.Database, r.Offline = m.judgeBases(now)
	}
	for _, p := range m.inOrder() {
		w, space := p.now()
		if s := p.lost.Swap(nil); s != nil {
			m.lost = *s
		}
		if space.Total != 0 {
			r.Space = append(r.Space, space)
		}
		found = append(found, p.judge(t, now))
		if w.WAL && space.Total != 0 && space.Free < walSegment {
			r.NoRoom = fmt.Sprintf("%s (%s) has %s free; PostgreSQL needs at least %s for its next WAL file", w.Name, w.Dir, size(space.Free), size(walSegment))
		}
	}
	r.Lost, r.Storage = m.lost, m.stood(now)
	found = slices.DeleteFunc(found, func(h ag.Health) bool { return h.Level == 0 })
	if len(found) > 0 {
		worst := slices.MinFunc(found, func(x, y ag.Health) int { return cmp.Compare(x.Level, y.Level) })
		r.Level, r.Because, r.Restart = worst.Level, worst.Because, worst.Restart
	}
	return r
}

func (m *Monitor) inOrder() []*place {
	var ps []*place
	for _, p := range m.places {
		ps = append(ps, p)
	}
	slices.SortFunc(ps, func(x, y *place) int { return cmp.Compare(x.what.Dir, y.what.Dir) })
	return ps
}

// judgeAnswer reports a server that has been silent for too long. On an overloaded machine the limit is much longer,
// unless the postmaster is stopped by a signal.
func (m *Monitor) judgeAnswer(t Target, now time.Duration) ag.Health {
	lasts, fails, err := m.answer.trouble(now)
	if lasts < t.Wait {
		return m.judgeSilence(t, now, lasts)
	}
	if fails > 0 && errors.Is(err, ErrExhausted) {
		return ag.Health{Level: levelModerate, Because: fmt.Sprintf("PostgreSQL has had no room for a superuser's connection for %s: %v", round(lasts), err)}
	}
	stopped := m.stopped(t.PID)
	if !stopped && m.busy() && lasts < patient*t.Wait {
		return ag.Health{}
	}
	why := fmt.Sprintf("PostgreSQL has not answered a new connection for %s (HEALTH_CHECK_TIMEOUT %s)", round(lasts), t.Wait)
	switch {
	case stopped:
		why += "; its postmaster is stopped"
	case err != nil && !errors.Is(err, context.DeadlineExceeded):
		why += ": " + err.Error()
	}
	return ag.Health{Level: levelUnresponsive, Because: why, Restart: true}
}

// judgeSilence reports a primary whose postmaster is stopped and has not answered for longer than is usual here, before
// HEALTH_CHECK_TIMEOUT. Of another postmaster it is not known whether it hangs: its new process may wait for a lock
// that VACUUM FULL holds on a catalog, for a processor, or for a disk.
func (m *Monitor) judgeSilence(t Target, now, lasts time.Duration) ag.Health {
	if !t.Writable || t.Unusual == 0 {
		return ag.Health{}
	}
	limit, longest := m.answer.unusual(now, t.Unusual, t.Wait)
	if lasts < limit || !m.stopped(t.PID) {
		return ag.Health{}
	}
	why := fmt.Sprintf("PostgreSQL has not answered a new connection for %s, and took %s at most in the last day; its postmaster is stopped", round(lasts), longest.Round(time.Millisecond))
	return ag.Health{Level: levelUnresponsive, Because: why, Restart: true}
}

func (m *Monitor) judgeCommit(t Target, now time.Duration) ag.Health {
	lasts, fails, err := m.commit.trouble(now)
	if lasts < t.Wait || m.busy() && lasts < patient*t.Wait {
		return ag.Health{}
	}
	h := ag.Health{Level: levelAny, Because: fmt.Sprintf("a commit that waits for no secondary has not ended for %s", round(lasts))}
	switch {
	case fails > 0 && errors.Is(err, ErrBlocked):
		h.Because = fmt.Sprintf("for %s nobody could do anything: %v", round(lasts), err)
	case fails > 0 && err != nil && !errors.Is(err, context.DeadlineExceeded):
		h.Because = fmt.Sprintf("PostgreSQL has refused a tiny commit for %s: %v", round(lasts), err)
	}
	return h
}

// judgeBases returns what is wrong with the first database that is not online, and the names of all that are not.
func (m *Monitor) judgeBases(now time.Duration) (why string, names []string) {
	_, fails, err := m.bases.trouble(now)
	var f basesError
	if fails < sure || !errors.As(err, &f) {
		return "", nil
	}
	for _, x := range f {
		names = append(names, x.Name)
	}
	return fmt.Sprintf("database %s is not online: %s", f[0].Name, f[0].Err), names
}

func (p *place) judge(t Target, now time.Duration) ag.Health {
	w, space := p.now()
	lasts, fails, err := p.trouble(now)
	moves := lasts > 0 && p.progress(now, t.Wait/2) // counted from the first failure, long before it matters
	hangs := fmt.Sprintf("%s does not answer: writing, syncing and reading 8 KiB in %s has not ended for %s", w.Name, w.Dir, round(lasts))
	switch {
	case fails >= sure && errors.Is(err, syscall.ENOSPC), space.Total != 0 && space.Free < w.Floor && fails == 0 && lasts < t.Wait:
		return ag.Health{Level: levelModerate, Because: fmt.Sprintf("%s is full: %s has %s free of %s", w.Name, w.Dir, size(space.Free), size(space.Total))}
	case fails >= sure:
		return ag.Health{Level: levelCritical, Because: fmt.Sprintf("%s cannot be written and read: %v", w.Name, err)}
	case fails == 0 && lasts >= t.Wait && (!moves || lasts >= patient*t.Wait):
		return ag.Health{Level: levelCritical, Because: hangs}
	}
	if !t.Writable || t.Unusual == 0 || fails > 0 || lasts == 0 {
		return ag.Health{}
	}
	limit, longest := p.unusual(now, p.leastUnusual(t.Unusual), t.Wait)
	if lasts < limit || p.progress(now, limit/2) {
		return ag.Health{}
	}
	return ag.Health{Level: levelCritical, Because: fmt.Sprintf("%s, and took %s at most in the last day", hangs, longest.Round(time.Millisecond))}
}

// round shortens a duration so that it stays equal for a while: a report with no news then compares equal.
func round(d time.Duration) time.Duration {
	if d > 10*time.Second {
		return d.Truncate(10 * time.Second)
	}
	return d.Truncate(time.Second)
}

func size(n int64) string {
	switch {
	case n < 1<<20:
		return fmt.Sprintf("%d KiB", n>>10)
	case n < 1<<30:
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}
