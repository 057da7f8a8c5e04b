package provision

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/google/uuid"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/agent/marks"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/lib/durable"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/lib/fault"
	"github.com/coteriedb/coterie/internal/node/fencetime"
	"github.com/coteriedb/coterie/internal/node/membership"
	"github.com/coteriedb/coterie/internal/node/pgserver"
	"github.com/coteriedb/coterie/internal/postgres"
)

// NewGroup returns an id for a new group.
func NewGroup() ag.GroupID { return ag.GroupID(uuid.NewString()) }

// EmptyLayout returns the layout of the node directory dir. It is refused if the directory is not empty, cannot be
// listed, or is where another user could change it or put another one in its place.
func EmptyLayout(dir string) (config.Layout, error) {
	if dir == "" { // it would be the working directory
		return config.Layout{}, fail.Usagef("--node names no directory; nothing was changed")
	}
	l, err := config.NewLayout(dir)
	if err != nil {
		return l, err
	}
	if err := config.CheckPlace(dir); err != nil {
		return l, fail.Refusedf("%s cannot be a node directory: %w; nothing was changed", dir, err)
	}
	entries, err := os.ReadDir(l.Dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil: // what is there is not known, so it counts as used
		return l, fail.Refusedf("%s cannot be used: %w; nothing was changed: choose another --node directory", l.Dir, err)
	case len(entries) > 0:
		return l, fail.Refusedf("%s is not empty; nothing was changed: choose another --node directory, or start what is there with coterie agent", l.Dir)
	}
	if pid, runs := l.Running(); runs {
		return l, fail.Refusedf("a process of a former node in %s still runs%s; nothing was changed: end it with kill and run this again, or choose another --node directory", l.Dir, pid)
	}
	return l, nil
}

// FreshDir makes the node directory dir. It is refused if the directory exists and is not empty.
func FreshDir(dir string) (config.Layout, error) {
	l, err := EmptyLayout(dir)
	if err != nil {
		return l, err
	}
	if err := l.Make(); err != nil {
		return l, err
	}
	if err := os.Chmod(l.Dir, 0o700); err != nil { //nolint:gosec // a directory, which may have been there, empty
		return l, fmt.Errorf("make %s private: %w", l.Dir, err)
	}
	return config.NewLayout(dir)
}

// FirstNode is the first node of a new group.
type FirstNode struct {
	Layout     config.Layout
	Config     config.Config
	PostgreSQL *postgres.Instance
	Major      int    // PostgreSQL version
	Profile    string // lease profile
	Draft      bool   // no group exists yet: CREATE AVAILABILITY GROUP makes it
}

// FoundGroup writes the files that the first node needs to start: its certificates, its configuration, and the founding
// record of the group.
func FoundGroup(ctx context.Context, n FirstNode) error {
	l, cfg, pg := n.Layout, n.Config, n.PostgreSQL
	members, err := ReachQuorum(ctx, cfg, ag.GroupID(cfg.Group), true)
	if err != nil {
		return err
	}
	if _, err := fencetime.Check(ctx, l, n.Profile); err != nil { // measured before, where a restore came first
		return err
	}
	ctl, err := pg.Control(ctx)
	if err != nil {
		return err
	}
	ca, err := certs.NewCA(ag.GroupID(cfg.Group), cfg.GroupName)
	if err != nil {
		return err
	}
	if err := ca.Save(l.PKI()); err != nil {
		return err
	}
	fault.Point("found.authority") // the authority is on disk; the node has no identity
	hosts := config.CertificateHosts(cfg)
	id := certs.Identity{Group: ag.GroupID(cfg.Group), Kind: "replica", ID: ag.ReplicaID(cfg.Node)}
	identity, err := certs.CreateNode(l.PKI(), ca, id, hosts)
	if err != nil {
		return err
	}
	if err := issueListener(l, ca, hosts); err != nil {
		return err
	}
	rules, err := ownRules(cfg)
	if err != nil {
		return err
	}
	cp := agent.NewCopyID()
	if err := (&pgserver.Instance{Instance: pg, Layout: l}).WriteCopy(cp); err != nil {
		return err
	}
	fault.Point("found.copy") // the data directory names the copy; the marks do not
	if err := marks.Open(l.State()).SetCopy(marks.Copy{Copy: cp}); err != nil {
		return err
	}
	self := ag.ReplicaID(cfg.Node)
	tli := ctl.Timeline
	f := membership.Founding{
		Group: ag.Group{
			ID: ag.GroupID(cfg.Group), Name: cfg.GroupName, SystemID: ctl.SystemID, CommitRule: ag.RuleQuorum, SessionTimeout: 10 * time.Second,
			Profile: n.Profile, HBA: rules, Superuser: cfg.PostgreSQL.Superuser, External: members, SignedOnly: true, SignedRecord: true, Replicas: []ag.Replica{{
				ID: self, AvailabilityMode: ag.SynchronousCommit, FailoverMode: ag.Automatic,
				Endpoint: cfg.Endpoint.Advertise, Listener: cfg.ReadWrite.Advertise, ReadOnly: cfg.ReadOnly.Advertise, HTTP: cfg.HTTP.Advertise,
				KeyPin: identity.Pin, Voter: true, Major: n.Major, Allow: ag.AllowReadOnly,
			}},
		},
		Epoch: ag.EpochRecord{Epoch: 1, Phase: ag.PhasePromote, Leader: self, TLI: tli + 1, MaxTLI: tli + 1, Reason: "founded"},
		State: ag.State{Leader: self, Copy: cp, V: []ag.Member{}, Timelines: []ag.TimelineEntry{{TLI: tli}}},
	}
	if n.Draft {
		f.Group.Draft, f.Group.Replicas[0].Join = true, ag.Detached
	}
	if err := durable.ReplaceJSON(l.FoundingFile(), f); err != nil {
		return err
	}
	fault.Point("found.founding") // the founding file is there; the node knows no group
	if err := membership.SaveGroup(l, f.Group); err != nil {
		return err
	}
	fault.Point("found.group") // the node knows the group; it has no configuration
	return cfg.Save(l.Dir)
}

// ownRules returns the listener rules of an adopted cluster. They become the rules of the group, so that no node that
// joins later admits more clients.
func ownRules(cfg config.Config) (string, error) {
	if cfg.HBA == "" {
		return "", nil
	}
	b, err := os.ReadFile(cfg.HBA)
	return string(b), err
}

// issueListener issues and saves the certificate of this node's listener.
func issueListener(l config.Layout, ca *certs.CA, hosts []string) error {
	cert, key, err := ca.IssueListener(hosts)
	if err != nil {
		return err
	}
	return certs.SaveListener(l.PKI(), cert, key)
}

// Rollback removes the files of a failed init or join. It keeps the node directory itself, whose parent may belong to
// another user.
func Rollback(l config.Layout) {
	_ = os.RemoveAll(l.Run)
	entries, _ := os.ReadDir(l.Dir)
	for _, e := range entries {
		_ = os.RemoveAll(filepath.Join(l.Dir, e.Name()))
	}
}
