package postgres

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/coteriedb/coterie/internal/lib/fail"
)

// TestParametersOfAServer holds that the settings of a group are judged, written, taken back and left alone on a real
// server.
func TestParametersOfAServer(t *testing.T) {
	s := newPrimary(t, false)
	p := s.Parameters()
	for _, tt := range []struct {
		name, value string
		kind        fail.Kind // "": taken
		says        string
	}{
		{"work_mem", "64MB", "", ""},
		{"max_connections", "150", "", ""},
		{"auto_explain.log_min_duration", "-1", "", ""},
		{"log_line_prefix", "it's \\ %m", "", ""},
		{"work_mem", "lots", fail.Usage, "invalid value for parameter"},
		{"work_memory", "1", fail.Usage, "work_memory"},
		{"server_version", "9", fail.Usage, "cannot be changed"},
		{"restore_command", "cp x", fail.Refused, "belongs to the availability group"},
		{"recovery_target_time", "now", fail.Refused, "belongs to the availability group"},
		{"fsync", "off", fail.Refused, "set by the agent"},
		{"listen_addresses", "*", fail.Refused, "set by the agent"},
		{"shared_buffers", "100TB", fail.Usage, "shared_buffers"},
		{"shared_buffers", "7TB", fail.Refused, "of memory"},
		{"max_connections", "50", "", ""},
		{"max_prepared_transactions", "0", "", ""},
		{"shared_preload_libraries", "nosuchlibrary", fail.Refused, "not installed on this host"},
	} {
		err := p.Check(t.Context(), tt.name, tt.value)
		if tt.kind == "" && err != nil || tt.kind != "" && (fail.KindOf(err) != tt.kind || !strings.Contains(err.Error(), tt.says)) {
			t.Errorf("%s = %q: %v", tt.name, tt.value, err)
		}
	}
	d, err := p.Demand(t.Context(), map[string]string{"work_mem": "64MB", "max_connections": "150", "shared_buffers": "96MB"})
	if err != nil || d.WorkMem != 64<<20 || d.Connections != 150 || d.SharedBuffers != 96<<20 || d.WALBuffers != 3<<20 || d.Maintenance != 64<<20 || d.Workers != 3 || d.Host == 0 {
		t.Errorf("%+v, %v", d, err)
	}
	want := map[string]string{"work_mem": "64MB", "max_connections": "150", "log_line_prefix": "it's \\ %m", "search_path": `a, "B,c", public`}
	apply := func(want map[string]string, ours ...string) []string {
		t.Helper()
		changed, err := p.Apply(t.Context(), want, append(ours, slices.Collect(maps.Keys(want))...))
		if err != nil {
			t.Error(err)
		}
		return changed
	}
	if changed := apply(want); len(changed) != 4 {
		t.Errorf("changed %v", changed)
	}
	if changed := apply(want); len(changed) != 0 {
		t.Errorf("changed %v, which was so already", changed)
	}
	for name, is := range map[string]string{"work_mem": "64MB", "log_line_prefix": "it's \\ %m", "search_path": `a, "B,c", public`} {
		if got, err := p.Text(t.Context(), "SELECT setting FROM pg_file_settings WHERE applied AND name = '"+name+"'"); err != nil || got != is {
			t.Errorf("%s is %q, %v", name, got, err)
		}
	}
	if later, err := p.NeedsRestart(t.Context(), "max_connections"); err != nil || !later {
		t.Errorf("max_connections: %v, %v", later, err)
	}
	if later, err := p.NeedsRestart(t.Context(), "work_mem"); err != nil || later {
		t.Errorf("work_mem: %v, %v", later, err)
	}
	if err := p.Exec(t.Context(), "ALTER SYSTEM SET work_mem = '1MB'"); err != nil {
		t.Fatal(err)
	}
	if err := p.Exec(t.Context(), "ALTER SYSTEM SET jit = off"); err != nil {
		t.Fatal(err)
	}
	delete(want, "search_path")
	if changed := apply(want, "search_path"); !slices.Equal(changed, []string{"search_path", "work_mem"}) {
		t.Errorf("changed %v", changed)
	}
	if _, err := p.Apply(t.Context(), map[string]string{"nonsense": "1", "work_mem": "32MB"}, nil); err == nil || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("a setting that does not exist: %v", err)
	}
	missing, err := p.Missing(map[string]string{"work_mem": "32MB", "pg_stat_statements.max": "5000"}, []string{"max_connections", "log_line_prefix"})
	if err != nil || len(missing) != 3 || missing["max_connections"] != nil || missing["pg_stat_statements.max"] == nil {
		t.Errorf("missing %v, %v", missing, err)
	}
	s.kill(syscall.SIGINT)
	if err := s.WriteAutoConf(missing); err != nil {
		t.Fatal(err)
	}
	s.start(true)
	for name, is := range map[string]string{"work_mem": "32MB", "log_line_prefix": "%m [%p] ", "pg_stat_statements.max": "5000", "jit": "off"} {
		if got, err := p.Text(t.Context(), "SELECT current_setting('"+name+"')"); err != nil || got != is {
			t.Errorf("after a restart %s is %q, %v", name, got, err)
		}
	}
}

// TestRoomForSessions holds that a server keeps room for sessions beside those that are reserved, whichever of the
// settings changes, alone or with others, and is taken back. The values in the files count, not those in force.
func TestRoomForSessions(t *testing.T) {
	s := newPrimary(t, false)
	p := s.Parameters()
	const most, superuser = "max_connections", "superuser_reserved_connections"
	for _, tt := range []struct{ before, change, says, hint string }{
		{"", most + "=10", "max_connections = 10 leaves too little room: 3 are reserved by superuser_reserved_connections = 3", "choose max_connections = 23 or more"},
		{"", most + "=23", "", ""},
		{"", superuser + "=100", "PostgreSQL would not start: max_connections = 100 must be more than the 100 that are reserved by superuser_reserved_connections = 100", "choose max_connections = 120 or more, or reserve 80 or less"},
		{"", superuser + "=81", "max_connections = 100 leaves too little room: 81 are reserved", "or reserve 80 or less"},
		{"", superuser + "=80", "", ""},
		{"", superuser + "=100 " + most + "=120", "", ""},
		{"", superuser + "=30 " + most + "=40", "max_connections = 40 leaves too little room: 30 are reserved", "choose max_connections = 50 or more"},
		{superuser + "=60", most + "=70", "max_connections = 70 leaves too little room: 60 are reserved", "choose max_connections = 80 or more"},
		{superuser + "=200 " + most + "=300", most, "PostgreSQL would not start: max_connections = 100 must be more than the 200", "choose max_connections = 220 or more"},
		{superuser + "=200 " + most + "=300", most + " " + superuser, "", ""},
		{most + "=15", superuser + "=2", "", ""}, // there is more room than before
		{"", "work_mem=1MB", "", ""},
	} {
		ours := []string{most, superuser}
		if _, err := p.Apply(t.Context(), pairs(tt.before), ours); err != nil {
			t.Fatal(err)
		}
		change := map[string]*string{}
		for _, word := range strings.Fields(tt.change) {
			name, value, given := strings.Cut(word, "=")
			if change[name] = nil; given {
				change[name] = &value
			}
		}
		err := p.CheckRoom(t.Context(), change)
		var bad fail.Error
		if tt.says == "" && err != nil || tt.says != "" && (!errors.As(err, &bad) || bad.Kind != fail.Refused || !strings.Contains(err.Error(), tt.says) || !strings.Contains(bad.Hint, tt.hint)) {
			t.Errorf("%s after %s: %v", tt.change, tt.before, err)
		}
	}
}

func pairs(text string) map[string]string {
	out := map[string]string{}
	for _, word := range strings.Fields(text) {
		name, value, _ := strings.Cut(word, "=")
		out[name] = value
	}
	return out
}
