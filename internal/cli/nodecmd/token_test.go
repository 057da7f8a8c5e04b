package nodecmd

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// argumentEnv makes this test binary play a process with a token among its arguments.
const argumentEnv = "COTERIE_TEST_ARGUMENT"

// TestTokenIsNotShown checks that the token of a running command is not among the arguments that other users can read.
func TestTokenIsNotShown(t *testing.T) {
	if os.Getenv(argumentEnv) != "" {
		secret := os.Args[len(os.Args)-1]
		text, err := tokenText(&cobra.Command{Use: "join"}, []string{secret}, "")
		line, readErr := os.ReadFile("/proc/self/cmdline")
		t.Logf("text %s, args %v, errors %v %v, cmdline <%s>", text, os.Args[len(os.Args)-1], err, readErr, line)
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=TestTokenIsNotShown$", "-test.v", "--", "very-secret-token")
	cmd.Env = append(os.Environ(), argumentEnv+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	said := string(out)
	if !strings.Contains(said, "text very-secret-token, args -, errors <nil> <nil>") {
		t.Errorf("the process said %s", said)
	}
	if _, line, _ := strings.Cut(said, "cmdline <"); line == "" || strings.Contains(line, "secret") {
		t.Errorf("the command line still shows the token: %s", line)
	}
}

// TestTokenText reads tokens from all places where they may be given, and refuses what is no single token.
func TestTokenText(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("from-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name       string
		args       []string
		file, env  string
		again      bool // the process runs again as another user
		stdin      string
		want, fail string
	}{
		{name: "standard input", args: []string{"-"}, stdin: " from-input\n", want: "from-input"},
		{name: "a file", file: file, want: "from-file"},
		{name: "the environment", env: "from-env", want: "from-env"},
		{name: "a command that runs again", args: []string{"-"}, again: true, env: "from-env", stdin: "spent", want: "from-env"},
		{name: "a command that runs again, whose new user cannot read the file", file: file + "x", again: true, env: "from-env", want: "from-env"},
		{name: "standard input wins over the environment", args: []string{"-"}, env: "from-env", stdin: "from-input", want: "from-input"},
		{name: "an argument wins over the environment", args: []string{"from-argument"}, env: "from-env", want: "from-argument"},
		{name: "two places", args: []string{"x"}, file: file, fail: "not both"},
		{name: "none", fail: "needs a join token"},
		{name: "no such file", file: file + "x", fail: "read the token"},
		{name: "too much", args: []string{"-"}, stdin: strings.Repeat("x", maxToken+1), fail: "at most"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv(tokenEnv, tt.env)
			t.Setenv(tokenReadEnv, map[bool]string{true: "1"}[tt.again])
			c := &cobra.Command{Use: "join"}
			c.SetIn(strings.NewReader(tt.stdin))
			got, err := tokenText(c, tt.args, tt.file)
			if tt.fail != "" {
				if err == nil || !strings.Contains(err.Error(), tt.fail) {
					t.Fatalf("error %v, want %q", err, tt.fail)
				}
				return
			}
			if err != nil || got != tt.want {
				t.Fatalf("%q, %v; want %q", got, err, tt.want)
			}
			if again, err := tokenText(c, []string{"-"}, file+"x"); err != nil || again != tt.want {
				t.Errorf("the process that runs again reads %q, %v", again, err)
			}
			if err := forgetToken(); err != nil || os.Getenv(tokenEnv) != "" || os.Getenv(tokenReadEnv) != "" {
				t.Errorf("%v, and the environment still has the token", err)
			}
		})
	}
}
