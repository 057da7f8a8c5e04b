package console

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/coteriedb/coterie/internal/lib/fail"
)

// TestAsError holds what a client receives of an error that is not the console's own.
func TestAsError(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		err  error
		want Error
	}{
		{fail.Refusedf("no"), Error{State: "55000", Message: "no"}},
		{fmt.Errorf("outside: %w", fail.Unhealthyf("no")), Error{State: "57P03", Message: "no"}},
		{fail.Numberedf(41142, "no").WithHint("wait"), Error{State: "55000", Number: 41142, Message: "no", Hint: "wait"}},
		{fail.Numberedf(41167, "no"), Error{State: "42704", Number: 41167, Message: "no"}},
		{context.DeadlineExceeded, Error{State: "57014", Message: "the statement took too long: context deadline exceeded"}},
		{errors.New("bug"), Error{State: "XX000", Message: "bug"}},
	} {
		if got := AsError(tt.err); *got != tt.want {
			t.Errorf("%v: %+v, want %+v", tt.err, *got, tt.want)
		}
	}
}
