package consolebench

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/bench/observe"
	"github.com/coteriedb/coterie/internal/lib/retry"
)

// late is how long events of a change may take to reach the consoles.
const late = 3 * time.Second

// events makes changes while all consoles are open, and looks when each console was told.
func (m *measurement) events(ctx context.Context, s *Samples) error {
	if m.Changes == 0 {
		return nil
	}
	return m.opened(ctx, s, func(ctx context.Context) error {
		shows, err := m.watched()
		if err != nil {
			return fmt.Errorf("in the browser: %w", err)
		}
		if shows != nil {
			defer func() { _ = shows.close() }()
		}
		for i := range m.Changes {
			for _, kind := range []string{"suspend", "failover"} {
				m.busy("%s %d of %d", kind, i+1, m.Changes)
				c, err := m.change(ctx, kind, shows)
				if err != nil {
					return fmt.Errorf("%s: %w", kind, err)
				}
				s.Changes = append(s.Changes, c)
				m.step(aChange, "%s %d/%d: %s", kind, i+1, m.Changes, c)
			}
		}
		return nil
	})
}

// watched opens a page that notes when it shows an event; nil if there is no browser.
func (m *measurement) watched() (*page, error) {
	if m.browser == nil {
		return nil, nil
	}
	p, _, err := m.browser.first(m.base, m.cookies)
	if err != nil {
		return nil, err
	}
	return p, p.watch()
}

// change makes one change and waits until its events are everywhere.
func (m *measurement) change(ctx context.Context, kind string, shows *page) (c Change, err error) {
	began := time.Now()
	to := ""
	if kind == "failover" {
		to, err = m.failover(ctx)
	} else {
		to, err = m.suspend(ctx)
	}
	if err != nil {
		return c, err
	}
	if err := m.synchronized(ctx); err != nil {
		return c, err
	}
	if err := retry.Sleep(ctx, late); err != nil {
		return c, err
	}
	shown, err := shows.told()
	return m.seen(kind, to, began, shown), err
}

// suspend suspends a secondary, and resumes it once it is suspended.
func (m *measurement) suspend(ctx context.Context) (string, error) {
	st, err := observe.Primary(ctx, m.lab)
	if err != nil {
		return "", err
	}
	to := string(observe.Target(st, m.node))
	for _, verb := range []string{"SUSPEND", "RESUME"} {
		if err := m.group.Statement(ctx, fmt.Sprintf("ALTER AVAILABILITY GROUP [%s] %s REPLICA ON N'%s'", m.group.Name(), verb, to)); err != nil {
			return to, err
		}
		if err := retry.Sleep(ctx, late); err != nil {
			return to, err
		}
	}
	return to, nil
}

// failover moves the leadership as planned.
func (m *measurement) failover(ctx context.Context) (string, error) {
	st, err := observe.Primary(ctx, m.lab)
	if err != nil {
		return "", err
	}
	to := observe.Target(st, "")
	c, cancel := context.WithTimeout(ctx, observe.FailoverBudget)
	defer cancel()
	_, err = m.lab.Agent(string(st.Node)).Failover(c, api.FailoverRequest{To: to})
	return string(to), err
}

// seen collects what the consoles were told of a change.
func (m *measurement) seen(kind, to string, began time.Time, shown map[int64]int64) Change {
	c := Change{Kind: kind, To: to}
	by := map[told][]float64{} // by event
	var led time.Time
	var statuses []time.Time
	for _, o := range m.all {
		for _, x := range o.toldSince(began) {
			if x.Kind == "status" {
				if x.What == to {
					statuses = append(statuses, x.Came)
				}
				continue
			}
			if x.Kind == "leadership" && (led.IsZero() || x.At.Before(led)) {
				led = x.At
			}
			key := told{Kind: x.Kind, What: x.What, At: x.At}
			by[key] = append(by[key], ms(x.Came.Sub(x.At)))
		}
	}
	for key, delays := range by {
		e := Event{Kind: key.Kind, What: key.What, At: key.At, Consoles: len(delays), MedianMS: sorted(delays)[len(delays)/2], LastMS: slices.Max(delays)}
		if at := shown[key.At.UnixMilli()]; at > 0 {
			e.ShownMS = ms(time.UnixMilli(at).Sub(key.At))
		}
		c.Events = append(c.Events, e)
	}
	slices.SortFunc(c.Events, func(a, b Event) int { return a.At.Compare(b.At) })
	for _, t := range statuses {
		if !led.IsZero() {
			c.StatusMS = append(c.StatusMS, ms(t.Sub(led)))
		}
	}
	return c
}
