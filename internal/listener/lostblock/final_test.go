package lostblock

import (
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/stmt"
)

// The SQLSTATE of a final error says whether the client may run its request again: every driver and framework looks at
// that alone.
func TestFinal(t *testing.T) {
	for _, c := range []struct {
		bad  *pgwire.Error
		code string
	}{
		{Final(stmt.Idle, "the reason"), pgwire.StateAdminShutdown},
		{Final(stmt.Aborted, "the reason"), pgwire.StateSerialization},
		{Final(stmt.Unknown, "the reason"), pgwire.StateUnknownOutcome},
		{NotBegun("the reason"), pgwire.StateSerialization},
		{QueryCut("the reason"), pgwire.StateSerialization},
	} {
		if c.bad.Code != c.code || !strings.HasSuffix(c.bad.Message, ": the reason") || !strings.HasPrefix(c.bad.Message, "terminating connection") || c.bad.Hint == "" {
			t.Errorf("%+v, want %s", c.bad, c.code)
		}
	}
}
