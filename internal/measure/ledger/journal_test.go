package ledger

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/measure/session"
)

func open(t *testing.T, dir string) *Ledger {
	t.Helper()
	l, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() }) // some tests close it themselves
	return l
}

// put notes one row as a writer does.
func put(t *testing.T, l *Ledger, client int, sent, done time.Duration, o op, s server) int64 {
	t.Helper()
	seq := l.nextSeq(client)
	records := []record{{op: opIntend, at: sent, client: client, seq: seq}}
	if o != opIntend {
		records = append(records, record{op: o, at: done, client: client, seq: seq, server: s, lsn: "0/1", state: "eof"})
	}
	for _, r := range records {
		if err := l.note(r); err != nil {
			t.Fatal(err)
		}
	}
	return seq
}

func TestRecordsSurviveTheFile(t *testing.T) {
	t.Parallel()
	for _, r := range []record{
		{op: opBegin, at: 1},
		{op: opEnd, at: 2},
		{op: opConnect, at: 3, client: 4, host: "127.0.0.1:5432"},
		{op: opIntend, at: 5, client: 6, seq: 7},
		{op: opOK, at: 8, client: 9, seq: 10, server: server{3, 1767225600000000}, lsn: "0/3A4F"},
		{op: opFail, at: 11, client: 12, seq: 13, state: "25006"},
		{op: opUnknown, at: 14, client: 15, seq: 16, state: "timeout"},
	} {
		got, err := parseRecord(r.String())
		if err != nil || got != r {
			t.Errorf("%v became %v, %v", r, got, err)
		}
	}
	for _, bad := range []string{"", "ok", "ok 1 2", "send x 1 1", "maybe 1 2 3"} {
		if _, err := parseRecord(bad); err == nil {
			t.Errorf("accepted %q", bad)
		}
	}
}

func TestLedgerIsReopened(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := open(t, dir)
	put(t, l, 0, 1, 2, opOK, server{1, 1})
	put(t, l, 0, 3, 4, opFail, server{})
	put(t, l, 1, 3, 0, opIntend, server{}) // its process ended
	if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("opened twice: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	// A crash of the machine cuts the last line short.
	path := filepath.Join(dir, "ledger.log")
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("ok 5 1 1 1"); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}

	again := open(t, dir)
	if again.run != l.run || !again.epoch.wall.Equal(l.epoch.wall) || again.epoch.boot != l.epoch.boot {
		t.Errorf("header changed from %s %v to %s %v", l.run, l.epoch, again.run, again.epoch)
	}
	if got, want := again.Progress(), l.Progress(); got != want || got.Acknowledged != 1 || got.Failed != 1 {
		t.Errorf("progress %+v, want %+v", got, want)
	}
	if n := again.nextSeq(0); n != 3 {
		t.Errorf("next row of client 0 is %d, want 3", n)
	}
	if v := again.clients[1].entries[0].verdict(); v != session.Unknown {
		t.Errorf("a row without a conclusion is %v, want unknown", v)
	}
	put(t, again, 0, 5, 6, opOK, server{1, 1})
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
	if p := open(t, dir).Progress(); p.Acknowledged != 2 {
		t.Errorf("after the cut line: %+v", p)
	}
}

func TestLedgerRefusesWhatIsNotOne(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"other file":     "hello\n",
		"rubbish":        formatHeader("r", clock{}) + "\nhello\n",
		"unsent row":     formatHeader("r", clock{}) + "\nok 1 0 1 1 1 0/1\n",
		"row left out":   formatHeader("r", clock{}) + "\nsend 1 0 2\n",
		"row ends twice": formatHeader("r", clock{}) + "\nsend 1 0 1\nfail 2 0 1 eof\nok 3 0 1 1 1 0/1\n",
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "ledger.log"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if l, err := Open(dir); err == nil {
			t.Errorf("%s: accepted", name)
			_ = l.Close()
		}
	}
}

// TestFailedDiskStopsTheLedger holds that an outcome which cannot be written to disk does not count.
func TestFailedDiskStopsTheLedger(t *testing.T) {
	t.Parallel()
	l := open(t, t.TempDir())
	put(t, l, 0, 1, 2, opOK, server{1, 1})
	put(t, l, 0, 3, 0, opIntend, server{})
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := l.note(record{op: opOK, at: 4, client: 0, seq: 2, server: server{1, 1}, lsn: "0/1"}); err == nil {
		t.Error("an acknowledgement was noted on a closed file")
	}
	if p := l.Progress(); p.Acknowledged != 1 {
		t.Errorf("%+v, want one acknowledged", p)
	}
}

func TestSyncIsShared(t *testing.T) {
	t.Parallel()
	l := open(t, t.TempDir())
	var wg sync.WaitGroup
	for c := range 8 {
		wg.Go(func() {
			for i := range 50 {
				put(t, l, c, time.Duration(i), time.Duration(i), opOK, server{1, 1})
			}
		})
	}
	wg.Wait()
	if p := l.Progress(); p.Acknowledged != 400 {
		t.Errorf("%+v, want 400 acknowledged", p)
	}
	if l.journal.synced != l.journal.end {
		t.Errorf("%d bytes of %d are on disk", l.journal.synced, l.journal.end)
	}
}
