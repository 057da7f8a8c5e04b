package ag

import (
	"math/rand/v2"
	"testing"
	"time"
)

// changes runs a holder whose profile is changed at random moments, on clocks of random rates, with renewals whose
// answers are lost. It returns a moment at which another may claim while the holder, or the server that it has to
// fence, may still act; 0 if no such moment exists.
func changes(r *rand.Rand, declare func(p Profile, left time.Duration) time.Duration) (early time.Duration) {
	names := []string{"default", "fast", "wan"}
	p := Profiles[names[r.IntN(3)]]
	rate := func() float64 { return 1 + Rho*(2*r.Float64()-1) }
	holder, observer := rate(), rate()
	var now, deadline time.Duration // real time, and by the holder's clock
	for range 40 {
		if r.IntN(4) == 0 {
			p = Profiles[names[r.IntN(3)]]
		}
		t0 := time.Duration(float64(now) * holder)
		o := declare(p, deadline-t0)
		if r.IntN(5) > 0 { // else it is committed, and the holder never gets the answer
			deadline = max(deadline, t0+p.Lease)
		}
		// The observer sees this renewal last, at the earliest when it was sent.
		claim := now + time.Duration(float64(o)/observer)
		ends := time.Duration(float64(deadline)/holder) + p.Fence
		if claim < ends {
			early = max(early, ends-claim)
		}
		now += p.Heart + time.Duration(r.Int64N(int64(p.Request)))
	}
	return early
}

// The mutant declares the new profile's O at once, as if no longer lease had been granted before.
func TestChangeOfProfileKeepsTheInequality(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 11))
	found := 0
	for range 20_000 {
		if early := changes(r, Profile.Declared); early > 0 {
			t.Fatalf("another may claim %v too early", early)
		}
		if changes(r, func(p Profile, _ time.Duration) time.Duration { return p.Observer }) > 0 {
			found++
		}
	}
	if found == 0 {
		t.Error("the mutant was not found")
	}
}

func TestDeclared(t *testing.T) {
	for name, p := range Profiles {
		if got := p.Declared(0); got != p.Observer {
			t.Errorf("%s declares %v with nothing granted", name, got)
		}
		if got := p.Declared(p.Lease); got != p.Observer {
			t.Errorf("%s declares %v in the middle of its own leases", name, got)
		}
	}
	if got := Profiles["default"].Declared(15 * time.Second); got < 16*time.Second || got > Profiles["wan"].Observer {
		t.Errorf("after a lease of 15 s: %v", got)
	}
}
