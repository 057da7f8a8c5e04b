package sqlrun

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
)

func TestWhole(t *testing.T) {
	for text, want := range map[string]bool{
		"":                              true,
		"\n":                            true,
		"select 1":                      false,
		"select 1;":                     true,
		"select 1;  \n":                 true,
		"select 1\nGO":                  true,
		"select 1\n go \n":              true,
		"select 1\nGO 3":                true,
		"if 1 = 1 begin print 1;":       false,
		"if 1 = 1 begin print 1;\nend;": true,
		"select 'a;":                    false,
		"select 'a;\nb';":               true,
		"select [a;":                    false,
		"select 1 /* ;":                 false,
		"select 1 /* ;\n*/;":            true,
		"alter availability go":         false,
		"select 1; select 'x;\n;":       false,
	} {
		if got := whole(text); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}

// keys is a terminal on which a test types.
type keys chan string

func (k keys) Read(b []byte) (int, error) {
	s, ok := <-k
	if !ok {
		return 0, io.EOF
	}
	return copy(b, s), nil
}

func TestKeyboard(t *testing.T) {
	in := make(keys)
	k := newKeyboard(in)
	read := func() string {
		b := make([]byte, 100)
		n, err := k.Read(b)
		if err != nil {
			return err.Error()
		}
		return string(b[:n])
	}
	in <- "abc"
	if got := read(); got != "abc" || k.tookBack() {
		t.Errorf("%q", got)
	}
	in <- "select\x03x"
	if got := read(); got != eraseLine+"x" || !k.tookBack() || k.tookBack() {
		t.Errorf("Ctrl-C while a line is typed: %q", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	k.running(cancel)
	in <- "typed ahead\x03"
	select {
	case <-ctx.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("Ctrl-C does not end what runs")
	}
	k.running(nil)
	in <- "next"
	if got := read(); got != "next" || k.tookBack() {
		t.Errorf("after Ctrl-C: %q", got)
	}
	close(in)
	if got := read(); got != "EOF" || strings.Contains(got, "\x03") {
		t.Errorf("at the end: %q", got)
	}
}

// TestTheEndOfTheProgramEndsTheInput holds that a terminal at which nobody types does not keep a program that is to
// end.
func TestTheEndOfTheProgramEndsTheInput(t *testing.T) {
	in := make(keys)
	defer close(in)
	k := newKeyboard(in)
	ctx, cancel := context.WithCancel(t.Context())
	defer context.AfterFunc(ctx, k.end)()
	ended := make(chan error, 1)
	go func() {
		_, err := k.Read(make([]byte, 1))
		ended <- err
	}()
	cancel()
	select {
	case err := <-ended:
		if !errors.Is(err, io.EOF) {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("it waits for a key")
	}
}

// TestCommandsOfPsqlAreNoStatements holds that a command of psql is answered, and does not become the beginning of a
// statement that swallows the lines behind it.
func TestCommandsOfPsqlAreNoStatements(t *testing.T) {
	for line, want := range map[string]bool{`\d`: true, ` \dt sys.*`: true, "select 1": false, `select '\d'`: false, "": false} {
		if ofPsql(line) != want {
			t.Errorf("%q: %v", line, !want)
		}
	}
}
