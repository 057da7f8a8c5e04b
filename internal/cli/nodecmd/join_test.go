package nodecmd

import (
	"fmt"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/endpoint"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// TestRefusalOfJoinIsForPeople holds that a refusal has its exit code, and not the word that programs read.
func TestRefusalOfJoinIsForPeople(t *testing.T) {
	for code, kind := range map[string]fail.Kind{
		endpoint.CodeNameTaken: fail.Usage, endpoint.CodeRefused: fail.Refused, endpoint.CodeUnavailable: fail.Unhealthy,
	} {
		err := joinRefused(fmt.Errorf("join: %w", &endpoint.RemoteError{Code: code, Message: "the group says no"}))
		if fail.KindOf(err) != kind || strings.Contains(err.Error(), "(") || !strings.HasSuffix(err.Error(), "the group says no") {
			t.Errorf("%s: %v, %v", code, fail.KindOf(err), err)
		}
	}
}
