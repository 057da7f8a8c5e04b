package nodecmd

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/endpoint"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/node/fencetime"
	"github.com/coteriedb/coterie/internal/provision"
)

// Join returns the command join, or the command witness.
func Join(witness bool) *cobra.Command {
	var f NodeFlags
	var tokenFile string
	kind, use, short := "replica", "join TOKEN", "Join a group: make a replica here"
	long := `Makes this machine a replica of the group whose token is given: its identity, its part in the quorum, and a copy of the data of another
replica, as a rule the primary. Then it starts the agent: root on a machine that has the service unit starts it by the unit, otherwise the
agent stays in the foreground. --no-start only makes the node. A token works once and expires; make one on any replica with: coterie
member add-token

Other users of this machine see a command's arguments for a moment, and a shell may keep them. "coterie join -" reads the token from standard
input, --token-file from a file; COTERIE_JOIN_TOKEN may hold it, too.`
	if witness {
		kind, use, short = "witness", "witness TOKEN", "Join a group as a witness: a vote without data"
		long = `Makes this machine a witness of the group whose token is given: it votes in the quorum and holds no data, so that two replicas can tell
which of them may lead. It needs no PostgreSQL, only the user that a node runs as: the packages make it. The agent is started as by coterie join. Make the token on a replica with: coterie member
add-token --role witness`
	}
	c := &cobra.Command{
		Use: use, GroupID: "node", Short: short, Long: long + aboutJSON, Args: cli.ArgsBetween(0, 1, "a join token"),
		RunE: func(c *cobra.Command, a []string) error {
			dir, _ := c.Flags().GetString("node")
			text, err := tokenText(c, a, tokenFile)
			if err != nil {
				return err
			}
			t, err := readToken(kind, text)
			if err != nil {
				return err
			}
			if err := f.take(c, t); err != nil {
				return err
			}
			if err := f.check(c.Context(), kind, dir, t.Group); err != nil {
				return err
			}
			if !f.noStart {
				if done, err := throughUnit(c, dir); done {
					return err
				}
			}
			if err := makeNode(dir, func() error {
				if err := forgetToken(); err != nil { // the server, which this process may start, does not get it
					return err
				}
				return joinNode(c, dir, &f, t)
			}); err != nil {
				return err
			}
			return startOrSay(c, dir, f.noStart)
		},
	}
	f.add(c, false)
	if witness {
		f.hideClients(c)
	} else {
		f.addServer(c)
	}
	c.Flags().StringVar(&tokenFile, "token-file", "", "read the token from this file")
	return c
}

// take takes over what a token says of the node: its name where it replaces a member, and an external quorum.
func (f *NodeFlags) take(c *cobra.Command, t endpoint.Token) error {
	if t.Member != "" {
		if c.Flags().Changed("name") && f.name != t.Member {
			return fail.Usagef("this token is for the node that replaces %s, and takes its name; leave --name %s away, or ask for another token: coterie member add-token", t.Member, f.name)
		}
		f.name = t.Member
	}
	return f.quorum.fromToken(t.Quorum)
}

// joinNode asks the group of the token to admit this node, and makes the node directory. If it fails, it removes the
// directory.
func joinNode(c *cobra.Command, dir string, f *NodeFlags, t endpoint.Token) (err error) {
	ctx, cancel := context.WithTimeout(c.Context(), time.Minute)
	defer cancel()
	kind := t.Role
	cfg, err := f.config(ctx, kind)
	if err != nil {
		return err
	}
	cfg.Group, cfg.GroupName = string(t.Group), t.Name
	if _, err := provision.ReachQuorum(ctx, cfg, t.Group, false); err != nil { // the user that runs the node must reach it too
		return err
	}
	req := endpoint.JoinRequest{
		ID: ag.ReplicaID(cfg.Node), Kind: kind, Endpoint: cfg.Endpoint.Advertise, Listener: cfg.ReadWrite.Advertise,
		ReadOnly: cfg.ReadOnly.Advertise, HTTP: cfg.HTTP.Advertise, Hosts: config.CertificateHosts(cfg), Signs: true, SignsRecord: true,
	}
	l, err := config.NewLayout(dir)
	if err != nil {
		return err
	}
	if kind == "replica" {
		in, err := f.Install(ctx)
		if err != nil {
			return err
		}
		req.Major = in.Major
		cfg.PostgreSQL = &config.PostgreSQL{BinDir: in.BinDir, Data: l.Data(), Superuser: cmp.Or(f.superuser, "postgres")}
	}
	if l, err = provision.FreshDir(dir); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			provision.Rollback(l)
		}
	}()
	if kind == "replica" {
		if req.Fence, err = fencetime.Save(ctx, l, "wan"); err != nil { // the group compares it with its own profile
			return err
		}
	}
	key, err := certs.NewKey()
	if err != nil {
		return err
	}
	cli.Say(c, "asking group %s to admit %s", t.Name, cfg.Node)
	grant, err := endpoint.Join(ctx, t, req, key)
	if err != nil {
		return joinRefused(err)
	}
	if cfg.PostgreSQL != nil {
		cfg.PostgreSQL.Superuser = cmp.Or(f.superuser, grant.Group.Superuser, "postgres")
	}
	return provision.WriteJoined(l, cfg, grant, func() (*certs.Node, error) { return certs.InstallNode(l.PKI(), grant.Grant, key) })
}

// readToken parses a join token, which must admit a node of that kind.
func readToken(kind, text string) (endpoint.Token, error) {
	t, err := endpoint.ParseToken(strings.TrimSpace(text))
	if err != nil {
		return t, fail.Usagef("%w", err)
	}
	if t.Role != kind {
		return t, fail.Usagef("this token admits a %s; use coterie %s", t.Role, map[string]string{"replica": "join", "witness": "witness"}[t.Role])
	}
	return t, nil
}

// joinRefused gives an answer of the group its exit code.
func joinRefused(err error) error {
	if errors.Is(err, endpoint.ErrWrongGroup) {
		return fail.Error{Kind: fail.Usage, Err: err}
	}
	var answer *endpoint.RemoteError
	if !errors.As(err, &answer) {
		return err
	}
	code := " (" + answer.Code + ")" // is for programs
	said := errors.New(strings.TrimSuffix(err.Error(), code))
	switch answer.Code {
	case endpoint.CodeTokenUnknown, endpoint.CodeTokenUsed, endpoint.CodeTokenExpired, endpoint.CodeNameTaken, endpoint.CodeMalformed:
		return fail.Error{Kind: fail.Usage, Err: said}
	case endpoint.CodeRefused, endpoint.CodeVersionMismatch, endpoint.CodeGroupMismatch:
		return fail.Error{Kind: fail.Refused, Err: said}
	case endpoint.CodeUnavailable:
		return fail.Error{Kind: fail.Unhealthy, Err: said}
	}
	return err
}
