package console

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/ag"
)

// TestRightsOfASession holds that a session of the console acts by what its role may now, and not by what it could when
// it logged in, and does not read long after that.
func TestRightsOfASession(t *testing.T) {
	t.Parallel()
	const act, read = "ALTER AVAILABILITY GROUP [g] FAILOVER", "SHOW server_version"
	for name, x := range map[string]struct {
		now  ddl.Privilege
		err  error
		old  bool // the last answer is more than a minute old
		act  string
		read string
	}{
		"as before":             {now: ddl.MayOperate},
		"a viewer now":          {now: ddl.MayLook, act: "42501"},
		"no role":               {now: ddl.MayNothing, act: "42501", read: "42501"},
		"not known":             {now: ddl.MayOperate, err: errors.New("no replica answers"), act: "57P03"},
		"not known for a while": {now: ddl.MayOperate, err: errors.New("no replica answers"), old: true, act: "57P03"},
		"no role for a while":   {now: ddl.MayNothing, old: true, act: "42501", read: "42501"},
	} {
		for _, actsFirst := range []bool{true, false} {
			s := NewSession(&world{group: ag.Group{Name: "g"}}, Principal{User: "olaf", May: ddl.MayOperate})
			s.look = func(context.Context, ddl.Privilege) (ddl.Privilege, error) { return x.now, x.err }
			if s.looked = time.Now(); x.old {
				s.looked = s.looked.Add(-2 * lookEvery)
			}
			state := func(text string) string {
				if _, err := s.Run(t.Context(), text); err != nil {
					return AsError(err).State
				}
				return ""
			}
			var acted, seen string
			if actsFirst {
				acted, seen = state(act), state(read)
			} else if seen, acted = state(read), state(act); !x.old && seen != "" {
				t.Errorf("%s: a reading within the minute: %s", name, seen)
			}
			if acted != x.act || (actsFirst || x.old) && seen != x.read {
				t.Errorf("%s, acting first %v: acting %q, reading %q; want %q, %q", name, actsFirst, acted, seen, x.act, x.read)
			}
		}
	}
}
