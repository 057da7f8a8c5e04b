package admission

import (
	"fmt"
	"testing"
	"time"
)

// TestPlacesInAFlood holds that an honest caller enters at once while another one floods, and that the flood has a
// share only.
func TestPlacesInAFlood(t *testing.T) {
	p := NewPlaces(128, 16, 500*time.Millisecond)
	honest, flood := 0, 0
	for ms := range 10_000 { // a flood of 1000 a second, and an honest caller in every 10 ms
		now := time.Duration(ms) * time.Millisecond
		if p.Enter("flood", now, func() {}) != nil {
			flood++
		}
		if ms%10 == 0 {
			n := p.Enter("honest", now, func() { t.Error("an honest caller lost its place") })
			if n == nil {
				t.Fatalf("an honest caller was refused after %v", now)
			}
			honest++
			n.Leave()
			n.Leave()
		}
	}
	if p.Taken() != 16 || flood > 16*20+16 || p.Refused() == 0 {
		t.Errorf("%d of %d honest, %d of the flood, %d places", honest, 1000, flood, p.Taken())
	}
}

// TestPlacesOfManyAddresses floods from more addresses than there are places.
func TestPlacesOfManyAddresses(t *testing.T) {
	p := NewPlaces(128, 16, 500*time.Millisecond)
	for i := range 100 * 16 { // 100 addresses take all they can
		p.Enter(fmt.Sprint("flood ", i%100), 0, func() {})
	}
	if p.Taken() != 128 {
		t.Fatalf("%d places are taken", p.Taken())
	}
	if p.Enter("honest", time.Millisecond, func() {}) == nil {
		t.Error("a caller with no place was refused while others had more than a share")
	}
	q := NewPlaces(4, 2, 500*time.Millisecond)
	ended := ""
	for i, k := range []string{"a", "b", "c", "d"} {
		q.Enter(k, time.Duration(i)*time.Millisecond, func() { ended += k })
	}
	if q.Enter("e", 10*time.Millisecond, func() {}) != nil {
		t.Error("a caller within its share lost its place within the grace")
	}
	if q.Enter("e", 510*time.Millisecond, func() {}) == nil || ended != "a" {
		t.Errorf("after the grace %q lost their places, want the oldest", ended)
	}
}

// TestPlacesThatStay holds that a place without end is not taken away.
func TestPlacesThatStay(t *testing.T) {
	p := NewPlaces(2, 2, 0)
	p.Enter("a", 0, nil)
	stays := p.Enter("a", 0, nil)
	if p.Enter("a", time.Hour, nil) != nil || p.Enter("b", time.Hour, nil) != nil {
		t.Error("a place that cannot be taken away was taken away")
	}
	stays.Leave()
	if p.Enter("b", time.Hour, nil) == nil {
		t.Error("a free place was refused")
	}
}
