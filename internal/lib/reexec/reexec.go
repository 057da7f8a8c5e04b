// Package reexec starts helper processes: this program again, as a named helper with a configuration.
//
// It owns their command line, their pipes and their error messages. It does not know which helpers exist: main has the
// table (Helpers), and consults it before the command line. Start reading at Helpers.Run and Start.
package reexec

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// Verb is the first argument of every helper process: PROGRAM Verb NAME CONFIGURATION.
const Verb = "helper"

// Streams are the standard streams of a helper.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

// Helper runs in a process of its own. It should end when its input does: then it ends with the process that started
// it.
type Helper func(ctx context.Context, config []byte, s Streams) error

// Typed returns a helper that reads its configuration as JSON. Unknown fields are ignored: the program may have been
// replaced on disk since its parent was started.
func Typed[T any](run func(ctx context.Context, config T, s Streams) error) Helper {
	return func(ctx context.Context, text []byte, s Streams) error {
		var config T
		if err := json.Unmarshal(text, &config); err != nil {
			return fmt.Errorf("configuration: %w", err)
		}
		return run(ctx, config, s)
	}
}

// Helpers are the helpers of a program by their names.
type Helpers map[string]Helper

// Run runs the helper that args, the command line without the program, ask for. It reports false where they do not ask
// for one.
func (h Helpers) Run(ctx context.Context, args []string, s Streams) (bool, error) {
	if len(args) == 0 || args[0] != Verb {
		return false, nil
	}
	if len(args) != 3 {
		return true, fmt.Errorf("%s is followed by a name and a configuration, as JSON; it is not for people", Verb)
	}
	run, ok := h[args[1]]
	if !ok {
		return true, fmt.Errorf("no helper has the name %q; there are %s", args[1], strings.Join(slices.Sorted(maps.Keys(h)), ", "))
	}
	return true, run(ctx, []byte(args[2]), s)
}

// Parse reads the command line of a process, its program included. It reports false where that is not a helper of that
// name, or its configuration is not a T.
func Parse[T any](argv []string, name string) (config T, ok bool) {
	if len(argv) != 4 || argv[1] != Verb || argv[2] != name {
		return config, false
	}
	return config, json.Unmarshal([]byte(argv[3]), &config) == nil
}

// Spec is the helper to start, with its configuration.
type Spec struct {
	Exe    string // the program; "": the one that runs
	Name   string
	Config any // becomes JSON on the command line, which every user can read: no secrets
}

// Command returns the command of a helper that ends with ctx, for those who arrange its streams or its session
// themselves.
func (s Spec) Command(ctx context.Context) (*exec.Cmd, error) {
	text, err := json.Marshal(s.Config)
	if err != nil {
		return nil, fmt.Errorf("configuration of %s: %w", s.Name, err)
	}
	exe := s.Exe
	if exe == "" {
		if exe, err = os.Executable(); err != nil {
			return nil, err
		}
	}
	return exec.CommandContext(ctx, exe, Verb, s.Name, string(text)), nil
}
