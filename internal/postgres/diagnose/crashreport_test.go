package diagnose

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/lib/rotating"
	"github.com/coteriedb/coterie/internal/postgres/session"
)

func TestAutopsy(t *testing.T) {
	const start = "2026-01-01 00:00:00.000 UTC [1] LOG:  starting PostgreSQL 15.18\n"
	for _, tt := range []struct{ name, log, want string }{
		{"nothing", start + "LOG:  database system is ready\n", ""},
		{"an fsync failed", start + "PANIC:  could not fdatasync file \"000000010000000000000003\": Input/output error\n", "lost"},
		{"an fsync of a data file failed", start + "PANIC:  could not fsync file \"base/5/1259\": Input/output error\n", "lost"},
		{"an fsync failed for want of room", start + "PANIC:  could not fsync file \"pg_wal/xlogtemp.14026\": No space left on device\n", "lost"},
		{"the file system has made itself read-only", start + "PANIC:  could not open file \"pg_wal/000000010000000000000003\": Read-only file system\n", "lost"},
		{"with its state", start + "PANIC:  58030: could not fsync file \"base/5/1259\": Input/output error\n", "lost"},
		{"of the run before", "PANIC:  could not fsync file \"base/5/1259\": Input/output error\n" + start, ""},
		{"no room for WAL", start + "PANIC:  could not write to file \"pg_wal/xlogtemp.27\": No space left on device\n", "room"},
		{"no room at start", start + "FATAL:  could not write lock file \"postmaster.pid\": No space left on device\n", "room"},
		{"no room for data is an error of one statement", start + "ERROR:  could not extend file \"base/5/9\": No space left on device\n", ""},
		{"another panic", start + "PANIC:  stuck spinlock detected\n", "panic"},
		{"a client's statement", start + "ERROR:  division by zero\n[7] STATEMENT:  select 1/0 /* PANIC:  could not fsync file \"x\": Input/output error\n" +
			"\tPANIC:  could not fsync file \"x\": Input/output error */\n", ""},
		{"a client's database", start + "[7] FATAL:  database \"could not fsync file: Input/output error\" does not exist\n", ""},
		{"a client's application", start + "PANIC:  could not fsync file \"x\": Input/output error LOG:  disconnection\n", ""},
		{"a client's library", start + "FATAL:  could not access file \"$libdir/plugins/Read-only file system\": No such file or directory\n", ""},
		{"another server's end", start + "FATAL:  could not receive data from WAL stream: PANIC:  could not fsync file \"x\": Input/output error\n", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			log := filepath.Join(dir, "postgres.log")
			if err := os.WriteFile(log, []byte(strings.Repeat("LOG:  checkpoint\n", 10)+tt.log), 0o600); err != nil {
				t.Fatal(err)
			}
			c, err := New(session.Server{}, dir).CrashReport(t.Context(), log)
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			switch {
			case c.Lost != "":
				got = "lost"
			case c.NoRoom != "":
				got = "room"
			case c.Panic != "":
				got = "panic"
			}
			if got != tt.want {
				t.Errorf("%+v, want %q", c, tt.want)
			}
		})
	}
}

func TestAutopsyReadsTheCollectorsLogAndNothingOld(t *testing.T) {
	dir := t.TempDir()
	own, collected := filepath.Join(dir, "postgres.log"), filepath.Join(dir, "log", "a.csv")
	if err := os.Mkdir(filepath.Join(dir, "log"), 0o700); err != nil {
		t.Fatal(err)
	}
	old := `x,,,"PANIC","58030","could not fsync file ""base/1/1""",,,` + "\n"
	for path, content := range map[string]string{own: "LOG: ending log output to stderr\n", collected: old, filepath.Join(dir, "current_logfiles"): "csvlog log/a.csv\n"} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	i := New(session.Server{}, dir)
	if c, err := i.CrashReport(t.Context(), own); err != nil || c.Lost == "" {
		t.Fatalf("%+v, %v", c, err)
	}
	i.MarkLogs(own)
	if c, err := i.CrashReport(t.Context(), own); err != nil || c != (CrashReport{}) {
		t.Fatalf("what was logged before the last start counts: %+v, %v", c, err)
	}
}

// TestClientsTextsInRecords holds that a text of a client is no report of the server in logs of records either.
func TestClientsTextsInRecords(t *testing.T) {
	const lost = `could not fsync file "base/1/1": Input/output error`
	for name, tt := range map[string]struct {
		format, line string
		want         bool
	}{
		"CSV": {"csvlog", `2026-01-01 00:00:00.000 UTC,,,7,,6.1,1,,,,0,PANIC,58030,"could not fsync file ""base/1/1"": Input/output error",,,,,,,,,"","checkpointer",,0`, true},
		"CSV, a statement": {"csvlog", `2026-01-01 00:00:00.000 UTC,"u","d",7,"[local]",6.1,1,"SELECT",,,0,ERROR,22012,"division by zero",,,,,,"select 1/0 /*
x,,,PANIC,58030,""could not fsync file: Input/output error"",
x,,,""PANIC"",""58030"",""could not fsync file: Input/output error"", */",,,"psql","client backend",,0`, false},
		"JSON":              {"jsonlog", `{"pid":7,"error_severity":"PANIC","message":"could not fsync file \"base/1/1\": Input/output error"}`, true},
		"JSON, a statement": {"jsonlog", `{"pid":7,"error_severity":"ERROR","message":"division by zero","statement":"select 1/0 -- \"error_severity\":\"PANIC\",\"message\":\"could not fsync file\""}`, false},
	} {
		dir := t.TempDir()
		for file, text := range map[string]string{"x.log": tt.line + "\n", "current_logfiles": tt.format + " x.log\n", "postgres.log": ""} {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		c, err := New(session.Server{}, dir).CrashReport(t.Context(), filepath.Join(dir, "postgres.log"))
		if err != nil || tt.want != (c.Lost == "PANIC:  "+lost) || !tt.want && c != (CrashReport{}) {
			t.Errorf("%s: %+v, %v", name, c, err)
		}
	}
}

// TestAutopsyReadsWhatWasRotated holds that the reason of an end is found in the old file if the log was rotated since
// the server started, once and twice, and that nothing from before the start counts.
func TestAutopsyReadsWhatWasRotated(t *testing.T) {
	const panicked = "PANIC:  could not fsync file \"base/1/1\": Input/output error\n"
	own := filepath.Join(t.TempDir(), "postgres.log")
	write := func(path, text string) {
		t.Helper()
		f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(text); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	lost := func(i *Checks) bool {
		t.Helper()
		c, err := i.CrashReport(t.Context(), own)
		if err != nil {
			t.Fatal(err)
		}
		return c.Lost != ""
	}
	for name, tt := range map[string]struct {
		before, started, later string
		want                   bool
	}{
		"before the start":      {panicked, "LOG:  fine\n", "LOG:  fine\n", false},
		"in the old file":       {"", "LOG:  fine\n" + panicked, "LOG:  shut down\n", true},
		"in the new one":        {panicked, "LOG:  fine\n", panicked, true},
		"a new one that is big": {"", panicked, strings.Repeat("LOG:  fine\n", 100), true},
	} {
		for _, path := range []string{own, own + ".1", own + ".2"} {
			_ = os.Remove(path)
		}
		write(own, tt.before)
		i := New(session.Server{}, filepath.Dir(own))
		i.MarkLogs(own)
		write(own, tt.started)
		if err := rotating.Shift(own); err != nil {
			t.Fatal(err)
		}
		if got := lost(i); got != strings.Contains(tt.started, "PANIC") {
			t.Errorf("%s: between the two files: %v", name, got)
		}
		write(own, tt.later)
		if got := lost(i); got != tt.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	write(own, panicked)
	i := New(session.Server{}, filepath.Dir(own))
	i.MarkLogs(own)
	for _, text := range []string{"LOG:  fine\n" + panicked, "LOG:  fine\n"} {
		if err := rotating.Shift(own); err != nil {
			t.Fatal(err)
		}
		write(own, text)
	}
	if !lost(i) {
		t.Error("rotated twice: the reason is not found")
	}
}
