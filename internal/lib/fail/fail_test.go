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
		code  string
	}{
		{Usagef("a"), "usage", 2, "22023", "API_USAGE"},
		{Unhealthyf("a"), "unhealthy", 3, "57P03", "API_UNHEALTHY"},
		{fmt.Errorf("b: %w", Refusedf("a")), "refused", 4, "55000", "API_REFUSED"},
		{Error{Kind: Ordinary, Err: errors.New("a")}, "error", 1, "XX000", "API_ERROR"},
		{Error{Kind: "of a later release", Err: errors.New("a")}, "of a later release", 1, "XX000", "API_OF A LATER RELEASE"},
		{errors.New("a"), "error", 1, "XX000", ""},
		{nil, "error", 1, "XX000", ""},
	} {
		k := KindOf(tt.err)
		if string(k) != tt.name || k.ExitCode() != tt.exit || k.SQLState() != tt.state {
			t.Errorf("%v is %s, exit code %d, SQLSTATE %s; want %s, %d, %s", tt.err, k, k.ExitCode(), k.SQLState(), tt.name, tt.exit, tt.state)
		}
		code, text, ok := Remote(tt.err)
		if code != tt.code || ok != (tt.code != "") || ok && text != "a" {
			t.Errorf("%v is answered with %q, %q, %v; want %q", tt.err, code, text, ok, tt.code)
		}
		if back := FromRemote(code, text); (back != nil) != ok || ok && (KindOf(back) != k || back.Error() != "a") {
			t.Errorf("%s comes back as %v", k, back)
		}
	}
	if err := FromRemote("NOT_MEMBER", "a"); err != nil {
		t.Errorf("a code without a kind is %v", err)
	}
	if err := Unhealthyf("read it: %w", fs.ErrNotExist); !errors.Is(err, fs.ErrNotExist) || err.Error() != "read it: file does not exist" {
		t.Errorf("%v does not wrap its cause", err)
	}
}

// TestEveryMappingComesBack holds that a statement which fails on a node ends its command with the exit code of the
// same kind.
func TestEveryMappingComesBack(t *testing.T) {
	t.Parallel()
	exits := map[int]bool{}
	for k, o := range outcomes {
		if got := KindOfState(o.state); got != k {
			t.Errorf("%s has the SQLSTATE %s, which tells %s", k, o.state, got)
		}
		if exits[o.exit] {
			t.Errorf("two kinds have exit code %d", o.exit)
		}
		exits[o.exit] = true
	}
	for number, state := range messages {
		err := Numberedf(number, "a")
		if err.SQLState() != state || KindOfState(state) != err.Kind || err.Kind == Ordinary && number != 979 {
			t.Errorf("message %d has the SQLSTATE %s and is %s", number, err.SQLState(), err.Kind)
		}
	}
	for state, want := range map[string]Kind{
		"": Ordinary, "4": Ordinary, "42601": Usage, "42704": Usage, "0A000": Usage, "55P02": Usage, "53300": Unhealthy, "57P01": Unhealthy,
		"57014": Ordinary, "55006": Unhealthy, "08P01": Ordinary, "XX001": Ordinary, "28000": Ordinary,
	} {
		if got := KindOfState(state); got != want {
			t.Errorf("the SQLSTATE %q tells %s, want %s", state, got, want)
		}
	}
	if StateOf(4711) != "XX000" || Numberedf(4711, "a").Kind != Ordinary {
		t.Error("a number that is not in the table is more than an ordinary error")
	}
}

// TestHint holds that a hint is a part of the text, and does not hide the cause.
func TestHint(t *testing.T) {
	t.Parallel()
	err := Numberedf(41142, "not yet: %w", fs.ErrNotExist).WithHint("wait for %s", "it")
	if err.Error() != "not yet: file does not exist (wait for it)" || !errors.Is(err, fs.ErrNotExist) || err.Kind != Refused {
		t.Errorf("%v is %s", err, err.Kind)
	}
}
