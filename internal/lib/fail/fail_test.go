package fail

import (
	"errors"
	"fmt"
	"io/fs"
	"testing"
)

// TestKinds holds the exit codes, the SQLSTATEs and the names on the wire, which scripts and other releases rely on.
func TestKinds(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		err   error
		name  string
		exit  int
		state string
	}{
		{Usagef("a"), "usage", 2, "22023"},
		{Unhealthyf("a"), "unhealthy", 3, "57P03"},
		{fmt.Errorf("b: %w", Refusedf("a")), "refused", 4, "55000"},
		{errors.New("a"), "error", 1, "XX000"},
		{nil, "error", 1, "XX000"},
	} {
		k := KindOf(tt.err)
		if string(k) != tt.name || k.ExitCode() != tt.exit || k.SQLState() != tt.state {
			t.Errorf("%v is %s, exit code %d, SQLSTATE %s; want %s, %d, %s", tt.err, k, k.ExitCode(), k.SQLState(), tt.name, tt.exit, tt.state)
		}
	}
	for _, k := range []Kind{Ordinary, Usage, Unhealthy, Refused} {
		if got, ok := KindOfCode(k.Code()); got != k || !ok {
			t.Errorf("%s has the code %s, which is of %s, %v", k, k.Code(), got, ok)
		}
	}
	if code := Refused.Code(); code != "API_REFUSED" {
		t.Errorf("other releases do not know the code %s", code)
	}
	if k, ok := KindOfCode("NOT_MEMBER"); ok {
		t.Errorf("a code without a kind is of %s", k)
	}
	if k := Kind("of a later release"); k.ExitCode() != 1 || k.SQLState() != "XX000" {
		t.Errorf("an unknown kind has exit code %d and SQLSTATE %s", k.ExitCode(), k.SQLState())
	}
	if err := Unhealthyf("read it: %w", fs.ErrNotExist); !errors.Is(err, fs.ErrNotExist) || err.Error() != "read it: file does not exist" {
		t.Errorf("%v does not wrap its cause", err)
	}
}
