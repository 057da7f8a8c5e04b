package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// Client returns a client of the agent that runs the node directory.
func Client(c *cobra.Command) (*api.Client, error) {
	dir := Node(c)
	if dir == "" {
		return nil, fail.Usagef("--node names no directory; see %s --help", c.CommandPath())
	}
	l, err := config.NewLayout(dir)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(l.Dir); errors.Is(err, fs.ErrPermission) {
		return nil, notPermitted(l)
	} else if err != nil {
		return nil, noDirectory(l.Dir)
	}
	return api.NewClient(l.AgentSock(), l.Owner()), nil
}

// PerhapsNode returns the node directory of a command that has an answer before there is a node, too. It is refused if
// the user has named a directory that is no node's, or if the nodes of this machine are elsewhere.
func PerhapsNode(c *cobra.Command) (string, error) {
	dir := Node(c)
	if dir == "" {
		return "", fail.Usagef("--node names no directory; see %s --help", c.CommandPath())
	}
	named := c.Flags().Changed("node") || os.Getenv("COTERIE_NODE") != ""
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) && (named || len(nodes()) > 0) {
		return "", noDirectory(dir)
	}
	switch {
	case hasLeft(dir):
		return "", leftNode(dir)
	case named && !isNode(dir):
		return "", notNode(dir)
	}
	return dir, nil
}

// leftNode returns the error for the directory of a node that has left its group.
func leftNode(dir string) error {
	return fail.Unhealthyf("%s is no node any more: it has left its group, or was released; its data is an ordinary data directory, and coterie join in an empty directory makes a new node", dir)
}

// notNode returns the error for a directory that is no node's.
func notNode(dir string) error {
	return fail.Usagef("%s is not a node directory: it has no coterie.yaml; name one with --node DIR or by COTERIE_NODE, or make one with coterie init", dir)
}

// nodes returns the node directories on this machine; tests replace it.
var nodes = config.Nodes

// Node returns the node directory of a command that speaks with a node. If none is named and there is none at the usual
// place, it is that of the only node on this machine, which is said.
func Node(c *cobra.Command) string {
	dir, _ := c.Flags().GetString("node")
	if c.Flags().Changed("node") || os.Getenv("COTERIE_NODE") != "" {
		return dir
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return dir
	}
	found := nodes()
	if len(found) != 1 {
		return dir
	}
	Say(c, "node directory %s, the only one on this machine", found[0])
	_ = c.Flags().Set("node", found[0]) // a command that asks again is not told again
	return found[0]
}

// isNode reports whether the directory is that of a node, or of one that has left its group.
func isNode(dir string) bool {
	for _, name := range []string{config.File, config.File + ".left"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil || errors.Is(err, fs.ErrPermission) {
			return true
		}
	}
	return false
}

// hasLeft reports whether the directory is that of a node that has left its group, or was released.
func hasLeft(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, config.File))
	_, left := os.Stat(filepath.Join(dir, config.File+".left"))
	return errors.Is(err, fs.ErrNotExist) && left == nil
}

// noDirectory returns the error for a node directory that does not exist. It names those that do.
func noDirectory(dir string) error {
	const most = 5
	found := nodes()
	if len(found) == 0 {
		return fail.Usagef("there is no node directory %s; name one with --node DIR, or make one with coterie init", dir)
	}
	more := ""
	if len(found) > most {
		more = fmt.Sprintf(" and %d more", len(found)-most)
	}
	return fail.Usagef("there is no node directory %s; name one with --node DIR or by COTERIE_NODE, or make one with coterie init. On this machine: %s%s", dir, strings.Join(found[:min(len(found), most)], ", "), more)
}

// notPermitted returns the error of a user who may not talk to a node, with whom to be.
func notPermitted(l config.Layout) error {
	who := "root and the user of the node"
	if u, err := user.LookupId(strconv.Itoa(l.Owner())); err == nil {
		who = "root and " + u.Username
	}
	return fail.Error{Kind: fail.Refused, Err: fmt.Errorf("permission denied: only %s may administer the node in %s; run the command with sudo", who, l.Dir)}
}

// NodeDirectory returns the node directory of a command that names none: COTERIE_NODE, or the usual one.
func NodeDirectory() string {
	if dir := os.Getenv("COTERIE_NODE"); dir != "" {
		return dir
	}
	return DefaultNode
}

// NoAgent returns an error of a call of the agent in words for an administrator. Without an agent it names the command
// that starts one, unless the directory is no node's; a refusal of the socket names the user to be. Where the agent has
// ended, or the command's time is over, before there was an answer, it is said that the outcome is not known. Other
// errors are returned unchanged.
func NoAgent(c *cobra.Command, err error) error {
	dir := Node(c)
	if errors.Is(err, fs.ErrPermission) {
		if l, layoutErr := config.NewLayout(dir); layoutErr == nil {
			return notPermitted(l)
		}
	}
	var answered fail.Error
	switch {
	case errors.Is(err, api.ErrNoAgent) && hasLeft(dir):
		return leftNode(dir)
	case errors.Is(err, api.ErrNoAgent) && !isNode(dir):
		return notNode(dir)
	case errors.As(err, &answered) && !errors.Is(err, api.ErrNoAgent):
		return err
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET):
		return fail.Unhealthyf("the agent of %s ended before it answered, so it is not known how far this came; start it if it does not run (coterie status), and run this again", dir)
	case errors.Is(err, context.DeadlineExceeded):
		return fail.Unhealthyf("the agent of %s has not answered in time, so it is not known how far this came; see coterie status, and run this again", dir)
	}
	if errors.Is(err, api.ErrNoAgent) {
		return fail.Unhealthyf("no agent runs %s; start it with: coterie agent --node %s", dir, dir)
	}
	return err
}
