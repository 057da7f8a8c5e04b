package postgres

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/postgres/programs"
)

// TestEndRecovery ends the recovery of copies that were stopped in order and killed, from every state that an
// interruption leaves, and of the primary. Each then starts without any setting of the group, and has every row.
func TestEndRecovery(t *testing.T) {
	p := newPrimary(t, false)
	p.sql("CREATE TABLE t (v int)", "INSERT INTO t SELECT generate_series(1, 1000)")
	if err := p.EnsureSlots(t.Context(), []string{"cot_n2"}, nil); err != nil {
		t.Fatal(err)
	}
	rows := 1000
	for name, tt := range map[string]struct {
		end     syscall.Signal
		prepare func(s *server) error
	}{
		"stopped in order":              {syscall.SIGINT, nil},
		"killed":                        {syscall.SIGQUIT, nil},
		"interrupted with both signals": {syscall.SIGINT, func(s *server) error { return createEmpty(s.path("recovery.signal")) }},
		"interrupted without standby.signal": {syscall.SIGINT, func(s *server) error {
			return errors.Join(createEmpty(s.path("recovery.signal")), os.Remove(s.path("standby.signal")))
		}},
		"interrupted after the recovery": {syscall.SIGINT, func(s *server) error { return s.EndRecovery(t.Context()) }},
		"after a promotion that was not": {syscall.SIGINT, func(s *server) error { return s.skipTo(1, 5) }},
	} {
		s := p.clone("cot_n2")
		s.start(false)
		s.streams(p)
		p.sql("INSERT INTO t VALUES (0)")
		rows++
		s.streams(p)
		s.kill(tt.end)
		if tt.prepare != nil {
			if err := tt.prepare(s); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		if err := s.EndRecovery(t.Context()); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		s.alone(name, rows, 2)
	}
	p.kill(syscall.SIGINT)
	if err := p.EndRecovery(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.alone("the primary", rows, 1)
	if err := createEmpty(p.path("backup_label")); err != nil {
		t.Fatal(err)
	}
	if err := p.EndRecovery(t.Context()); !errors.Is(err, ErrNotWhole) {
		t.Errorf("a copy that is not whole: %v", err)
	}
}

// TestEndRecoveryThatFails holds that a copy whose recovery could not be ended is a standby's as before, with one
// signal file: with recovery.signal beside it, it would not start any more after a promotion. It can be ended later.
func TestEndRecoveryThatFails(t *testing.T) {
	p := newPrimary(t, false)
	p.sql("CREATE TABLE t (v int)", "INSERT INTO t SELECT generate_series(1, 1000)")
	if err := p.EnsureSlots(t.Context(), []string{"cot_n2"}, nil); err != nil {
		t.Fatal(err)
	}
	s := p.clone("cot_n2")
	s.start(false)
	s.streams(p)
	s.kill(syscall.SIGINT)
	conf, err := os.ReadFile(s.configFile())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.configFile(), append(conf, "work_mem = 'much'\n"...), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.EndRecovery(t.Context()); err == nil || !exists(s.path("standby.signal")) || exists(s.path("recovery.signal")) {
		t.Errorf("error %v; standby.signal %v, recovery.signal %v", err, exists(s.path("standby.signal")), exists(s.path("recovery.signal")))
	}
	if err := os.WriteFile(s.configFile(), conf, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.EndRecovery(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.alone("after a failure", 1000, 2)
}

// alone checks that the stopped copy is that of a primary on a timeline, and that PostgreSQL starts on it by its own
// files.
func (s *server) alone(name string, rows int, tli ag.Timeline) {
	s.t.Helper()
	c, err := s.Control(s.t.Context())
	if err != nil || c.State != "shut down" || c.Timeline != tli {
		s.t.Errorf("%s: state %q, timeline %d, %v", name, c.State, c.Timeline, err)
	}
	for _, f := range []string{"standby.signal", "recovery.signal"} {
		if exists(s.path(f)) {
			s.t.Errorf("%s: there is %s", name, f)
		}
	}
	cmd := exec.CommandContext(s.t.Context(), s.Binary(), "--single", "-D", s.cfg.Load().PGData, "postgres")
	cmd.Env, cmd.Stdin = programs.ToolEnv(), strings.NewReader("SELECT count(*) FROM t\n")
	out, err := cmd.CombinedOutput()
	if want := fmt.Sprintf("count = \"%d\"", rows); err != nil || !strings.Contains(string(out), want) {
		s.t.Errorf("%s: want %s, got %v: %s", name, want, err, out)
	}
}
