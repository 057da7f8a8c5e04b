package continuitybench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/bench/listenerbench"
	"github.com/coteriedb/coterie/internal/bench/observe"
	"github.com/coteriedb/coterie/internal/measure/report"
)

// Arm is a part of the measurement.
type Arm string

// The arms. The leadership moves as planned. The primary's node dies. The primary's PostgreSQL dies, and its agent
// lives. And what continuity costs when nothing fails.
const (
	ArmPlanned Arm = "planned"
	ArmNode    Arm = "node"
	ArmServer  Arm = "server"
	ArmCost    Arm = "cost"
)

// Arms lists them in the order in which they run.
var Arms = []Arm{ArmPlanned, ArmNode, ArmServer, ArmCost}

// Lab is a group whose servers can be killed alone, too.
type Lab interface {
	observe.Lab
	KillServer(ctx context.Context, node string) error
}

// Options say what is measured.
type Options struct {
	Runs     int           // faults of each kind
	Clients  int           // of TPC-B
	Sessions int           // with settings, channels and prepared statements
	Pace     time.Duration // mean pause between two transactions of a client; 0: none
	Only     []Arm         // none: all
	Dir      string        // for the ledgers
	Version  string
	Server   string
	Screen   *observe.Screen

	Up    func(ctx context.Context) (Lab, error)
	Group func(ctx context.Context, dsn string) (Group, error)
	Cost  func(ctx context.Context, say func(format string, a ...any)) (*listenerbench.Cost, error)
}

// Group takes statements about the group.
type Group interface {
	Name() string
	Statement(ctx context.Context, sql string) error
}

// measurement is a Measure that runs.
type measurement struct {
	Options
	lab Lab

	began time.Time
	done  int // steps
	of    int
}

func (o *Options) wants(a Arm) bool { return len(o.Only) == 0 || slices.Contains(o.Only, a) }

// Measure runs the arms. The samples are those until the first error.
func Measure(ctx context.Context, o Options) (s *Samples, err error) {
	m := &measurement{Options: o, began: time.Now()}
	s = &Samples{
		Version: o.Version, Date: time.Now().UTC(), Server: o.Server, Machine: report.Describe(o.Dir), Missing: map[string]string{},
		Settings: map[string]string{
			"clients": fmt.Sprint(o.Clients), "sessions": fmt.Sprint(o.Sessions), "pace": o.Pace.String(), "runs": fmt.Sprint(o.Runs),
			"CONTINUITY": "REPLAY", "branches": fmt.Sprint(branches),
		},
	}
	for _, a := range []Arm{ArmPlanned, ArmNode, ArmServer} {
		if m.wants(a) {
			m.of += o.Runs
		}
	}
	if m.of > 0 {
		err = m.group(ctx, s)
	}
	if err == nil && m.wants(ArmCost) && o.Cost != nil {
		m.busy("what continuity costs")
		if s.Cost, err = o.Cost(ctx, m.Screen.Say); err != nil {
			s.Missing[string(ArmCost)] = err.Error()
		}
	}
	s.judge(why(err))
	return s, err
}

func why(err error) string {
	if err != nil {
		return "an error ended the measurement"
	}
	return "not asked for"
}

// group measures the arms that need the lab.
func (m *measurement) group(ctx context.Context, s *Samples) (err error) {
	m.Screen.Busy("lab up")
	if m.lab, err = m.Up(ctx); err != nil {
		return fmt.Errorf("lab up: %w", err)
	}
	defer func() {
		m.Screen.Busy("stopping the group")
		c, cancel := context.WithTimeout(context.WithoutCancel(ctx), observe.DownBudget)
		defer cancel()
		err = errors.Join(err, m.lab.Down(c, false))
	}()
	m.Screen.Say("lab up with %d replicas: %.1f s", len(m.lab.Nodes()), time.Since(m.began).Seconds())
	g, err := m.Group(ctx, m.lab.ReadWrite())
	if err != nil {
		return err
	}
	if err := g.Statement(ctx, fmt.Sprintf("ALTER AVAILABILITY GROUP [%s] SET (CONTINUITY = REPLAY)", g.Name())); err != nil {
		return fmt.Errorf("turn REPLAY on: %w", err)
	}
	if err := loadTables(ctx, m.lab.ReadWrite()); err != nil {
		return err
	}
	m.began = time.Now()
	if m.wants(ArmPlanned) {
		if err := m.planned(ctx, s); err != nil {
			return fmt.Errorf("planned failovers: %w", err)
		}
	}
	for i := range m.Runs {
		for _, a := range []Arm{ArmNode, ArmServer} {
			if !m.wants(a) {
				continue
			}
			r, err := m.death(ctx, a, i+1)
			if err != nil {
				return fmt.Errorf("run %d, %s: %w", i+1, a, err)
			}
			s.Runs = append(s.Runs, r)
			kept, of := r.kept()
			m.step("%s %d/%d: %s died, %s leads, all back after %.2f s: %d of %d sessions kept, %d of %d open transactions succeeded, doubtful %v, wrong %d", a, i+1, m.Runs,
				r.From, r.To, r.TookS, kept, of, r.Succeeded, r.Open, r.Doubtful, r.Wrong)
		}
	}
	return nil
}

// step prints a line for a fault that was measured.
func (m *measurement) step(format string, a ...any) {
	m.done++
	m.Screen.Say(format, a...)
}

// busy shows what is being done, and how long the faults that are left may take.
func (m *measurement) busy(format string, a ...any) {
	text := fmt.Sprintf(format, a...)
	if m.done > 0 && m.done < m.of {
		left := time.Since(m.began) / time.Duration(m.done) * time.Duration(m.of-m.done)
		text += fmt.Sprintf(" (%d of %d done, about %v left)", m.done, m.of, left.Round(time.Second))
	}
	m.Screen.Busy("%s", text)
}

// prospect is what the view of sessions says of some of them.
type prospect struct {
	Node       string `json:"node"` // whose listener they came through
	Sessions   int    `json:"sessions"`
	NodeLoss   string `json:"node_loss"` // KEPT, or why not
	ServerLoss string `json:"server_loss"`
}

type outlook []prospect

// kept returns how many sessions would outlive the fault of the arm.
func (o outlook) kept(a Arm) (n int) {
	for _, p := range o {
		if a == ArmNode && p.NodeLoss == "KEPT" || a == ArmServer && p.ServerLoss == "KEPT" {
			n += p.Sessions
		}
	}
	return n
}

// outlook asks the group what would become of the clients' sessions.
func (m *measurement) outlook(ctx context.Context) (o outlook, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	cfg, err := pgx.ParseConfig(m.lab.ReadWrite())
	if err != nil {
		return nil, err
	}
	cfg.Database, cfg.DefaultQueryExecMode = "coterie", pgx.QueryExecModeSimpleProtocol
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	rows, err := conn.Query(ctx, `SELECT node, sessions, coalesce(node_loss_reason, node_loss), coalesce(server_loss_reason, server_loss) FROM coterie.continuity
		WHERE application_name = '`+appName+`' ORDER BY node, sessions DESC`)
	if err != nil {
		return nil, fmt.Errorf("ask what would become of the sessions: %w", err)
	}
	var p prospect
	_, err = pgx.ForEachRow(rows, []any{&p.Node, &p.Sessions, &p.NodeLoss, &p.ServerLoss}, func() error {
		o = append(o, p)
		return nil
	})
	return o, err
}
