package serverlog

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

const warning = "2026-01-01 UTC [7] WARNING:  canceling wait for synchronous replication due to user request\n"

var good = Settings{Destination: []string{"stderr"}, MinMessages: []string{"warning"}, Messages: []string{"C"}}

// logged returns a reader that relies on a log, and the log as a server has it.
func logged(t *testing.T) (*Reader, *os.File) {
	t.Helper()
	fd, err := unix.MemfdCreate("log", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	w := os.NewFile(uintptr(fd), "log")
	_, err1 := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK)
	_, err2 := unix.FcntlInt(uintptr(fd), unix.F_SETFL, unix.O_APPEND)
	own, err3 := os.Open(fmt.Sprintf("/proc/self/fd/%d", fd))
	r := NewReader()
	if err := errors.Join(err1, err2, err3, r.Use(own)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = w.Close(), r.Close() })
	if r.Sound() {
		t.Error("the log is relied on before the settings are known")
	}
	r.Rely(good, r.Ask())
	if !r.Sound() {
		t.Fatal(r.Weakness())
	}
	return r, w
}

func say(t *testing.T, w *os.File, s string) {
	t.Helper()
	if _, err := w.WriteString(s); err != nil {
		t.Fatal(err)
	}
}

// The warning is found wherever it stands and however it is cut, once, and nothing else counts.
func TestWarningIsFound(t *testing.T) {
	t.Parallel()
	r, w := logged(t)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 3000 {
		var text string
		for range rng.IntN(4) {
			text += "LOG:  " + strings.Repeat("checkpoint wait for sync ", rng.IntN(8000/(i%50+1))) + "\n"
		}
		want := uint64(rng.IntN(2))
		if want == 1 {
			at := rng.IntN(len(text) + 1)
			text = text[:at] + []string{warning, "canceling the wait for synchronous replication and terminating connection due to administrator command"}[rng.IntN(2)] + text[at:]
		}
		before, found := r.Count(), false
		for len(text) > 0 {
			n := 1 + rng.IntN(len(text))
			say(t, w, text[:n])
			text = text[n:]
			if rng.IntN(2) == 0 {
				r.Look()
			}
		}
		if now, sound := r.Look(); !sound || (now > before) != (want == 1) {
			t.Fatalf("text %d: %d suspicions before, %d after, found %t, wanted %d", i, before, now, found, want)
		}
	}
}

// A backend that has logged its warning, and sends its answer then, is always suspected, however many others log and
// look at that moment. One that logs nothing is not suspected by what was logged and looked at before its request.
func TestLookAfterTheAnswer(t *testing.T) {
	t.Parallel()
	r, w := logged(t)
	r.Rely(good, r.Ask())
	var all sync.WaitGroup
	for s := range 8 {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(s), 3))
			for range 3000 {
				before := r.Count()
				cut := rng.IntN(3) == 0
				if _, err := w.WriteString("LOG:  " + strings.Repeat("x", rng.IntN(200)) + "\n"); err != nil {
					t.Error(err)
				}
				if cut {
					_, _ = w.WriteString(warning)
				}
				if now, _ := r.Look(); cut && now == before {
					t.Error("a cancelled wait was not seen")
				}
			}
		})
	}
	all.Wait()
	before := r.Count()
	if now, sound := r.Look(); now != before || !sound {
		t.Errorf("%d, then %d, sound %t", before, now, sound)
	}
}

// The marks of those that do not look themselves move over a warning only after the suspicion was told.
func TestMarksMoveLast(t *testing.T) {
	t.Parallel()
	r, w := logged(t)
	var mark atomic.Uint64
	told := 0
	r.Reached(&mark)
	r.OnSuspicion(func() {
		if told++; mark.Load() != 5 && mark.Load() != NotReached {
			t.Errorf("the mark is at %d when the suspicion is told", mark.Load())
		}
	})
	say(t, w, "LOG:\n")
	r.Look()
	if mark.Load() != 5 || told != 0 {
		t.Errorf("mark %d, told %d times", mark.Load(), told)
	}
	say(t, w, warning)
	if r.Look(); mark.Load() != uint64(5+len(warning)) || told != 1 {
		t.Errorf("mark %d, told %d times", mark.Load(), told)
	}
	r.ServerStarts()
	if mark.Load() != NotReached || r.Sound() {
		t.Errorf("mark %d before the settings of a new server are known", mark.Load())
	}
	before := r.Count()
	r.Rely(good, r.Ask())
	if now, sound := r.Look(); !sound || now == before || mark.Load() != uint64(5+len(warning)) {
		t.Errorf("an answer of the time before would pass: %d suspicions, %d before, sound %t, mark %d", now, before, sound, mark.Load())
	}
}

func wantChange(t *testing.T, r *Reader) {
	t.Helper()
	select {
	case <-r.Changed():
	default:
		t.Error("the settings are not to be read again")
	}
}

// A change of the configuration is announced by the log. Settings that were asked for before it do not count.
func TestSettingsAreReadAgain(t *testing.T) {
	t.Parallel()
	r, w := logged(t)
	asked := r.Ask()
	say(t, w, "LOG:  received SIGHUP, reloading configuration files\n")
	if _, sound := r.Look(); sound {
		t.Error("the log is relied on after a change of the configuration")
	}
	wantChange(t, r)
	if r.Rely(good, asked); r.Sound() {
		t.Error("settings of before the change are applied")
	}
	wantChange(t, r)
	asked = r.Ask()
	say(t, w, "LOG:  received SIGHUP, reloading configuration files\n") // not looked at yet
	if r.Rely(good, asked); r.Sound() {
		t.Error("settings of before the second change are applied")
	}
	if r.Rely(good, r.Ask()); !r.Sound() {
		t.Error(r.Weakness())
	}
}

// Where messages are in another language each output may be the warning, or announce a change of settings.
func TestAnotherLanguage(t *testing.T) {
	t.Parallel()
	r, w := logged(t)
	german := good
	german.Messages = []string{"C", "de_DE.UTF-8"}
	r.Rely(german, r.Ask())
	if _, sound := r.Look(); !sound {
		t.Error(r.Weakness())
	}
	before := r.Count()
	asked := r.Ask()
	say(t, w, "WARNUNG:  storniere Warten auf synchrone Replikation wegen Benutzeraufforderung\n")
	if now, sound := r.Look(); sound || now == before {
		t.Errorf("%d suspicions, %d before, sound %t", now, before, sound)
	}
	if r.Rely(german, asked); r.Sound() {
		t.Error("settings are applied that an unknown message may have changed")
	}
	if r.Rely(german, r.Ask()); !r.Sound() {
		t.Error(r.Weakness())
	}
}

// Messages that cannot be read count as a suspicion: memory that was given back, and a log that grows faster than it
// is read.
func TestReaderBehind(t *testing.T) {
	t.Parallel()
	r, w := logged(t)
	before := r.Count()
	say(t, w, strings.Repeat("x", 3*4096))
	if err := unix.Fallocate(int(w.Fd()), unix.FALLOC_FL_KEEP_SIZE|unix.FALLOC_FL_PUNCH_HOLE, 4096, 4096); err != nil {
		t.Fatal(err)
	}
	if now, sound := r.Look(); now == before || sound {
		t.Errorf("a part that is missing: %d suspicions, %d before, sound %t", now, before, sound)
	}
	r.Rely(good, r.Ask())
	before = r.Count()
	say(t, w, warning)
	for range maxChunks + 1 {
		say(t, w, strings.Repeat("y", chunk))
	}
	if now, sound := r.Look(); now == before || sound {
		t.Errorf("a log that grows fast: %d suspicions, %d before, sound %t", now, before, sound)
	}
	r.Rely(good, r.Ask())
	before = r.Count()
	if now, sound := r.Look(); now != before || !sound {
		t.Error("the reader has not caught up")
	}
}

func TestJudge(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change  func(*Settings)
		weak    string
		foreign bool
	}{
		"as it is":                 {func(*Settings) {}, "", false},
		"collector":                {func(s *Settings) { s.Collector = true }, "logging_collector", false},
		"elsewhere":                {func(s *Settings) { s.Destination = []string{"stderr", "syslog"} }, "log_destination is syslog", false},
		"several":                  {func(s *Settings) { s.Destination = []string{"csvlog, STDERR"} }, "", false},
		"quiet":                    {func(s *Settings) { s.MinMessages = []string{"warning", "ERROR"} }, "log_min_messages is ERROR", false},
		"log is above warning":     {func(s *Settings) { s.MinMessages = []string{"log"} }, "log_min_messages", false},
		"loud":                     {func(s *Settings) { s.MinMessages = []string{"debug3"} }, "", false},
		"another program":          {func(s *Settings) { s.Unknown = true }, "words its warning", false},
		"granted":                  {func(s *Settings) { s.Granted = []string{"log_min_messages"} }, "REVOKE", false},
		"a role's default":         {func(s *Settings) { s.Defaults = []Default{{"role app", "log_min_messages", "panic"}} }, "role app", false},
		"a role's harmless one":    {func(s *Settings) { s.Defaults = []Default{{"role app", "log_min_messages", "info"}} }, "", false},
		"a role's language":        {func(s *Settings) { s.Defaults = []Default{{"role app", "lc_messages", "fr_FR"}} }, "", true},
		"English":                  {func(s *Settings) { s.Messages = []string{"en_US.UTF-8", "C.UTF-8", "POSIX", "en"} }, "", false},
		"no English":               {func(s *Settings) { s.Messages = []string{"eng_DE"} }, "", true},
		"empty":                    {func(s *Settings) { s.Messages = []string{"C", ""} }, "", true},
		"nothing is known of them": {func(s *Settings) { *s = Settings{} }, "does not tell", false},
	} {
		s := good
		tt.change(&s)
		weak, foreign := s.judge()
		if tt.weak == "" && weak != "" || !strings.Contains(weak, tt.weak) || (foreign != "") != tt.foreign {
			t.Errorf("%s: %q, %q", name, weak, foreign)
		}
		if weak != "" && !strings.Contains(weak, "; ") {
			t.Errorf("%s: %q does not say what to do", name, weak)
		}
	}
}

// A log on a disk, or one that can shrink, is refused.
func TestOnlyInMemory(t *testing.T) {
	t.Parallel()
	r := NewReader()
	f, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if err := r.Use(f); err == nil {
		t.Error("a file on a disk is taken")
	}
	fd, err := unix.MemfdCreate("log", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	free := os.NewFile(uintptr(fd), "log")
	defer func() { _ = free.Close() }()
	if err := r.Use(free); err == nil {
		t.Error("a file that can shrink is taken")
	}
	r.Rely(good, r.Ask())
	if count, sound := r.Look(); sound || count != 0 || !strings.Contains(r.Weakness(), "keeper") {
		t.Errorf("without a log: %d, %t, %q", count, sound, r.Weakness())
	}
}

// Each PostgreSQL that is installed here words the warning as the reader expects it.
func TestWording(t *testing.T) {
	t.Parallel()
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	for _, dir := range filepath.SplitList(os.Getenv("COTERIE_PG_BINDIRS")) {
		found = append(found, filepath.Join(dir, "postgres"))
	}
	if len(found) == 0 {
		t.Skip("no PostgreSQL is installed here")
	}
	for _, program := range found {
		if !Knows(program) {
			t.Errorf("%s has another message", program)
		}
	}
	if Knows(os.Args[0]+" is no program") || !bytes.Contains(wording, cancelled) {
		t.Error("what is looked for is not in the message")
	}
}
