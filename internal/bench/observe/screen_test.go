package observe

import (
	"strings"
	"testing"
	"time"
)

func TestScreenIsNeverSilentForLong(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	s := &Screen{out: &out, spoken: time.Now(), started: time.Now()}
	s.Doing(func() string { return "at " + Clock(s.Since())[:5] }) // it uses the screen: that must not lock it up
	s.refresh(time.Now().Add(quiet / 2))
	if out.Len() != 0 {
		t.Errorf("said %q too early", out.String())
	}
	s.refresh(time.Now().Add(quiet))
	if out.String() != "      at 00:00\n" {
		t.Errorf("said %q", out.String())
	}
	s.Doing(nil)
	s.refresh(time.Now().Add(time.Hour))
	if strings.Count(out.String(), "\n") != 1 {
		t.Errorf("said more than it had to say: %q", out.String())
	}
}

func TestScreenRedrawsOneLineOnATerminal(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	s := &Screen{out: &out, live: true, spoken: time.Now(), started: time.Now()}
	s.Doing(func() string { return strings.Repeat("█", 2*width) })
	s.refresh(time.Now())
	s.refresh(time.Now())
	if strings.Contains(out.String(), "\n") {
		t.Error("the live line ended")
	}
	for line := range strings.SplitSeq(out.String(), "\r\x1b[K") {
		if n := len([]rune(line)); n > width {
			t.Errorf("a live line of %d columns wraps and cannot be redrawn", n)
		}
	}
	s.Say("event")
	if !strings.HasSuffix(out.String(), "\r\x1b[K      event\n") {
		t.Errorf("the live line was not erased: %q", out.String())
	}
}

func TestNumbersReadWell(t *testing.T) {
	t.Parallel()
	for got, want := range map[string]string{
		Thousands(0): "0", Thousands(999): "999", Thousands(1000): "1,000", Thousands(499_123): "499,123", Thousands(12_345_678): "12,345,678",
		Thousands(-1234): "-1,234", Clock(10*time.Second + 42*time.Millisecond): "00:10.042", Clock(-time.Second): "-00:01.000",
		Clock(61 * time.Second): "01:01.000", Millis(870 * time.Millisecond): "870 ms", Millis(6520 * time.Millisecond): "6.52 s",
	} {
		if got != want {
			t.Errorf("%q instead of %q", got, want)
		}
	}
}
