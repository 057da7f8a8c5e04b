package stmt

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// changesIn returns the changes of a message, which arrives in these pieces.
func changesIn(typ byte, pieces ...[]byte) (found []Change) {
	var c Changes
	c.Begin(typ)
	for _, p := range pieces {
		c.Piece(p, func(x Change) *Refusal { found = append(found, x); return nil })
	}
	return found
}

func TestChanges(t *testing.T) {
	sync := Change{Scope: ScopeSystem, Setting: "synchronous_standby_names"}
	with := func(c Change, change func(*Change)) []Change { change(&c); return []Change{c} }
	value := func(v string) func(*Change) { return func(c *Change) { c.Value = v } }
	reset := func(c *Change) { c.Reset = true }
	role := func(s Scope, v string) []Change { return []Change{{Scope: s, Setting: "synchronous_commit", Value: v}} }
	for text, want := range map[string][]Change{
		"ALTER SYSTEM SET synchronous_standby_names = 'x'":                                  with(sync, value("x")),
		"alter system set Synchronous_Standby_Names to x;":                                  with(sync, value("x")),
		"/* a /* b */ ; */ -- ' \n ;; ALTER/**/SYSTEM\tSET\"SYNCHRONOUS_standby_NAMES\"=''": with(sync, value("")),
		"ALTER SYSTEM RESET synchronous_standby_names":                                      with(sync, reset),
		"ALTER SYSTEM SET synchronous_standby_names TO DEFAULT":                             with(sync, reset),
		"ALTER SYSTEM SET synchronous_standby_names = a, b":                                 with(sync, value("")),
		"ALTER SYSTEM RESET ALL;":                                                           {{Scope: ScopeSystem, Reset: true, All: true}},
		`ALTER SYSTEM RESET U&"synchronous\005fstandby_names"`:                              {{Scope: ScopeSystem, Reset: true}},
		`ALTER SYSTEM SET U&"!0073ync" UESCAPE '!' = 'x'`:                                   {{Scope: ScopeSystem}},
		`ALTER ROLE U&"x" SET synchronous_commit = off`:                                     {{Scope: ScopeRole, Setting: "synchronous_commit", Value: "off"}},
		`ALTER ROLE U&"!0078" UESCAPE '!' IN DATABASE U&"d" SET synchronous_commit TO off`:  {{Scope: ScopeRole, Setting: "synchronous_commit", Value: "off"}},
		`ALTER DATABASE U&"d" SET synchronous_commit = local`:                               {{Scope: ScopeDatabase, Setting: "synchronous_commit", Value: "local"}},
		"ALTER SYSTEM SET my.thing = 1":                                                     {{Scope: ScopeSystem, Setting: "my.thing", Value: "1"}},
		"ALTER ROLE ALL SET synchronous_commit = off":                                       role(ScopeRole, "off"),
		"alter user \"set\" in database d set synchronous_commit to 'LOCAL'":                role(ScopeRole, "local"),
		"ALTER DATABASE d SET synchronous_commit TO $x$off$x$":                              role(ScopeDatabase, "off"),
		`ALTER DATABASE d SET synchronous_commit TO E'\x6fff'`:                              role(ScopeDatabase, ""),
		"ALTER ROLE r SET synchronous_commit FROM CURRENT":                                  role(ScopeRole, ""),
		"SELECT $$; alter role r set x = 1; $$; ALTER ROLE r SET synchronous_commit = 0":    role(ScopeRole, "0"),
		"SELECT 'it''s; ', E'\\'; alter', $1; ALTER ROLE r SET synchronous_commit = 0":      role(ScopeRole, "0"),
		"ALTER TABLE t SET (fillfactor = 10)":                                               nil,
		"ALTER ROLE r PASSWORD 'set'":                                                       nil,
		"SELECT 'ALTER SYSTEM RESET ALL'":                                                   nil,
		"-- ALTER SYSTEM RESET ALL":                                                         nil,
		"SELECT \"; ALTER SYSTEM RESET ALL; \"":                                             nil,
	} {
		for _, typ := range []byte("QP") {
			message := append([]byte(text), 0)
			if typ == 'P' {
				message = append([]byte("alter system reset all\x00"), append(message, "\x00\x00alter system reset all\x00"...)...)
			}
			if got := changesIn(typ, message); !sameChanges(got, want) {
				t.Errorf("%c %s: %+v, want %+v", typ, text, got, want)
			}
			if len(want) > 0 && !MentionsAlter(message) {
				t.Errorf("%s: MentionsAlter is false", text)
			}
			for range 20 {
				at := rand.IntN(len(message) + 1)
				if got := changesIn(typ, message[:at], message[at:]); !sameChanges(got, want) {
					t.Errorf("%c %s in pieces of %d bytes: %+v, want %+v", typ, text, at, got, want)
				}
			}
		}
	}
}

func sameChanges(x, y []Change) bool {
	if len(x) != len(y) {
		return false
	}
	for i := range x {
		if x[i] != y[i] {
			return false
		}
	}
	return true
}

// FuzzChanges looks for panics, and for messages whose meaning depends on where they are cut.
func FuzzChanges(f *testing.F) {
	f.Add([]byte("ALTER SYSTEM SET a.\"b\" = $x$1$x$; -- x\nALTER ROLE r RESET ALL\x00"), uint16(9))
	f.Add([]byte("/*/**/*/ALTER DATABASE d SET e'\\''"), uint16(3))
	f.Fuzz(func(t *testing.T, b []byte, cut uint16) {
		at := int(cut) % (len(b) + 1)
		if whole, pieces := changesIn('Q', b), changesIn('Q', b[:at], b[at:]); !sameChanges(whole, pieces) {
			t.Errorf("%q: %+v, cut at %d %+v", b, whole, at, pieces)
		}
		if len(changesIn('Q', b)) > 0 && !MentionsAlter(bytes.TrimRight(b, "\x00")) {
			t.Errorf("%q: MentionsAlter is false", b)
		}
	})
}
