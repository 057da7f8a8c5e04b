package pgserver

import (
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// TestTrail holds how long a copy is behind, by the position that it has, and how fast a position moves.
func TestTrail(t *testing.T) {
	t.Parallel()
	var tr trail
	if tr.behind(1, time.Hour) != 0 || tr.rate(time.Hour) != 0 {
		t.Error("nothing was noted")
	}
	for i := range 60 { // 100 bytes a second
		tr.note(ag.LSN(1000+100*i), time.Duration(i)*time.Second)
	}
	now := 60 * time.Second
	for _, tt := range []struct {
		at   ag.LSN
		want time.Duration
	}{{7000, 0}, {6900, 0}, {6899, time.Second}, {6800, time.Second}, {6799, 2 * time.Second}, {1000, 59 * time.Second}, {0, time.Minute}} {
		if got := tr.behind(tt.at, now); got != tt.want {
			t.Errorf("a copy at %d is %v behind, want %v", tt.at, got, tt.want)
		}
	}
	if got := tr.rate(59 * time.Second); got != 100 {
		t.Errorf("%v bytes a second", got)
	}
	if got := tr.rate(2 * time.Minute); got != 0 {
		t.Errorf("%v bytes a second a minute later", got)
	}
	tr.note(6900, 10*time.Minute) // it is idle
	if got := tr.behind(6900, 10*time.Minute); got != 0 {
		t.Errorf("a copy with everything is %v behind", got)
	}
	tr.note(9000, 20*time.Minute)
	if got := tr.behind(6900, 20*time.Minute+3*time.Second); got != 3*time.Second {
		t.Errorf("%v behind after a pause, want 3 s", got)
	}
	if got := tr.rate(20*time.Minute + time.Second); got != 210 {
		t.Errorf("%v bytes a second after a pause, want 2100 bytes in ten seconds", got)
	}
	tr.note(500, 21*time.Minute) // rewound
	if l := tr.list(); len(l) != 1 || tr.behind(500, time.Hour) != 0 {
		t.Errorf("%v", l)
	}
}

// TestTrailIsBounded holds that a long trail stays short, begins long ago and is in order.
func TestTrailIsBounded(t *testing.T) {
	t.Parallel()
	var tr trail
	const seconds = 5000
	for i := range seconds {
		tr.note(ag.LSN(i+1), time.Duration(i)*time.Second)
		tr.note(ag.LSN(i+1), time.Duration(i)*time.Second+time.Millisecond)
	}
	l := tr.list()
	if len(l) > trailMarks || l[0].at != 0 || l[len(l)-1].lsn != seconds {
		t.Errorf("%d marks from %v to %d", len(l), l[0].at, l[len(l)-1].lsn)
	}
	for i := 1; i < len(l); i++ {
		if l[i].at <= l[i-1].at || l[i].lsn <= l[i-1].lsn {
			t.Fatalf("%v after %v", l[i], l[i-1])
		}
	}
}
