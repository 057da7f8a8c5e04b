package nodecmd

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/daemon"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// tokenEnv is the environment variable that may hold a join token. Only the user of the process can read it, whereas
// every user can read the arguments.
const tokenEnv = "COTERIE_JOIN_TOKEN" //nolint:gosec // the name, not a token

// tokenReadEnv is the environment variable by which a command that is executed again as another user knows that its
// predecessor has read the token: standard input is spent, and the new user may be unable to read the file.
const tokenReadEnv = "COTERIE_JOIN_TOKEN_READ" //nolint:gosec // the name, not a token

// maxToken is the largest text, in bytes, that is read as a token.
const maxToken = 64 << 10

// tokenText returns the join token of a command: its argument, the file, standard input where the argument is "-", or
// the environment. An argument is hidden from other users of the machine from then on. The environment holds the token
// afterwards, for this command if it is executed again as another user, and until forgetToken.
func tokenText(c *cobra.Command, args []string, file string) (string, error) {
	given := ""
	if len(args) > 0 {
		given = args[0]
	}
	text := ""
	switch {
	case os.Getenv(tokenReadEnv) != "":
		text = os.Getenv(tokenEnv)
	case given != "" && file != "":
		return "", fail.Usagef("%s takes a token or --token-file, not both", c.CommandPath())
	case given != "" && given != "-":
		text = strings.Clone(given)
		daemon.HideArgument(given)
	case file != "":
		f, err := os.Open(file)
		if err != nil {
			return "", fail.Usagef("read the token: %w", err)
		}
		defer func() { _ = f.Close() }()
		if text, err = readTokenText(f); err != nil {
			return "", err
		}
	case given == "-":
		var err error
		if text, err = readTokenText(c.InOrStdin()); err != nil {
			return "", err
		}
	case os.Getenv(tokenEnv) != "":
		text = os.Getenv(tokenEnv)
	default:
		return "", fail.Usagef("%s needs a join token: as its argument, or, where other users of this machine may read that, with --token-file FILE, "+
			"in %s, or with - on standard input; see %s --help", c.CommandPath(), tokenEnv, c.CommandPath())
	}
	return text, errors.Join(os.Setenv(tokenEnv, text), os.Setenv(tokenReadEnv, "1"))
}

// forgetToken takes the token out of the environment, which programs that this process runs inherit.
func forgetToken() error { return errors.Join(os.Unsetenv(tokenEnv), os.Unsetenv(tokenReadEnv)) }

func readTokenText(r io.Reader) (string, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxToken+1))
	if err != nil {
		return "", fmt.Errorf("read the token: %w", err)
	}
	if len(b) > maxToken {
		return "", fail.Usagef("a token has at most %d bytes, and this text more", maxToken)
	}
	return strings.TrimSpace(string(b)), nil
}
