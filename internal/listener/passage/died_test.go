package passage

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/listener/continuity"
	"github.com/coteriedb/coterie/internal/listener/indoubt"
	"github.com/coteriedb/coterie/internal/listener/replay"
)

// died is the error by which a backend tells that its postmaster has died, as PostgreSQL sends it.
func died(routine string) []byte {
	return m('E', "SFATAL\x00VFATAL\x00C57P01\x00Mterminating connection due to unexpected postmaster exit\x00Fbe-secure.c\x00L241\x00R"+routine+"\x00\x00")
}

// followedFake is a session that outlives its server, and executes its transaction again.
func followedFake() *fake {
	f := newFake()
	f.work.Rules.Continuity, f.work.Rules.Replay = func() bool { return true }, func() bool { return true }
	f.work.Known.Follows = true
	f.work.Knows(&continuity.State{Extensions: []string{"plpgsql 1.0"}})
	return f
}

// inTransaction is followedFake with a query under way in a transaction that is kept.
func inTransaction(t *testing.T, size int) *fake {
	t.Helper()
	f := followedFake()
	if _, _, err := f.release(query("begin")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := f.pass(slices.Concat(m('C', "BEGIN\x00"), m('Z', "T")), size); err != nil || !f.work.Logs() {
		t.Fatalf("the transaction is kept: %v, %v", f.work.Logs(), err)
	}
	if _, _, err := f.release(query("select 1")); err != nil {
		t.Fatal(err)
	}
	return f
}

// TestPostmasterDied holds that the client gets nothing of the error by which a backend tells that its postmaster has
// died, if its session may outlive that.
func TestPostmasterDied(t *testing.T) {
	ready := m('Z', "I")
	for routine, ends := range map[string]bool{"secure_read": true, "secure_write": true, "ProcessInterrupts": false, "secure": false} {
		for _, follows := range []bool{true, false} {
			all := append(slices.Clone(ready), died(routine)...)
			for cut := range len(all) { // 0: byte by byte
				pieces := [][]byte{all[:cut], all[cut:]}
				if cut == 0 {
					pieces = slices.Collect(slices.Chunk(all, 1))
				}
				f := newFake()
				f.work.Known.Follows = follows
				got, _, err := f.passes(pieces...)
				want := all
				if ends && follows {
					want = ready
				}
				if err != nil || !bytes.Equal(got, want) || f.MidMessage || f.FatalSent.Load() != (len(want) > len(ready)) {
					t.Fatalf("%s, follows %v, cut at %d: the client gets %q, %v", routine, follows, cut, got, err)
				}
			}
		}
	}
}

// TestPostmasterDiedInATransaction holds that the pieces of that error count as no answer: a transaction is executed
// again only if the client has got nothing of the answer that is under way.
func TestPostmasterDiedInATransaction(t *testing.T) {
	row := m('D', "\x00\x01\x00\x00\x00\x011")
	for name, before := range map[string][]byte{"": nil, "a row": row} {
		for _, size := range []int{1, 7, 40, 1 << 20} {
			f := inTransaction(t, size)
			if got, _, err := f.pass(append(slices.Clone(before), died("secure_read")...), size); err != nil || !bytes.Equal(got, before) {
				t.Fatalf("%q and the error in chunks of %d: the client gets %q, %v", name, size, got, err)
			}
			if !f.work.Interrupt() {
				t.Fatal("the session ends")
			}
			if why := f.work.PlanReplay(&continuity.State{}); (why == "") != (before == nil) {
				t.Errorf("%q and the error in chunks of %d: it is not executed again: %q", name, size, why)
			}
		}
	}
}

// TestNothingElseIsDelayed holds that of another message no byte is held longer than it may be the beginning of that
// error, whatever its size.
func TestNothingElseIsDelayed(t *testing.T) {
	long := "Mterminating\x00W" + strings.Repeat("x", maxLast) + "\x00"
	for _, c := range []struct {
		name    string
		message []byte
		held    int // bytes that are held at most
	}{
		{"an error", m('E', "SERROR\x00VERROR\x00C42601\x00Mx\x00Rsecure_read\x00\x00"), len("E....SERROR\x00V")},
		{"an error in another language", m('E', "SFEHLER\x00VERROR\x00C42601\x00Mx\x00\x00"), len("E....SFEHLER\x00V")},
		{"a crash of another backend", m('E', "SFATAL\x00VFATAL\x00C57P02\x00Mx\x00\x00"), len("E....SFATAL\x00VFATAL\x00C57P0")},
		{"a panic", m('E', "SPANIC\x00VPANIC\x00CXX000\x00Mx\x00\x00"), len("E....SPANIC\x00V")},
		{"a longer severity", m('E', "SFATAL\x00VFATALLY\x00C57P01\x00Mx\x00Rsecure_read\x00\x00"), len("E....SFATAL\x00VFATAL")},
		{"a severity that is a part", m('E', "SFATAL\x00VFATA\x00C57P01\x00Mx\x00Rsecure_read\x00\x00"), len("E....SFATAL\x00VFATA")},
		{"an administrator", m('E', "SFATAL\x00VFATAL\x00C57P01\x00Mx\x00RProcessInterrupts\x00\x00"), len("E....SFATAL\x00VFATAL\x00C57P01\x00Mx\x00R")},
		{"a long one", m('E', "SFATAL\x00VFATAL\x00C57P01\x00"+long+"Rsecure_read\x00\x00"), headerLength - 1},
		{"a notice", m('N', "SFATAL\x00VFATAL\x00C57P01\x00Mx\x00Rsecure_read\x00\x00"), 0},
		{"a row", m('D', "\x00\x01\x00\x00\x00\x01E"), 0},
		{"no field", m('E', "\x00"), headerLength + 1},
	} {
		f := newFake()
		f.work.Known.Follows = true
		var got []byte
		for i := range c.message {
			out, _, err := f.passes(c.message[i : i+1])
			if got = append(got, out...); err != nil || len(got) != i+1 && i+1 > c.held {
				t.Errorf("%s: of the first %d bytes the client gets %d, %v", c.name, i+1, len(got), err)
				break
			}
		}
		if !bytes.Equal(got, c.message) && !t.Failed() {
			t.Errorf("%s: the client gets %q", c.name, got)
		}
	}
}

// TestDigestOfPieces holds that the digest of an answer does not depend on the pieces in which that arrives, also where
// a message is held until it is known not to belong to the question for the number of the transaction.
func TestDigestOfPieces(t *testing.T) {
	answer := slices.Concat(m('T', "\x00\x00"), m('D', "\x00\x01\x00\x00\x00\x011"), m('C', "SELECT 1\x00"), m('Z', "T"))
	for _, asks := range []bool{false, true} {
		for _, size := range []int{1, 2, 3, 7, 1 << 20} {
			f, before := inTransaction(t, size), []byte(nil)
			if asks {
				f.work.Asking.Commit = indoubt.Early(1)
				f.work.Asking.Asks.Store(true)
				before = slices.Concat(m('V', "\x00\x00\x00\x03741"), m('Z', "T"))
			}
			if got, _, err := f.pass(append(before, answer...), size); err != nil || !bytes.Equal(got, answer) {
				t.Fatalf("asked %v, in chunks of %d: the client gets %q, %v", asks, size, got, err)
			}
			run := f.work.Log.Run()
			for _, b := range [][]byte{slices.Concat(m('C', "BEGIN\x00"), m('Z', "T")), answer} {
				run.Next()
				if _, v := run.Feed(b); v != replay.Same {
					t.Errorf("asked %v, in chunks of %d: the same answer counts as %v", asks, size, v)
				}
			}
		}
	}
}
