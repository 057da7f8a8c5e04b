package offload

import (
	"context"
	"testing"
	"time"
)

// TestPatience holds that a session which comes back soon is offloaded ever later, and one that stayed for long, or was
// called back, is not kept waiting for that.
func TestPatience(t *testing.T) {
	p := Patience{After: AfterDefault, Needed: AfterDefault}
	for i := range AfterDefault {
		if p.Answered() != (i == AfterDefault-1) {
			t.Fatalf("after %d answers: %v", i+1, i != AfterDefault-1)
		}
	}
	for _, c := range []struct {
		why    uint32
		passed uint64
		needed int
	}{
		{WhyCalled + 1, 0, 2 * AfterDefault}, {WhyCalled + 1, pays - 1, 4 * AfterDefault}, {WhyCalled + 1, pays, AfterDefault}, {WhyCalled, 0, 1}, {WhyCalled + 1, 0, 2 * AfterDefault},
	} {
		if p.CameBack(c.why, c.passed); p.Needed != c.needed || p.Since != 0 {
			t.Errorf("it came back for %d after %d requests, and needs %d answers, want %d", c.why, c.passed, p.Needed, c.needed)
		}
	}
	for range 20 {
		p.CameBack(WhyCalled+1, 0)
	}
	if p.Needed != afterMax {
		t.Errorf("it needs %d answers at last, want %d", p.Needed, afterMax)
	}
	p.Always = true
	if p.CameBack(WhyCalled+1, 0); p.Needed != AfterDefault {
		t.Errorf("it needs %d answers, and is to be offloaded always", p.Needed)
	}
}

// TestWatch holds that sessions are looked at while there are some, and at no other time.
func TestWatch(t *testing.T) {
	var w Watch
	looks, over := make(chan struct{}), make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { defer close(over); w.Run(ctx, func() { looks <- struct{}{} }) }()
	select {
	case <-looks:
		t.Fatal("it looks, and there is no session")
	case <-time.After(5 * tick):
	}
	for range 2 {
		w.Add()
		<-looks
		<-looks
		w.Done()
	}
	cancel()
	for {
		select {
		case <-looks: // one that was due already
			continue
		case <-over:
		}
		return
	}
}
