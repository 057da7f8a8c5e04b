package preflight

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/check"
)

// loopbackPorts returns the numbers of n ports that were free just now.
func loopbackPorts(t *testing.T, n int) []string {
	t.Helper()
	var out []string
	for range n {
		l, err := net.Listen("tcp", ":0")
		if err != nil {
			t.Fatal(err)
		}
		_, p, _ := net.SplitHostPort(l.Addr().String())
		out = append(out, p)
		defer func() { _ = l.Close() }()
	}
	return out
}

func finding(found []check.Finding, text string) check.Finding {
	for _, f := range found {
		if strings.Contains(f.What, text) {
			return f
		}
	}
	return check.Finding{}
}

func TestPreflight(t *testing.T) {
	a := &Answerer{Dir: t.TempDir(), Ports: loopbackPorts(t, 4)}
	if err := a.Listen(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	own, err := DescribeMachine(t.Context(), a.Dir)
	if err != nil {
		t.Fatal(err)
	}
	found, err := Other(t.Context(), own, "127.0.0.1", a.Ports)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"is 127.0.0.1", "port " + a.Ports[0] + " answers", "port " + a.Ports[3] + " answers", "nothing lost", "a flush takes", "are free for"} {
		if finding(found, want).What == "" {
			t.Errorf("nothing said of %q: %+v", want, found)
		}
	}
	if f := finding(found, "its clock"); f.What != "" {
		t.Errorf("one clock differs from itself: %+v", f)
	}
	own.Libc, own.Majors = "glibc 1.0", []int{9}
	own.Now = own.Now.Add(time.Hour)
	found, err = Other(t.Context(), own, "127.0.0.1", a.Ports)
	if err != nil {
		t.Fatal(err)
	}
	if f := finding(found, "glibc 1.0 here"); f.Level != check.Problem || f.Run == "" {
		t.Errorf("another C library: %+v", f)
	}
	found, err = Other(t.Context(), own, "127.0.0.1", loopbackPorts(t, 2)) // nothing listens on them
	if f := finding(found, "nobody answers"); err != nil || f.Level != check.Warning || !strings.Contains(f.Run, "--answer") {
		t.Errorf("nobody there: %+v, %v", found, err)
	}
	if _, err := Other(t.Context(), own, "no-such-host.invalid", a.Ports); err == nil {
		t.Error("a name that does not exist")
	}
}

// TestOneDescriptionAtATime holds that a host is described to one caller after the other: anybody may ask, and a
// description runs programs and flushes the disk.
func TestOneDescriptionAtATime(t *testing.T) {
	bin := t.TempDir()
	const script = "#!/bin/sh\nmkdir \"$0.runs\" || touch \"$0.twice\"\nsleep 0.3\nrmdir \"$0.runs\"\n"
	program := filepath.Join(bin, "locale") // one of those that a description runs
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	a := &Answerer{Dir: t.TempDir(), Ports: loopbackPorts(t, 1)}
	if err := a.Listen(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	var asked sync.WaitGroup
	for range 4 {
		asked.Go(func() {
			if m, err := fetchMachine(t.Context(), "127.0.0.1", a.Ports); err != nil || m.Arch == "" {
				t.Errorf("%+v, %v", m, err)
			}
		})
	}
	asked.Wait()
	if _, err := os.Stat(program + ".twice"); err == nil {
		t.Error("two descriptions at once")
	}
}

func TestJudgeMachine(t *testing.T) {
	good := JudgeMachine(HostFacts{software: software{Majors: []int{15}}, Flush: time.Millisecond, Free: 100 << 30}, "/x")
	if check.Worst(good) != check.OK {
		t.Errorf("%+v", good)
	}
	for _, m := range []HostFacts{
		{Flush: time.Millisecond, Free: 100 << 30},
		{software: software{Majors: []int{15}}, Flush: time.Microsecond, Free: 100 << 30},
		{software: software{Majors: []int{15}}, Flush: time.Second, Free: 100 << 30},
		{software: software{Majors: []int{15}}, Flush: time.Millisecond, Free: 5 << 30},
		{software: software{Majors: []int{15}}, Flush: time.Millisecond},
	} {
		for _, f := range JudgeMachine(m, "/x") {
			if f.Level != check.OK && (f.Why == "" || f.Run == "") {
				t.Errorf("%+v says not what to do: %+v", m, f)
			}
		}
		if check.Worst(JudgeMachine(m, "/x")) == check.OK {
			t.Errorf("%+v is fine", m)
		}
	}
}

func TestCompareSoftware(t *testing.T) {
	here := software{Arch: "amd64", Majors: []int{15, 17}, Libc: "glibc 2.36", Locales: []string{"C", "de_DE.utf8"}, Libraries: []string{"postgis-3", "pg_stat_statements"}}
	if found := here.compare(here); len(found) != 0 {
		t.Errorf("the same: %+v", found)
	}
	for name, c := range map[string]struct {
		change func(*software)
		want   check.Level
		says   string
	}{
		"another processor":         {func(s *software) { s.Arch = "arm64" }, check.Problem, "arm64 there, amd64 here"},
		"another major":             {func(s *software) { s.Majors = []int{16} }, check.Problem, "PostgreSQL [16] there, [15 17] here"},
		"a witness needs none":      {func(s *software) { s.Majors = nil }, check.OK, ""},
		"an unknown C library":      {func(s *software) { s.Libc = "" }, check.OK, ""},
		"another C library":         {func(s *software) { s.Libc = "glibc 2.41" }, check.Problem, "glibc 2.41 there"},
		"a locale less":             {func(s *software) { s.Locales = []string{"C"} }, check.Warning, "not there: de_DE.utf8"},
		"a library less":            {func(s *software) { s.Libraries = s.Libraries[1:] }, check.Warning, "not there: postgis-3"},
		"a library more, no locale": {func(s *software) { s.Libraries, s.Locales = append(s.Libraries, "x"), nil }, check.OK, ""},
	} {
		there := here
		c.change(&there)
		found := here.compare(there)
		if check.Worst(found) != c.want || c.says != "" && (finding(found, c.says).Run == "" || finding(found, c.says).Why == "") {
			t.Errorf("%s: %+v", name, found)
		}
	}
	if got := missingFrom([]string{"1", "2", "3", "4", "5", "6", "7"}, []string{"x"}); got != "1, 2, 3, 4, 5 and 2 more" {
		t.Errorf("many: %s", got)
	}
}
