package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lib/fail"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/postgres/keeper"
)

func recoverCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "recover", GroupID: "group", Short: "Make a new quorum when the old one is lost for good",
		Long: `For the day on which a majority of the voters has lost its quorum directory, or the quorum was put back in time: no replica is promoted then,
because nothing that could say who holds which commits is to be trusted any more. A person chooses who leads.

 1. Stop the agent of every member that is left: systemctl stop coterie.
 2. On each of them: coterie recover account. It prints what the member knows, for the next step.
 3. On the member that is to lead: coterie recover lead --account TEXT for each of the others, --lost NAME for each that is gone for good.
    It shows how far every copy is, and asks. Then start its agent.
 4. On each of the others: coterie recover follow. Then start its agent.

The group gets an epoch above all that were ever promised. Members that are given up for lost leave it: they must never be started
again from what they have (join them anew). Two of them, with their old quorum intact, would lead the group a second time.
Automatic failover is off afterwards; ALTER AVAILABILITY GROUP … MODIFY REPLICA ON … WITH (FAILOVER_MODE = AUTOMATIC) turns it on again.`,
	}
	c.AddCommand(accountCommand(), leadCommand(), followCommand())
	return c
}

// stoppedNode is a node whose agent does not run, and cannot be started until it is released.
type stoppedNode struct {
	cfg     config.Config
	layout  config.Layout
	self    ag.ReplicaID
	group   ag.Group // as the node last saw it
	release func()
}

// openStopped opens the node directory that a command names, as the user that owns it.
func openStopped(c *cobra.Command) (*stoppedNode, error) {
	dir, err := c.Flags().GetString("node")
	if err != nil {
		return nil, err
	}
	if err := becomeServerUser(dir); err != nil {
		return nil, err
	}
	return lockStopped(c.Context(), dir)
}

// lockStopped keeps the agent of the node in dir from starting until release, and makes sure that neither agent nor server runs.
func lockStopped(ctx context.Context, dir string) (*stoppedNode, error) {
	layout, err := config.NewLayout(dir)
	if err != nil {
		return nil, err
	}
	cfg, err := config.Load(layout.Dir)
	if err != nil {
		return nil, err
	}
	if err := layout.Make(); err != nil {
		return nil, err
	}
	unlock, err := lockNode(layout)
	if err != nil {
		return nil, fail.Refusedf("%w (coterie recover needs this node with its agent stopped: what it knows must not change meanwhile)", err)
	}
	s := &stoppedNode{cfg: cfg, layout: layout, self: ag.ReplicaID(cfg.Node), release: unlock}
	if err := s.check(ctx); err != nil {
		unlock()
		return nil, err
	}
	return s, nil
}

func (s *stoppedNode) check(ctx context.Context) (err error) {
	if s.group, err = readGroup(s.layout); err != nil {
		return err
	}
	if s.group.Draft {
		return fail.Refusedf("this node is in no group yet; there is nothing to recover")
	}
	if s.cfg.Kind != "replica" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	k, _, err := keeper.Dial(ctx, s.layout.KeeperSock(), "")
	if err != nil {
		return nil //nolint:nilerr // no keeper: then no server either, since it dies with its parent
	}
	defer func() { _ = k.Close() }()
	st, err := k.Status(ctx)
	if err != nil {
		return err
	}
	if st.Postmaster != 0 {
		return fail.Refusedf("PostgreSQL still runs here (process %d); start the agent and stop it in order: systemctl stop coterie", st.Postmaster)
	}
	return nil
}

// account reads what this member knows from its disk.
func (s *stoppedNode) account(ctx context.Context) (a ag.Account, history []ag.TimelineEntry, err error) {
	a = ag.Account{Group: ag.GroupID(s.cfg.Group), ID: s.self}
	marks := agent.OpenMarks(s.layout.State())
	seen, err1 := marks.Seen()
	promised, err2 := marks.Promised()
	if err := errors.Join(err1, err2); err != nil {
		return a, nil, err
	}
	a.Promised, a.Epoch, a.Seq = promised, seen.Epoch, seen.Seq
	if s.cfg.Kind != "replica" {
		a.Unfit = "it is a witness and holds no data"
		return a, nil, nil
	}
	began, err1 := marks.Promoting()
	held, err2 := marks.Copy()
	bad, err3 := marks.Quarantine()
	pg, err4 := newInstance(s.cfg, s.layout, slog.New(slog.DiscardHandler))
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return a, nil, err
	}
	defer func() { _ = pg.Close() }()
	a.Copy, a.MaxTLI = held.Copy, began.TLI
	inside, err := (&instance{pg: pg, layout: s.layout}).InsideCopy()
	switch {
	case bad.Copy != "" && bad.Copy == held.Copy:
		a.Unfit = "its copy is under quarantine: " + bad.Why
	case marks.Repairing():
		a.Unfit = "its copy was being rewound or seeded"
	case err != nil || inside != held.Copy:
		a.Unfit = "what is in its data directory is not the copy that this node holds"
	}
	if a.Unfit != "" {
		return a, nil, nil
	}
	if a.Position, err = pg.EndOfWAL(ctx); err != nil {
		a.Unfit = err.Error()
		return a, nil, nil
	}
	a.MaxTLI = max(a.MaxTLI, a.Position.Timeline)
	history, err = pg.History(ctx, a.Position.Timeline)
	return a, history, err
}

// accountPrefix begins what coterie recover account prints, with the version of what follows.
const accountPrefix = "account1."

func encodeAccount(a ag.Account) (string, error) {
	b, err := json.Marshal(a)
	return accountPrefix + base64.RawURLEncoding.EncodeToString(b), err
}

func decodeAccount(text string) (a ag.Account, err error) {
	body, ok := strings.CutPrefix(strings.TrimSpace(text), accountPrefix)
	b, err := base64.RawURLEncoding.DecodeString(body)
	if err == nil {
		d := json.NewDecoder(strings.NewReader(string(b)))
		d.DisallowUnknownFields()
		err = d.Decode(&a)
	}
	if !ok || err != nil {
		return a, fail.Usagef("%.40s… is not what coterie recover account prints; copy the whole line", text)
	}
	return a, nil
}

func accountCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "account", Short: "Print what this stopped member knows, for coterie recover lead", Args: args(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			s, err := openStopped(c)
			if err != nil {
				return err
			}
			defer s.release()
			a, _, err := s.account(c.Context())
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c, a)
			}
			say(c, "%s", describeAccount(a))
			text, err := encodeAccount(a)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(c.OutOrStdout(), text)
			return err
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func describeAccount(a ag.Account) string {
	if a.Unfit != "" {
		return fmt.Sprintf("%s: promised epoch %d, saw epoch %d with state %d; cannot lead: %s", a.ID, a.Promised, a.Epoch, a.Seq, a.Unfit)
	}
	return fmt.Sprintf("%s: promised epoch %d, saw epoch %d with state %d; its copy ends at %s", a.ID, a.Promised, a.Epoch, a.Seq, a.Position)
}

func leadCommand() *cobra.Command {
	var texts, lost []string
	var yes bool
	c := &cobra.Command{
		Use: "lead", Short: "Found a new quorum on this stopped member, which leads the group from then on",
		Example: "  coterie recover lead --account account1.eyJnc… --lost n3", Args: args(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			s, err := openStopped(c)
			if err != nil {
				return err
			}
			defer s.release()
			return recoverLead(c, s, texts, lost, yes)
		},
	}
	c.Flags().StringArrayVar(&texts, "account", nil, "what coterie recover account printed on another member (repeat)")
	c.Flags().StringArrayVar(&lost, "lost", nil, "a member that is gone for good, and leaves the group (repeat)")
	c.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return c
}

// recoverLead founds the new quorum on this node, once a person has confirmed what that costs.
func recoverLead(c *cobra.Command, s *stoppedNode, texts, lost []string, yes bool) error {
	plan, err := s.plan(c.Context(), texts, lost)
	if err != nil {
		return err
	}
	if err := confirmRecovery(c, s, plan, yes); err != nil {
		return err
	}
	if err := s.refound(plan.recovery); err != nil {
		return err
	}
	say(c, "%s leads epoch %d from its next start on: systemctl start coterie, or coterie agent --node %s", s.self, plan.recovery.Epoch.Epoch, s.layout.Dir)
	for _, m := range plan.recovery.Group.Replicas {
		if m.ID != s.self {
			say(c, "then, on %s: coterie recover follow, and start its agent", m.ID)
		}
	}
	return nil
}

// recoveryPlan is what a recovery would make of the group, and the accounts it rests on.
type recoveryPlan struct {
	recovery ag.Recovery
	accounts []ag.Account
	gone     []ag.ReplicaID
}

// plan decides the recovery from this node's disk and the accounts of the others. It is refused while any other member answers.
func (s *stoppedNode) plan(ctx context.Context, texts, lost []string) (p recoveryPlan, err error) {
	own, history, err := s.account(ctx)
	if err != nil {
		return p, err
	}
	p.accounts = []ag.Account{own}
	for _, t := range texts {
		a, err := decodeAccount(t)
		if err != nil {
			return p, err
		}
		if a.ID != s.self { // of this one the disk has just been read
			p.accounts = append(p.accounts, a)
		}
	}
	for _, l := range lost {
		p.gone = append(p.gone, ag.ReplicaID(l))
	}
	if p.recovery, err = ag.Recover(s.group, s.self, p.accounts, p.gone, history); err != nil {
		return p, fail.Refusedf("%w", err)
	}
	return p, s.noneAnswers(ctx)
}

// noneAnswers refuses while any other member's port is open: its agent runs, so the quorum may not be lost at all.
func (s *stoppedNode) noneAnswers(ctx context.Context) error {
	for _, r := range s.group.Replicas {
		if r.ID == s.self {
			continue
		}
		d := net.Dialer{Timeout: 2 * time.Second}
		conn, err := d.DialContext(ctx, "tcp", r.Endpoint)
		if err != nil {
			continue
		}
		_ = conn.Close()
		return fail.Refusedf("the agent of %s runs: something answers at %s. Stop it first: while it runs it may lead, or promise something. If the group is "+
			"well, nothing is to be recovered; see coterie status there", r.ID, r.Endpoint)
	}
	return nil
}

func confirmRecovery(c *cobra.Command, s *stoppedNode, p recoveryPlan, yes bool) error {
	w := tabwriter.NewWriter(c.ErrOrStderr(), 0, 0, 3, ' ', 0)
	_, _ = fmt.Fprintln(w, "MEMBER\tCOPY ENDS AT\tLAST RECORD SEEN\tPROMISED\tAFTERWARDS")
	for _, a := range p.accounts {
		at, then := a.Position.String(), "follows"
		switch {
		case a.Copy == "" || a.Unfit != "":
			at = "-"
		case a.ID == s.self:
			then = "leads"
		}
		for _, id := range p.recovery.Ahead {
			if id == a.ID {
				then = "is AHEAD: suspended until coterie resume; what it has beyond the leader is LOST to the group"
			}
		}
		_, _ = fmt.Fprintf(w, "%s\t%s\tepoch %d, state %d\tepoch %d\t%s\n", a.ID, at, a.Epoch, a.Seq, a.Promised, then)
	}
	for _, id := range p.gone {
		_, _ = fmt.Fprintf(w, "%s\tunknown\tunknown\tunknown\tleaves the group; must never be started again as it is\n", id)
	}
	if err := w.Flush(); err != nil || yes {
		return err
	}
	if !term.IsTerminal(int(os.Stdin.Fd())) {
		return fail.Refusedf("commits may be lost, and two primaries are possible if a member that is called lost is not; add --yes to do it from a script")
	}
	name := s.group.Name
	say(c, "\nThis is not undone. Type the group's name (%s) to go on:", name)
	line, _ := bufio.NewReader(c.InOrStdin()).ReadString('\n')
	if strings.TrimSpace(line) != name {
		return fail.Refusedf("not confirmed; nothing was changed")
	}
	return nil
}

// refound puts the old quorum member aside and leaves, for the next start, what the new one is founded with. It may run again after a
// crash at any point.
func (s *stoppedNode) refound(r ag.Recovery) error {
	if err := errors.Join(s.putMemberAside(), s.forgetStore()); err != nil {
		return err
	}
	// The new quorum must not be the old one's twin: founded by the same member at the same address, it would be.
	f := founding{Group: r.Group, Epoch: r.Epoch, State: r.State, Token: fmt.Sprintf("%s-%d", s.cfg.Group, r.Epoch.Epoch)}
	b, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return err
	}
	return errors.Join(saveGroup(s.layout.GroupFile(), f.Group), writeSynced(s.layout.FoundingFile(), b))
}

// follow makes this member forget the lost quorum, so that it joins the new one at its next start.
func (s *stoppedNode) follow() error {
	if _, err := os.Stat(s.layout.FoundingFile()); err == nil {
		return fail.Refusedf("this member is to found the new quorum at its next start (coterie recover lead was run here); it follows nobody")
	}
	return errors.Join(s.putMemberAside(), s.forgetStore(), writeSynced(s.layout.ComebackFile(), nil))
}

// putMemberAside keeps the old member's directory, under another name, out of the way of a new one.
func (s *stoppedNode) putMemberAside() error {
	aside := s.layout.Etcd() + ".lost-" + time.Now().UTC().Format("20060102T150405Z")
	err := os.Rename(s.layout.Etcd(), aside)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil {
		return fmt.Errorf("put the old quorum member aside: %w", err)
	}
	if err := os.Remove(s.layout.MemberMark()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// forgetStore lets this member believe another store than the one it knew; how late a record it has seen it goes on knowing.
func (s *stoppedNode) forgetStore() error {
	marks := agent.OpenMarks(s.layout.State())
	seen, err := marks.Seen()
	if err != nil {
		return err
	}
	seen.Store, seen.Rev = 0, 0
	return marks.SetSeen(seen)
}

func writeSynced(path string, b []byte) error {
	f, err := os.OpenFile(path+".tmp", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		return err
	}
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func followCommand() *cobra.Command {
	return &cobra.Command{
		Use: "follow", Short: "Make this stopped member forget the lost quorum, and join the new one at its next start", Args: args(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			s, err := openStopped(c)
			if err != nil {
				return err
			}
			defer s.release()
			if err := s.follow(); err != nil {
				return err
			}
			say(c, "%s has forgotten the lost quorum; start its agent: systemctl start coterie, or coterie agent --node %s", s.self, s.layout.Dir)
			return nil
		},
	}
}
