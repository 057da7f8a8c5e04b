package groupcmd

import (
	"fmt"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/ag/recovery"
	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/daemon"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/provision"
)

// Recover returns the command recover, for a group whose quorum is lost for good.
func Recover() *cobra.Command {
	c := &cobra.Command{
		Use: "recover", GroupID: "group", Short: "Make a new quorum when the old one is lost for good",
		Long: `For the day on which a majority of the voters has lost its quorum directory, or the quorum was put back in time: no replica is promoted then,
because nothing that could say who holds which commits is to be trusted any more. A person chooses who leads.

 1. Stop the agent of every member that is left: systemctl stop coterie.
 2. On each of them: coterie recover account. It prints what the member knows, for the next step.
 3. On the member that is to lead: coterie recover lead --account TEXT for each of the others, --lost NAME for each that is gone for good.
    It shows how far every copy is, and asks. Then start its agent.
 4. On each of the others: coterie recover follow. Then start its agent.

Run step 3 on one member only. A member that founds a quorum asks the others first, and ends if another one is founded beside it.

The group gets an epoch above all that were ever promised. Members that are given up for lost leave it: they must never be started
again from what they have (join them anew). Two of them, with their old quorum intact, would lead the group a second time.
Automatic failover is off afterwards; ALTER AVAILABILITY GROUP … MODIFY REPLICA ON … WITH (FAILOVER_MODE = AUTOMATIC) turns it on again.`,
	}
	c.AddCommand(accountCommand(), leadCommand(), followCommand())
	return c
}

// openStopped opens the node directory of a command as the user that owns it. The caller releases the node.
func openStopped(c *cobra.Command) (*provision.StoppedNode, error) {
	dir, err := c.Flags().GetString("node")
	if err != nil {
		return nil, err
	}
	if _, err := config.Load(dir); err != nil { // before the directory gets another owner
		return nil, fail.Error{Kind: fail.Usage, Err: err}
	}
	if err := daemon.BecomeServerUser(dir); err != nil {
		return nil, err
	}
	return provision.LockStopped(c.Context(), dir)
}

func accountCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "account", Short: "Print what this stopped member knows, for coterie recover lead", Args: cli.Args(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			s, err := openStopped(c)
			if err != nil {
				return err
			}
			defer s.Release()
			a, _, err := s.Account(c.Context())
			if err != nil {
				return err
			}
			if asJSON {
				return cli.PrintJSON(c, a)
			}
			cli.Say(c, "%s", describeAccount(a))
			text, err := provision.EncodeAccount(a)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cli.Out(c), text)
			return err
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func describeAccount(a recovery.Account) string {
	if a.Founds != 0 {
		then := a
		then.Founds = 0
		return fmt.Sprintf("%s; it is to found a new quorum in epoch %d at its next start: no other member may", describeAccount(then), a.Founds)
	}
	if a.Unfit != "" {
		end := ""
		if a.Position.LSN != 0 {
			end = "; its copy ends at " + copyEnd(a)
		}
		return fmt.Sprintf("%s: promised epoch %d, saw epoch %d with state %d%s; cannot lead: %s", a.ID, a.Promised, a.Epoch, a.Seq, end, a.Unfit)
	}
	return fmt.Sprintf("%s: promised epoch %d, saw epoch %d with state %d; its copy ends at %s", a.ID, a.Promised, a.Epoch, a.Seq, copyEnd(a))
}

// copyEnd returns in words where a copy ends, and from where on nothing of it was acknowledged.
func copyEnd(a recovery.Account) string {
	if a.Unled.Timeline != 0 {
		return fmt.Sprintf("%s, and counts up to %s: the promotion after that did not come to lead", a.Position, a.Unled)
	}
	return a.Position.String()
}

func leadCommand() *cobra.Command {
	var texts, lost []string
	var ok consent
	c := &cobra.Command{
		Use: "lead", Short: "Found a new quorum on this stopped member, which leads the group from then on",
		Example: "  coterie recover lead --account account1.eyJnc… --lost n3", Args: cli.Args(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			s, err := openStopped(c)
			if err != nil {
				return err
			}
			defer s.Release()
			plan, err := s.Plan(c.Context(), texts, lost)
			if err != nil {
				return err
			}
			return recoverLead(c, s, plan, ok)
		},
	}
	c.Flags().StringArrayVar(&texts, "account", nil, "what coterie recover account printed on another member (repeat)")
	c.Flags().StringArrayVar(&lost, "lost", nil, "a member that is gone for good, and leaves the group (repeat)")
	c.Flags().BoolVar(&ok.yes, "yes", false, "do not ask")
	c.Flags().BoolVar(&ok.json, "json", false, "print JSON: node, epoch, directory, start (its command), follow, lost and ahead (members)")
	c.Flags().BoolVar(&ok.loss, "allow-data-loss", false, "lead although another member's copy goes further: what only that one has is lost")
	return c
}

// consent is what the user agreed to in advance, and whether the outcome is printed as a document.
type consent struct{ yes, loss, json bool }

// refounded is what coterie recover lead --json prints.
type refounded struct {
	Node      ag.ReplicaID   `json:"node"` // leads from its next start on
	Epoch     ag.Epoch       `json:"epoch"`
	Directory string         `json:"directory"`
	Start     string         `json:"start"`          // the command that starts it
	Follow    []ag.ReplicaID `json:"follow"`         // members on which coterie recover follow comes next
	Lost      []ag.ReplicaID `json:"lost,omitempty"` // left the group, and must never be started again as they are
	// Ahead have commits that the group has not any more: suspended until coterie replica resume.
	Ahead []ag.ReplicaID `json:"ahead,omitempty"`
}

func refoundedAs(self ag.ReplicaID, dir string, p provision.RecoveryPlan) refounded {
	r := refounded{Node: self, Epoch: p.Recovery.Epoch.Epoch, Directory: dir, Start: startCommand(dir), Follow: []ag.ReplicaID{}, Lost: p.Gone, Ahead: p.Recovery.Ahead}
	for _, m := range p.Recovery.Group.Replicas {
		if m.ID != self {
			r.Follow = append(r.Follow, m.ID)
		}
	}
	return r
}

// startCommand returns the command that starts the node of a directory.
func startCommand(dir string) string { return "coterie agent --node " + dir }

// following is what coterie recover follow --json prints.
type following struct {
	Node      ag.ReplicaID `json:"node"`
	Directory string       `json:"directory"`
	Start     string       `json:"start"` // the command that starts it
}

// recoverLead founds the new quorum on this node, after the user has confirmed the plan and its losses.
func recoverLead(c *cobra.Command, s *provision.StoppedNode, plan provision.RecoveryPlan, ok consent) error {
	if err := confirmRecovery(c, s.Group.Name, plan, ok); err != nil {
		return err
	}
	if err := s.Refound(plan.Recovery); err != nil {
		return err
	}
	if ok.json {
		return cli.PrintJSON(c, refoundedAs(s.Self, s.Layout.Dir, plan))
	}
	cli.Say(c, "%s leads epoch %d from its next start on: systemctl start coterie, or coterie agent --node %s", s.Self, plan.Recovery.Epoch.Epoch, s.Layout.Dir)
	for _, m := range plan.Recovery.Group.Replicas {
		if m.ID != s.Self {
			cli.Say(c, "then, on %s: coterie recover follow, and start its agent", m.ID)
		}
	}
	return nil
}

// confirmRecovery prints the plan. Unless ok says yes, the user must type the name of the group. A plan with which
// commits are known to be lost needs the user's word for that beside it.
func confirmRecovery(c *cobra.Command, group string, p provision.RecoveryPlan, ok consent) error {
	if err := printRecovery(c, p); err != nil {
		return err
	}
	if a, is := furthest(p); is && !ok.loss {
		if slices.Contains(p.Recovery.Apart, a.ID) {
			return wentApart(p, a)
		}
		instead := fmt.Sprintf("Run coterie recover lead on %s instead, or add --allow-data-loss", a.ID)
		if a.Unfit != "" {
			instead = fmt.Sprintf("%s cannot lead: %s. Add --allow-data-loss to go on without what only it has", a.ID, a.Unfit)
		}
		return fail.Refusedf("the copy of %s goes further than the one of %s: with %[2]s as the leader, commits that only the other has are lost; nothing was changed. %s",
			a.ID, p.Recovery.Epoch.Leader, instead)
	}
	if ok.yes {
		return nil
	}
	if !cli.Interactive(c) {
		return fail.Refusedf("commits may be lost, and two primaries are possible if a member that is called lost is not; add --yes to do it from a script")
	}
	return cli.Confirm(c, group, "\nThis is not undone. Type the group's name (%s) to go on:", group)
}

// wentApart returns the refusal of a leader beside the copy of an account, where neither is known to have all that the
// other has: the advice to take the other one would be given there as well.
func wentApart(p provision.RecoveryPlan, a recovery.Account) error {
	lead := p.Recovery.Epoch.Leader
	mine := p.Accounts[slices.IndexFunc(p.Accounts, func(m recovery.Account) bool { return m.ID == lead })]
	choose := fmt.Sprintf("If no failover was forced since they went apart, the copy on the later timeline has every acknowledged commit: that of %s. "+
		"After a forced failover, take the one that followed the last primary", lead)
	if a.Store != mine.Store {
		choose = "Two quorums were founded beside each other, and what only the one that does not lead acknowledged is lost"
	}
	return fail.Refusedf("the copies of %s (it ends at %s) and %s (%s) went apart, and each may hold commits that the other lacks; nothing was changed. %s. "+
		"To lead with %[1]s, add --allow-data-loss: the copy of %[3]s is kept as it is until coterie replica resume", lead, copyEnd(mine), a.ID, copyEnd(a), choose)
}

// furthest returns the account of the member that is ahead of the one that is to lead, and further than others; before
// those that cannot lead. is is false if none is ahead.
func furthest(p provision.RecoveryPlan) (f recovery.Account, is bool) {
	for _, a := range p.Accounts {
		if !slices.Contains(p.Recovery.Ahead, a.ID) {
			continue
		}
		if better := (a.Unfit == "") != (f.Unfit == ""); !is || better && a.Unfit == "" || !better && a.Newer(f) > 0 {
			f, is = a, true
		}
	}
	return f, is
}

// printRecovery prints the plan as a table.
func printRecovery(c *cobra.Command, p provision.RecoveryPlan) error {
	w := tabwriter.NewWriter(cli.Err(c), 0, 0, 3, ' ', 0)
	_, _ = fmt.Fprintln(w, "MEMBER\tCOPY ENDS AT\tLAST RECORD SEEN\tPROMISED\tAFTERWARDS")
	for _, a := range p.Accounts {
		at, then := copyEnd(a), "follows"
		switch {
		case slices.Contains(p.Recovery.Ahead, a.ID):
			then = "is AHEAD: suspended until coterie replica resume; what it has beyond the leader is LOST to the group"
			if slices.Contains(p.Recovery.Apart, a.ID) {
				then = "WENT APART: suspended until coterie replica resume; what it has and the leader has not is LOST to the group"
			}
		case a.Copy == "" || a.Unfit != "":
			at = "-"
		case a.ID == p.Recovery.Epoch.Leader:
			then = "leads"
		}
		cli.Linef(w, "%s\t%s\tepoch %d, state %d\tepoch %d\t%s\n", a.ID, at, a.Epoch, a.Seq, a.Promised, then)
	}
	for _, id := range p.Gone {
		cli.Linef(w, "%s\tunknown\tunknown\tunknown\tleaves the group; must never be started again as it is\n", id)
	}
	return w.Flush()
}

func followCommand() *cobra.Command {
	var giveUp, asJSON bool
	c := &cobra.Command{
		Use: "follow", Short: "Make this stopped member forget the lost quorum, and join the new one at its next start", Args: cli.Args(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			s, err := openStopped(c)
			if err != nil {
				return err
			}
			defer s.Release()
			if err := s.Follow(giveUp); err != nil {
				return err
			}
			if asJSON {
				return cli.PrintJSON(c, following{s.Self, s.Layout.Dir, startCommand(s.Layout.Dir)})
			}
			cli.Say(c, "%s has forgotten the lost quorum; start its agent: systemctl start coterie, or coterie agent --node %s", s.Self, s.Layout.Dir)
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON: node, directory and start (its command)")
	c.Flags().BoolVar(&giveUp, "give-up-lead", false, "take back coterie recover lead, which was run here before: another member leads instead")
	return c
}
