package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// module creates a module with one package per source text, on which the tests run the real go test.
func module(t *testing.T, tests map[string]string) {
	t.Helper()
	dir := t.TempDir()
	write := func(name, text string) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("go.mod", "module example.org/m\n\ngo 1.24\n")
	for pkg, body := range tests {
		write(pkg+"/x_test.go", fmt.Sprintf("package %s\n\nimport \"testing\"\n\n%s\n", pkg, body))
	}
	t.Chdir(dir)
}

func TestRun(t *testing.T) {
	for name, c := range map[string]struct {
		tests map[string]string
		code  int
		want  []string
		not   []string
	}{
		"passes": {
			map[string]string{"a": "func TestA(t *testing.T) { t.Log(\"chatter\") }"},
			0,
			[]string{"ok  \texample.org/m/a", "tests: 1 passed, 0 failed, 0 skipped", "skipped: nothing"},
			[]string{"chatter"},
		},
		"skips": {
			map[string]string{
				"a": "func TestA(t *testing.T) { t.Skip(\"no server: install one\") }",
				"b": "func TestB(t *testing.T) { t.Run(\"sub\", func(t *testing.T) { t.Skip(\"no server: install one\") }) }",
				"c": "func TestC(t *testing.T) { t.Log(\"trying\"); t.Output().Write([]byte(\"a log\\n\")); t.Skip(\"no server:\\ninstall one\") }",
			},
			0,
			[]string{"3 skipped", "skipped: no server: install one\nskipped:   example.org/m/a TestA\nskipped:   example.org/m/b TestB/sub\nskipped:   example.org/m/c TestC\n"},
			[]string{"a log"},
		},
		"fails": {
			map[string]string{"a": "func TestA(t *testing.T) { t.Log(\"before\"); t.Error(\"wrong\") }\nfunc TestB(t *testing.T) {}"},
			1,
			[]string{"before", "wrong", "--- FAIL: TestA", "FAIL\texample.org/m/a", "1 passed", "failed: example.org/m/a TestA\n", "failed:       x_test.go:5: wrong\n"},
			nil,
		},
		"panics": {
			map[string]string{"a": "func TestA(t *testing.T) { panic(\"at the disco\") }"},
			1,
			[]string{"at the disco", "FAIL\texample.org/m/a"},
			nil,
		},
		"does not build": {
			map[string]string{"a": "func TestA(t *testing.T) { undefined() }"},
			1,
			[]string{"undefined: undefined", "[build failed]"},
			nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			module(t, c.tests)
			var out strings.Builder
			code, err := run(t.Context(), []string{"-record", "docs/r.txt", "./..."}, &out)
			if err != nil || code != c.code {
				t.Errorf("exit code %d (%v), want %d", code, err, c.code)
			}
			for _, w := range c.want {
				if !strings.Contains(out.String(), w) {
					t.Errorf("no %q in\n%s", w, out.String())
				}
			}
			for _, w := range c.not {
				if strings.Contains(out.String(), w) {
					t.Errorf("%q in\n%s", w, out.String())
				}
			}
			record, err := os.ReadFile("docs/r.txt")
			if err != nil {
				t.Fatal(err)
			}
			verdict := map[int]string{0: "passed", 1: "FAILED"}[c.code]
			if !strings.Contains(string(record), "result:  "+verdict) || !strings.Contains(string(record), "skipped: ") {
				t.Errorf("record:\n%s", record)
			}
		})
	}
}

// TestAlone: the test of -alone runs once and before the others, and its failure is that of all.
func TestAlone(t *testing.T) {
	say := func(name, do string) string {
		return "func " + name + "(t *testing.T) { t.Log(\"here is " + name + "\"); " + do + " }\n"
	}
	for do, code := range map[string]int{"": 0, "t.Fail()": 1} {
		module(t, map[string]string{"a": say("TestA", "") + say("TestB", do), "b": say("TestB", "")})
		var out strings.Builder
		got, err := run(t.Context(), []string{"-alone", "./a:TestB", "-record", "r.txt", "-v", "./..."}, &out)
		if err != nil || got != code || strings.Count(out.String(), "\texample.org/m/a\t") != 2 || strings.Contains(out.String(), "m/b\t") && code == 0 && !strings.Contains(out.String(), "tests: 2 passed") {
			t.Errorf("exit code %d, %v:\n%s", got, err, out.String())
		}
		record, err := os.ReadFile("r.txt")
		if want := "go test -count=1 -timeout=30m -run ^TestB$ ./a; go test -skip ^TestB$ -v ./..."; err != nil || !strings.Contains(string(record), want) {
			t.Errorf("record: %v\n%s", err, record)
		}
	}
	if _, err := run(t.Context(), []string{"-alone", "TestB", "./..."}, &strings.Builder{}); err == nil {
		t.Error("-alone without a package is taken")
	}
}

func TestBeat(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	began := time.Now()
	r := newReport(&out, began)
	r.line([]byte(`{"Action":"run","Package":"github.com/coteriedb/coterie/internal/x","Test":"TestWaits"}`))
	r.line([]byte(`{"Action":"pause","Package":"github.com/coteriedb/coterie/internal/x","Test":"TestWaits"}`))
	r.line([]byte(`{"Action":"run","Package":"github.com/coteriedb/coterie/internal/x","Test":"TestSlow"}`))
	r.beat(began.Add(5*time.Second), 10*time.Second)
	if out.Len() > 0 {
		t.Errorf("spoke too early: %s", out.String())
	}
	r.beat(began.Add(11*time.Second), 10*time.Second)
	if want := "... 11s: internal/x TestSlow for 11s\n"; out.String() != want {
		t.Errorf("said %q, want %q", out.String(), want)
	}
}
