package upgradecmd

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
)

// TestEnded: a command that a signal ends does not say that it has waited for as long as it may.
func TestEnded(t *testing.T) {
	ctx, end := context.WithCancel(t.Context())
	c := &cobra.Command{}
	c.SetContext(ctx)
	x := &upgrading{c: c}
	if s := x.ended(time.Hour); !strings.Contains(s, "no longer than 24h") {
		t.Errorf("its time is over: %s", s)
	}
	end()
	if s := x.ended(3 * time.Second); !strings.Contains(s, "ended by a signal after 3s") {
		t.Errorf("a signal: %s", s)
	}
}
