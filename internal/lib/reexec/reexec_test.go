package reexec

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
)

type greeting struct {
	Word  string `json:"word"`
	Times int    `json:"times"`
}

// helpers are those of the test's own program.
var helpers = Helpers{
	// greet answers every line of its input, and ends with that.
	"greet": Typed(func(_ context.Context, g greeting, s Streams) error {
		for in := bufio.NewScanner(s.In); in.Scan(); {
			if _, err := fmt.Fprintln(s.Out, strings.Repeat(g.Word+" ", g.Times)+in.Text()); err != nil {
				return err
			}
		}
		return nil
	}),
	// fail says much, and fails.
	"fail": Typed(func(_ context.Context, _ struct{}, s Streams) error {
		for i := range 1000 {
			_, _ = fmt.Fprintln(s.Err, "line", i)
		}
		return errors.New("the reason")
	}),
}

func TestMain(m *testing.M) {
	if ran, err := helpers.Run(context.Background(), os.Args[1:], Streams{os.Stdin, os.Stdout, os.Stderr}); ran {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// TestHelperAnswers holds that a helper has its configuration and its pipes, and ends with its input.
func TestHelperAnswers(t *testing.T) {
	t.Parallel()
	within := false
	p, err := Start(t.Context(), Spec{Name: "greet", Config: greeting{"hello", 2}}, Within(func(f func() error) error {
		within = true
		return f()
	}))
	if err != nil {
		t.Fatal(err)
	}
	out := bufio.NewScanner(p.Out)
	for _, name := range []string{"ann", "bob"} {
		if _, err := fmt.Fprintln(p.In, name); err != nil {
			t.Fatal(err)
		}
		if want := "hello hello " + name; !out.Scan() || out.Text() != want {
			t.Errorf("%q, %v; want %q", out.Text(), out.Err(), want)
		}
	}
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
	if !within || p.Pid() <= 0 {
		t.Errorf("started from where it was told: %v, process %d", within, p.Pid())
	}
}

// TestHelperFails holds that an error tells the last lines of what the helper said, and that all of it is passed on.
func TestHelperFails(t *testing.T) {
	t.Parallel()
	var all bytes.Buffer
	p, err := Start(t.Context(), Spec{Name: "fail"}, Stderr(&all))
	if err != nil {
		t.Fatal(err)
	}
	err = p.Stop()
	if err == nil || !strings.HasSuffix(err.Error(), ": line 996\nline 997\nline 998\nline 999\nthe reason") {
		t.Errorf("%v", err)
	}
	if lines := bytes.Count(all.Bytes(), []byte("\n")); lines != 1001 {
		t.Errorf("%d lines were passed on", lines)
	}
}

// TestHelperIsEnded holds that Kill and the end of the context end a helper that would wait for its input.
func TestHelperIsEnded(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, end := range []func(*Process){(*Process).Kill, func(*Process) { cancel() }} {
		p, err := Start(ctx, Spec{Name: "greet", Config: greeting{}})
		if err != nil {
			t.Fatal(err)
		}
		end(p)
		if _, err := io.Copy(io.Discard, p.Out); err != nil {
			t.Error(err)
		}
		if err := p.Wait(); err == nil {
			t.Error("a helper that was killed has ended without an error")
		}
	}
}

func TestStartFails(t *testing.T) {
	t.Parallel()
	for _, s := range []Spec{{Name: "greet", Exe: "/nonexistent"}, {Name: "greet", Config: func() {}}} {
		if _, err := Start(t.Context(), s); err == nil || !strings.Contains(err.Error(), "greet") {
			t.Errorf("%v", err)
		}
	}
}

// TestRun holds which command lines are of a helper, and the errors of those that cannot be run.
func TestRun(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		args []string
		ran  bool
		want string
	}{
		{nil, false, ""},
		{[]string{"status"}, false, ""},
		{[]string{Verb}, true, "a name and a configuration"},
		{[]string{Verb, "nobody", "{}"}, true, `"nobody"; there are fail, greet`},
		{[]string{Verb, "greet", "no"}, true, "configuration: "},
		{[]string{Verb, "greet", `{"later": 1}`}, true, ""},
	} {
		ran, err := helpers.Run(t.Context(), tt.args, Streams{strings.NewReader(""), io.Discard, io.Discard})
		if ran != tt.ran || (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: %v, %v; want %v, %q", tt.args, ran, err, tt.ran, tt.want)
		}
	}
}

// TestParse holds that a helper is found again by its command line.
func TestParse(t *testing.T) {
	t.Parallel()
	cmd, err := Spec{Exe: "/bin/coterie", Name: "greet", Config: greeting{"a", 1}}.Command(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if g, ok := Parse[greeting](cmd.Args, "greet"); !ok || g != (greeting{"a", 1}) {
		t.Errorf("%q is %+v, %v", cmd.Args, g, ok)
	}
	for _, argv := range [][]string{nil, cmd.Args[:3], {"x", "sql", "greet", "{}"}, {"x", Verb, "fail", "{}"}, {"x", Verb, "greet", "no"}} {
		if g, ok := Parse[greeting](argv, "greet"); ok {
			t.Errorf("%q is %+v", argv, g)
		}
	}
}
