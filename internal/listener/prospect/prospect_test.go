package prospect

import (
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/listener/continuity"
	"github.com/coteriedb/coterie/internal/listener/lone"
)

// fit is a session of another node's server that outlives it.
func fit() Session {
	return Session{Continuity: true, Follows: true, Asked: true, Unchanged: true, Told: true}
}

// Each fact that keeps a session from outliving its server does so alone.
func TestUnfit(t *testing.T) {
	if s := fit(); s.Unfit() != "" {
		t.Errorf("a fit session: %s", s.Unfit())
	}
	for want, change := range map[string]func(*Session){
		"CONTINUITY = OFF":                                        func(s *Session) { s.Continuity = false },
		"it is a session of logical replication":                  func(s *Session) { s.Streams = true },
		"its state is not followed":                               func(s *Session) { s.Follows = false },
		"the kernel relays its requests, which are not looked at": func(s *Session) { s.Relayed = true },
		"it has set the seed":                                     func(s *Session) { s.Texts = "it has set the seed" },
		"it has temporary objects":                                func(s *Session) { s.Told, s.Refusal = false, "it has temporary objects: t" },
		"its state is not known yet":                              func(s *Session) { s.Asked = false },
		"its state had changed and was not read since":            func(s *Session) { s.Unchanged = false },
	} {
		s := fit()
		if change(&s); s.Unfit() != want {
			t.Errorf("%q, want %q", s.Unfit(), want)
		}
	}
	being := fit()
	if being.Told = false; being.Unfit() != "its state is not known yet" {
		t.Errorf("while it is being asked: %q", being.Unfit())
	}
}

func TestWouldEnd(t *testing.T) {
	for name, c := range map[string]struct {
		u    UnderWay
		ends string // part of the reason; "" if it goes on
		cut  bool
	}{
		"idle":                           {UnderWay{}, "", false},
		"a query outside a block":        {UnderWay{Lone: lone.Repeated, Kept: true, Owed: 1}, "", true},
		"a change whose number is known": {UnderWay{Lone: lone.InDoubt, Kept: true, Owed: 1, Batch: true}, "", true},
		"a change outside a block":       {UnderWay{Kept: true, Owed: 1}, "may have changed something", false},
		"a request in a block":           {UnderWay{Owed: 1, Cut: true}, "", true},
		"a COMMIT that can be asked for": {UnderWay{Owed: 1, Provable: true}, "", true},
		"a COMMIT that cannot":           {UnderWay{Owed: 1}, "a request was under way", false},
		"two requests":                   {UnderWay{Owed: 2, Cut: true}, "a request was under way", false},
		"half a request":                 {UnderWay{Batch: true}, "a request was under way", false},
	} {
		why, cut := c.u.WouldEnd()
		if cut != c.cut || (c.ends == "") != (why == "") || !strings.Contains(why, c.ends) {
			t.Errorf("%s: %q, cut %v", name, why, cut)
		}
	}
}

func TestInFailover(t *testing.T) {
	for name, c := range map[string]struct {
		change        func(*Session)
		busy, unnamed bool
		want          continuity.Fate
		why           string
	}{
		"known":                   {nil, false, false, continuity.Kept, ""},
		"busy":                    {nil, true, false, continuity.Likely, "it is busy, and is waited for"},
		"not asked":               {func(s *Session) { s.Told = false }, false, false, continuity.Likely, "its server will be asked"},
		"local and not followed":  {func(s *Session) { s.Local, s.Follows, s.Told = true, false, false }, false, false, continuity.Likely, "its server will be asked"},
		"far and not followed":    {func(s *Session) { s.Follows = false }, false, false, continuity.Ends, "it was opened while CONTINUITY was OFF"},
		"switched off":            {func(s *Session) { s.Continuity = false }, true, true, continuity.Ends, "CONTINUITY = OFF"},
		"between Parse and Bind":  {nil, false, true, continuity.Ends, Unnamed},
		"it has texts":            {func(s *Session) { s.Texts = "it listens to channels" }, true, false, continuity.Ends, "it listens to channels"},
		"a library":               {func(s *Session) { s.Stays = "its process has loaded plperl: more" }, false, false, continuity.Ends, "its process has loaded plperl"},
		"a library, and changed":  {func(s *Session) { s.Stays, s.Unchanged = "its process has loaded plperl", false }, false, false, continuity.Likely, "its server will be asked"},
		"a library, and relayed":  {func(s *Session) { s.Stays, s.Relayed = "its process has loaded plperl", true }, false, false, continuity.Likely, "its server will be asked"},
		"relayed":                 {func(s *Session) { s.Relayed = true }, false, false, continuity.Likely, "its server will be asked"},
		"only its server is lost": {func(s *Session) { s.Told, s.Refusal = false, "an extension keeps state" }, false, false, continuity.Kept, ""},
	} {
		s := fit()
		if c.change != nil {
			c.change(&s)
		}
		if got := s.InFailover(c.busy, c.unnamed); got.Fate != c.want || got.Why != c.why {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
