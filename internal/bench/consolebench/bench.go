package consolebench

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/bench/observe"
	"github.com/coteriedb/coterie/internal/lab"
	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/measure/report"
)

// MaxConsoles is how many consoles one node lets open, with room for those of the first screen and of the browser.
const MaxConsoles = 56

// Lab is a group whose nodes tell the addresses of their consoles.
type Lab interface {
	observe.Lab
	Status(ctx context.Context) (lab.Status, error)
}

// Group takes statements about the group.
type Group interface {
	Name() string
	Statement(ctx context.Context, sql string) error
}

// Options say what is measured.
type Options struct {
	Runs     int           // first screens
	Consoles int           // open at once
	Rounds   int           // of the cost
	For      time.Duration // how long each part of a round is measured
	Changes  int           // of each kind: a suspended replica, and a planned failover
	Version  string
	Server   string
	Screen   *observe.Screen

	Up    func(ctx context.Context) (Lab, error)
	Group func(ctx context.Context, dsn string) (Group, error)
}

// measurement is a Measure that runs.
type measurement struct {
	Options
	lab      Lab
	group    Group
	node     string // whose console is measured; the first primary
	base     string // address of its console
	password string
	all      []*open
	cookies  []*http.Cookie // of the login of the first screens
	browser  *chromium      // nil: there is none

	began    time.Time
	done, of time.Duration // that the steps should take
}

// Measure makes a group and measures the console of its primary's node. The samples are those until the first error.
func Measure(ctx context.Context, o Options) (s *Samples, err error) {
	m := &measurement{Options: o, password: password(), of: time.Duration(o.Runs)*aScreen + time.Duration(2*o.Rounds)*(settle+o.For) + time.Duration(2*o.Changes)*aChange}
	s = &Samples{
		Version: o.Version, Date: time.Now().UTC(), Server: o.Server, Machine: report.Describe(os.TempDir()), Consoles: o.Consoles,
		Missing: map[string]string{},
	}
	defer func() {
		if err != nil {
			s.judge("an error ended the measurement")
			return
		}
		s.judge("not asked for")
	}()
	m.Screen.Busy("lab up")
	if m.lab, err = m.Up(ctx); err != nil {
		return s, fmt.Errorf("lab up: %w", err)
	}
	defer func() {
		m.Screen.Busy("stopping the group")
		c, cancel := context.WithTimeout(context.WithoutCancel(ctx), observe.DownBudget)
		defer cancel()
		err = errors.Join(err, m.lab.Down(c, false))
	}()
	if m.browser, err = startChromium(ctx); err != nil {
		s.Missing["browser"], m.browser = err.Error(), nil
	}
	defer m.browser.close()
	return s, m.run(ctx, s)
}

func (m *measurement) run(ctx context.Context, s *Samples) error {
	if err := m.prepare(ctx); err != nil {
		return err
	}
	m.began = time.Now()
	if err := m.firstScreens(ctx, s); err != nil {
		return fmt.Errorf("first screen: %w", err)
	}
	if err := m.cost(ctx, s); err != nil {
		return fmt.Errorf("cost: %w", err)
	}
	if err := m.events(ctx, s); err != nil {
		return fmt.Errorf("events: %w", err)
	}
	return nil
}

// aScreen and aChange are the usual times of a first screen and of a change, for the time that the rest takes.
const (
	aScreen = 2 * time.Second
	aChange = 9 * time.Second
)

// step prints a line for something that was measured, and that should have taken so long.
func (m *measurement) step(took time.Duration, format string, a ...any) {
	m.done += took
	m.Screen.Say(format, a...)
}

// busy shows what is being done, and how long the steps that are left may take.
func (m *measurement) busy(format string, a ...any) {
	text := fmt.Sprintf(format, a...)
	if m.done > 0 && m.done < m.of {
		left := time.Duration(float64(time.Since(m.began)) / float64(m.done) * float64(m.of-m.done))
		text += fmt.Sprintf(" (%d %% done, about %v left)", 100*m.done/m.of, left.Round(time.Second))
	}
	m.Screen.Busy("%s", text)
}

// rolesEach is how many consoles one role opens: a node ends the oldest session of a role with more.
const rolesEach = 8

// firstRole opens the first screens.
const firstRole = "coterie_bench_first"

func role(console int) string { return fmt.Sprintf("coterie_bench_%d", console/rolesEach) }

// prepare waits for the group, makes roles, and logs the consoles in.
func (m *measurement) prepare(ctx context.Context) (err error) {
	m.Screen.Busy("roles and logins")
	if err := m.synchronized(ctx); err != nil {
		return err
	}
	if m.group, err = m.Group(ctx, m.lab.ReadWrite()); err != nil {
		return err
	}
	st, err := m.lab.Status(ctx)
	if err != nil {
		return err
	}
	if st.Primary == nil {
		return errors.New("the group has no primary now")
	}
	m.node = *st.Primary
	r, _ := st.Replica(m.node)
	if m.base = r.Console; m.base == "" {
		return fmt.Errorf("%s has no console in the browser", m.node)
	}
	if err := m.makeRoles(ctx); err != nil {
		return fmt.Errorf("make roles: %w", err)
	}
	for i := range m.Consoles {
		c, err := newClient(m.base, i+1)
		if err != nil {
			return err
		}
		if err := c.logIn(ctx, role(i), m.password); err != nil {
			return err
		}
		m.all = append(m.all, &open{client: c, charts: i%5 == 4, wake: make(chan struct{}, 1)})
	}
	return nil
}

func (m *measurement) makeRoles(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, m.lab.ReadWrite())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	names := []string{firstRole}
	for i := 0; i < m.Consoles; i += rolesEach {
		names = append(names, role(i))
	}
	for _, name := range names { // operators, since a node has fewer places for viewers; the password is of letters and digits
		if _, err := conn.Exec(ctx, fmt.Sprintf("CREATE ROLE %s LOGIN PASSWORD '%s'; GRANT coterie_operator TO %s", name, m.password, name)); err != nil {
			return err
		}
	}
	return nil
}

func (m *measurement) synchronized(ctx context.Context) error {
	return observe.Await(ctx, observe.RejoinBudget, "every replica to be synchronized", func(ctx context.Context) (bool, error) {
		return observe.Synchronized(ctx, m.lab, len(m.lab.Nodes()), "")
	})
}

// firstScreens opens the first screen again and again, by a client and by a browser that have a session and nothing
// else.
func (m *measurement) firstScreens(ctx context.Context, s *Samples) error {
	c, err := newClient(m.base, 0)
	if err != nil {
		return err
	}
	defer c.close()
	if err := c.logIn(ctx, firstRole, m.password); err != nil {
		return err
	}
	m.cookies = c.cookies()
	for i := range m.Runs {
		m.busy("first screen %d of %d", i+1, m.Runs)
		f, err := c.first(ctx)
		if err != nil {
			return err
		}
		s.First = append(s.First, f)
		shown := ""
		if m.browser != nil {
			p, took, err := m.browser.first(m.base, m.cookies)
			if err != nil {
				return fmt.Errorf("in the browser: %w", err)
			}
			if err := p.close(); err != nil {
				return err
			}
			s.Shown = append(s.Shown, took)
			shown = fmt.Sprintf(", shown by a browser after %.0f ms", took)
		}
		m.step(aScreen, "first screen %d/%d: %d requests, %.1f KiB, %.0f ms%s", i+1, m.Runs, f.Requests, float64(f.Bytes)/1024, f.MS, shown)
	}
	return nil
}

// opened opens all consoles and calls f once each has its status. It closes them before it returns.
func (m *measurement) opened(ctx context.Context, s *Samples, f func(ctx context.Context) error) error {
	c, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for _, o := range m.all {
		o.mu.Lock()
		o.ready = false
		o.mu.Unlock()
		wg.Go(func() { o.run(c) })
	}
	defer func() {
		cancel()
		wg.Wait()
		s.Ends, s.Failed = 0, 0
		for _, o := range m.all {
			o.close()
			s.Ends, s.Failed = s.Ends+o.ends, s.Failed+o.failed
			if o.last != nil {
				s.Last = o.last.Error()
			}
		}
	}()
	err := observe.Await(ctx, time.Minute, "every console to be open", func(context.Context) (bool, error) {
		if i := slices.IndexFunc(m.all, func(o *open) bool { return !o.isReady() }); i >= 0 {
			m.all[i].mu.Lock()
			defer m.all[i].mu.Unlock()
			return false, fmt.Errorf("console %d has no status: %w", i+1, m.all[i].last)
		}
		return true, nil
	})
	if err != nil {
		return err
	}
	return f(ctx)
}

// settle is the time from the opening, or the closing, of the consoles until the agent is looked at.
const settle = 3 * time.Second

// cost looks at the agent without a console and with all of them, in turns.
func (m *measurement) cost(ctx context.Context, s *Samples) error {
	pid, err := observe.AgentPID(ctx, m.lab, m.node)
	if err != nil {
		return err
	}
	for i := range m.Rounds {
		r := Round{}
		without := func() (err error) { r.Without, err = m.usage(ctx, pid); return err }
		with := func() error {
			return m.opened(ctx, s, func(ctx context.Context) (err error) { r.With, err = m.usage(ctx, pid); return err })
		}
		turns := []func() error{without, with}
		if i%2 == 1 {
			slices.Reverse(turns)
		}
		for _, turn := range turns {
			m.busy("cost, round %d of %d", i+1, m.Rounds)
			if err := turn(); err != nil {
				return err
			}
			m.done += settle + m.For
		}
		s.Rounds = append(s.Rounds, r)
		m.Screen.Say("cost %d/%d: the agent of %s takes %.2f %% of a core and %.1f MB without a console, %.2f %% and %.1f MB with %d", i+1, m.Rounds, m.node,
			r.Without.CPU, r.Without.MB, r.With.CPU, r.With.MB, m.Consoles)
	}
	return nil
}

func (m *measurement) usage(ctx context.Context, pid int) (u Usage, err error) {
	if err := retry.Sleep(ctx, settle); err != nil {
		return u, err
	}
	began := time.Now()
	before, err := observe.CPUTime(pid)
	if err != nil {
		return u, err
	}
	if err := retry.Sleep(ctx, m.For); err != nil {
		return u, err
	}
	after, err := observe.CPUTime(pid)
	if err != nil {
		return u, err
	}
	u.CPU = 100 * float64(after-before) / float64(time.Since(began))
	u.MB, err = observe.AnonymousMB(pid)
	return u, err
}
