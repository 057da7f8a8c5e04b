package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/lib/fail"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/check"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/endpoint"
	"github.com/coteriedb/coterie/internal/etcd"
)

// quorumFlags name an etcd that an administrator runs, for a group that is not to have an embedded quorum.
type quorumFlags struct {
	endpoints     []string
	ca, cert, key string
}

func (f *quorumFlags) add(c *cobra.Command, founds bool) {
	fl := c.Flags()
	where, files := "client URLs of an etcd of yours that is to be the group's quorum, as in https://10.0.0.7:2379,https://10.0.0.8:2379 (default: a quorum embedded in the nodes)", ""
	if !founds {
		where, files = "client URLs of the group's external etcd (default: those in the token)", " (default: the path on the node that made the token)"
	}
	fl.StringSliceVar(&f.endpoints, "quorum-endpoints", nil, where)
	fl.StringVar(&f.ca, "quorum-ca", "", "file of the authorities behind the etcd's certificates"+files)
	fl.StringVar(&f.cert, "quorum-cert", "", "file of this node's client certificate for the etcd"+files)
	fl.StringVar(&f.key, "quorum-key", "", "file of that certificate's key; only the node's user may read it"+files)
}

// fromToken fills in what was not said on the command line.
func (f *quorumFlags) fromToken(q endpoint.TokenQuorum) error {
	if len(q.Endpoints) == 0 {
		if f.given() {
			return fail.Usagef("the quorum of this group is embedded in its nodes; join without --quorum-…")
		}
		return nil
	}
	if len(f.endpoints) == 0 {
		f.endpoints = q.Endpoints
	}
	for _, x := range []struct {
		own   *string
		token string
	}{{&f.ca, q.CA}, {&f.cert, q.Cert}, {&f.key, q.Key}} {
		if *x.own == "" {
			*x.own = x.token
		}
	}
	return nil
}

func (f *quorumFlags) given() bool {
	return len(f.endpoints) > 0 || f.ca != "" || f.cert != "" || f.key != ""
}

// config is what the flags say; nil: the quorum is embedded.
func (f *quorumFlags) config() (*config.Quorum, error) {
	if !f.given() {
		return nil, nil //nolint:nilnil // an absent setting is no error
	}
	q := &config.Quorum{Endpoints: f.endpoints, CA: f.ca, Cert: f.cert, Key: f.key}
	if err := (etcd.External{Endpoints: q.Endpoints, CAFile: q.CA, CertFile: q.Cert, KeyFile: q.Key}).Check(); err != nil {
		return nil, fail.Usagef("--quorum-endpoints: %w", err)
	}
	for _, path := range []string{f.ca, f.cert, f.key} {
		if path != "" && !strings.HasPrefix(path, "/") {
			return nil, fail.Usagef("%q: name the files of --quorum-ca, --quorum-cert and --quorum-key from / on: the agent may be started from anywhere", path)
		}
	}
	return q, nil
}

// reachQuorum makes sure that the quorum answers before anything is made, and returns how many members vote in it; 0 where it is
// embedded. A founder wants no record of its group there, a joiner wants to find it.
func reachQuorum(ctx context.Context, cfg config.Config, group ag.GroupID, founds bool) (members int, err error) {
	if cfg.Quorum == nil {
		return 0, nil
	}
	var tried []error
	for _, r := range externalQuorum(cfg).Probe(ctx, group) {
		switch {
		case r.Err != nil:
			tried = append(tried, fmt.Errorf("%s: %w", r.Endpoint, r.Err))
		case founds && r.Known:
			return 0, fail.Refusedf("the etcd at %s holds a group %s already; nothing was changed", r.Endpoint, group)
		case !founds && !r.Known:
			return 0, fail.Refusedf("the etcd at %s holds no record of this group, so it is another one than the group's; nothing was changed: name the group's with --quorum-endpoints", r.Endpoint)
		default:
			members = r.Members
		}
	}
	if members == 0 {
		return 0, fmt.Errorf("the external quorum does not answer: %w; correct --quorum-endpoints, --quorum-ca, --quorum-cert and --quorum-key, or the etcd", errors.Join(tried...))
	}
	return members, nil
}

func externalQuorum(cfg config.Config) etcd.External {
	q := cfg.Quorum
	return etcd.External{Endpoints: q.Endpoints, CAFile: q.CA, CertFile: q.Cert, KeyFile: q.Key}
}

// external tells whether an administrator runs the quorum's etcd.
func (n *node) external() bool { return n.cfg.Quorum != nil }

// sameQuorum refuses to start a node whose configuration file and whose group disagree on what the quorum is.
func sameQuorum(cfg config.Config, g ag.Group) error {
	switch {
	case cfg.Quorum == nil && g.External > 0:
		return fmt.Errorf("the quorum of group %s is an external etcd, and %s has no quorum.endpoints; put them back", g.Name, config.File)
	case cfg.Quorum != nil && g.External == 0:
		return fmt.Errorf("the quorum of group %s is embedded in its nodes, and %s names quorum.endpoints; remove them: what the quorum is, is decided by coterie init", g.Name, config.File)
	case cfg.Quorum == nil:
		return nil
	}
	if err := externalQuorum(cfg).Check(); err != nil {
		return fmt.Errorf("quorum.endpoints in %s: %w", config.File, err)
	}
	return nil
}

// foundExternal writes the first record into the external etcd, or after its loss the new one; it may run again after a crash.
func (n *node) foundExternal(ctx context.Context, f founding) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	write := n.store.Bootstrap
	if f.Token != "" {
		write = n.store.Replace
	}
	for {
		err := write(ctx, f.Group, f.Epoch, f.State)
		_, readErr := n.store.Read(ctx)
		if readErr == nil && (err == nil || f.Token == "" && errors.Is(err, etcd.ErrConflict)) {
			return os.Remove(n.layout.FoundingFile())
		}
		if errors.Is(err, etcd.ErrConflict) {
			return fmt.Errorf("quorum: %w; whoever wrote it goes on: see coterie status there", err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("quorum: %w", errors.Join(err, readErr))
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// countEvery is how often the primary looks how many members the external etcd has: fast takeover rests on three.
const countEvery = 10 * time.Second

// countExternal keeps the number of the external etcd's members in the configuration; the primary does it.
func (n *node) countExternal(ctx context.Context, snap *agent.Snapshot) error {
	if snap.Record.Epoch.Leader != n.self || time.Since(n.counted) < countEvery {
		return nil
	}
	n.counted = time.Now()
	k, err := n.store.VotingMembers(ctx)
	if err != nil || k == snap.Group.External || k == 0 {
		return err
	}
	n.log.Info("the external quorum has another number of voting members", "was", snap.Group.External, "is", k)
	return n.updateGroup(ctx, func(g *ag.Group) error { g.External = k; return nil })
}

// findQuorum looks at every endpoint of an external etcd as this node reaches it.
func findQuorum(ctx context.Context, dir string) ([]check.Finding, error) {
	cfg, err := config.Load(dir)
	if err != nil {
		return nil, err
	}
	if cfg.Quorum == nil {
		return []check.Finding{{Level: check.OK, What: "the quorum is embedded in the group's nodes"}}, nil
	}
	var out []check.Finding
	members := 0
	for _, r := range externalQuorum(cfg).Probe(ctx, ag.GroupID(cfg.Group)) {
		f := check.Finding{Level: check.OK, What: fmt.Sprintf("%s answers in %v", r.Endpoint, r.Took.Round(100*time.Microsecond))}
		switch {
		case r.Err != nil:
			f = check.Finding{
				Level: check.Problem, What: fmt.Sprintf("%s: %v", r.Endpoint, r.Err), Why: "with no endpoint left this node fences itself when its lease ends",
				Run: "look at the etcd there, and at quorum in " + config.File,
			}
		case !r.Known:
			f = check.Finding{
				Level: check.Problem, What: r.Endpoint + " holds no record of this group", Why: "it is another etcd than the group's, or one that was made anew",
				Run: "correct quorum.endpoints in " + config.File + "; if the etcd was lost: coterie recover --help",
			}
		case r.Took > slowQuorum:
			f.Level, f.Why = check.Warning, "every renewal of the lease waits for it"
		}
		members = max(members, r.Members)
		out = append(out, f)
	}
	if members > 0 && members < 3 {
		out = append(out, check.Finding{
			Level: check.Warning, What: fmt.Sprintf("the external etcd has %d voting members", members),
			Why: "it survives no failure of its own, and a primary is replaced only after it has been silent for long (no fast takeover)",
			Run: "give the etcd three members",
		})
	}
	return out, nil
}

// slowQuorum is above what a read of a healthy etcd takes, even on another site.
const slowQuorum = 200 * time.Millisecond
