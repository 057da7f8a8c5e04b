package membercmd

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/cli/clitest"
)

// terminal returns a pseudo terminal on which a person has typed the line.
func terminal(t *testing.T, line string) *os.File {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo terminal: %v", err)
	}
	t.Cleanup(func() { _ = person.Close() })
	if err := unix.IoctlSetPointerInt(int(person.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(person.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = program.Close() })
	if _, err := person.WriteString(line + "\n"); err != nil {
		t.Fatal(err)
	}
	return program
}

// TestNameIsTyped holds that a person at a terminal types the name of the member that is removed or replaced, and that
// nothing is asked of the agent if it is another one.
func TestNameIsTyped(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"remove", "replace"} {
		for line, goes := range map[string]bool{"n3": true, " n3 ": true, "n2": false, "yes": false, "": false, "N3": false} {
			a := clitest.NewAgent(t)
			a.On("Remove", func(any) (any, error) { return nil, nil }) //nolint:nilnil // the method has no answer
			a.On("Replace", func(any) (any, error) { return struct{}{}, nil })
			c := Member()
			c.SetIn(terminal(t, line))
			r := clitest.Run(t, c, a.Layout.Dir, verb, "n3")
			asked := len(a.Asked("Remove")) + len(a.Asked("Replace"))
			if goes && (r.Err != nil || asked != 1) || !goes && asked != 0 {
				t.Errorf("%s, %q typed: %v, %d requests", verb, line, r.Err, asked)
			}
			if !goes {
				r.Refused(t, 4, "not confirmed; nothing was changed")
			}
		}
	}
}
