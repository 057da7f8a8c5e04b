package daemon

import (
	"strings"
	"testing"
	"time"
)

// deadDisk takes nothing until it is let go.
type deadDisk struct {
	free chan struct{}
	got  strings.Builder
}

func (d *deadDisk) Write(b []byte) (int, error) {
	<-d.free
	return d.got.Write(b)
}

func TestALogOnADeadDiskHoldsNobody(t *testing.T) {
	d := &deadDisk{free: make(chan struct{})}
	p := newPatientLog(d)
	began := time.Now()
	for range 2 * logQueue {
		if _, err := p.Write([]byte("line\n")); err != nil {
			t.Fatal(err)
		}
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
	close(d.free)
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end) && len(p.lines) > 0; {
		time.Sleep(time.Millisecond)
	}
	if _, err := p.Write([]byte("last\n")); err != nil {
		t.Fatal(err)
	}
	p.Close()
	if s := d.got.String(); !strings.Contains(s, "lines of this log are lost") || !strings.HasSuffix(s, "last\n") {
		t.Errorf("%d bytes, ending %q", len(s), s[max(0, len(s)-80):])
	}
}
