package upgradecmd

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/ag/major"
	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/lib/units"
	"github.com/coteriedb/coterie/internal/node/majors"
)

// The pauses between two looks, and between two lines about a wait; and how long this command waits, which ends nothing
// but the waiting.
const (
	lookAgain = 200 * time.Millisecond
	sayAgain  = 5 * time.Second
	makeLimit = 24 * time.Hour
	copyLimit = 24 * time.Hour
)

// finish waits until this node's agent has taken its steps, and has the other replicas follow.
func (x *upgrading) finish(plan *api.MajorPlan) error {
	u, err := x.await()
	if err != nil {
		return err
	}
	if !x.began.IsZero() && u.Asked.Equal(x.was) { // the answer was lost
		return fail.Unhealthyf("the agent ended before it had begun; the group goes on as before. Run this again, or end the maintenance, if it has any: coterie maintenance off")
	}
	out := outcome{Plan: plan, State: stateOf(u), Followed: []ag.ReplicaID{}, Remaining: remaining(u)}
	if u.Phase == major.GivenUp && u.Back {
		return fail.Unhealthyf("the way back was given up, and the group goes on with PostgreSQL %s: %s", u.From.Version, u.Why)
	}
	if u.Phase == major.GivenUp {
		return fail.Unhealthyf("the upgrade was given up, and the group goes on with PostgreSQL %s: %s", u.From.Version, u.Why)
	}
	if x.onlyLeader {
		out.Remaining = append([]string{fmt.Sprintf("the other replicas follow: coterie upgrade major --to %d", u.To.Major)}, out.Remaining...)
	} else if out.Followed, err = x.follow(u); err != nil {
		return err
	}
	if err := x.opens(u); err != nil {
		return err
	}
	if u.Mode != major.Green {
		out.Outage = x.outage
	}
	if x.asJSON {
		return cli.PrintJSON(x.c, out)
	}
	for _, r := range out.Remaining {
		cli.Say(x.c, "remains: %s", r)
	}
	return nil
}

// await waits until the upgrade on this node is over and its agent answers.
func (x *upgrading) await() (u major.Upgrade, err error) {
	ctx, cancel := context.WithTimeout(x.c.Context(), makeLimit)
	defer cancel()
	began, said, phase := time.Now(), time.Now(), major.Phase("")
	for {
		if u, err = majors.Read(x.layout); err != nil {
			return u, err
		}
		s, asked := x.cl.Status(ctx)
		if !underWay(u) && asked == nil && s.Primary != "" {
			return u, nil
		}
		if u.Phase != phase || time.Since(said) > sayAgain {
			said, phase = time.Now(), u.Phase
			cli.Say(x.c, "%s%s … %v%s", phase, copied(u), time.Since(began).Round(time.Second), x.agentless(u, asked))
		}
		if retry.Sleep(ctx, lookAgain) != nil {
			return u, fail.Unhealthyf("%s while the upgrade is %s; it goes on in the node without this command: see coterie upgrade major --status, and log/agent.log", x.ended(time.Since(began)), u.Phase)
		}
	}
}

// ended returns why this command waits no longer.
func (x *upgrading) ended(waited time.Duration) string {
	if x.c.Context().Err() != nil {
		return fmt.Sprintf("this command was ended by a signal after %v,", waited.Round(time.Second))
	}
	return fmt.Sprintf("this command waits no longer than %v,", makeLimit)
}

// copied returns the progress of a new cluster that is filled by logical replication, in brackets.
func copied(u major.Upgrade) string {
	switch {
	case u.Phase != major.Copying:
		return ""
	case u.Tries > 0:
		return fmt.Sprintf(" (try %d to pass: %s)", u.Tries, u.Why)
	case u.Progress != "":
		return " (" + u.Progress + ")"
	}
	return ""
}

// agentless names what is to be done where no agent goes on with the upgrade. While one takes the steps, it holds the
// lock of the node and does not answer yet.
func (x *upgrading) agentless(u major.Upgrade, asked error) string {
	if asked == nil || !underWay(u) {
		return ""
	}
	if x.idle() {
		return fmt.Sprintf("; no agent runs: start it, and it goes on: coterie agent --node %s", x.layout.Dir)
	}
	return ""
}

// follow has the other replicas follow, one after the other.
func (x *upgrading) follow(u major.Upgrade) (done []ag.ReplicaID, err error) {
	done = []ag.ReplicaID{}
	s, err := x.cl.Status(x.c.Context())
	if err != nil {
		return done, cli.NoAgent(x.c, err)
	}
	if s.Primary != u.Self {
		return done, fail.Refusedf("%s is not the primary (%s is); run this there: the replicas follow the primary", u.Self, s.Primary)
	}
	// Those that commits wait for come first: the primary may not take writes without them.
	slices.SortStableFunc(s.Replicas, func(a, b api.Replica) int { return rank(a) - rank(b) })
	for _, r := range s.Replicas {
		if r.Name == u.Self || r.Mode == ag.ConfigurationOnly {
			continue
		}
		if err := x.one(r.Name, u); err != nil {
			return done, fmt.Errorf("%w; run coterie upgrade major --to %d again: it goes on with %s", err, u.To.Major, r.Name)
		}
		done = append(done, r.Name)
	}
	return done, nil
}

// one has one replica follow, and waits until it is as well as it can be.
func (x *upgrading) one(id ag.ReplicaID, u major.Upgrade) error {
	ctx, cancel := context.WithTimeout(x.c.Context(), copyLimit)
	defer cancel()
	began, said, asked, good, told := time.Now(), time.Time{}, time.Time{}, 0, false
	for good < 8 { // what this node knows of another may be a second old
		s, err := x.cl.Status(ctx)
		i := slices.IndexFunc(s.Replicas, func(m api.Replica) bool { return m.Name == id })
		x.open(s, u)
		switch {
		case err != nil || i < 0:
			good = 0
		case (s.Replicas[i].Data == ag.DataForeign || !told && astray(s.Replicas[i])) && time.Since(asked) > sayAgain:
			asked, good = time.Now(), 0
			if _, err := x.cl.Major(ctx, api.MajorRequest{Act: api.MajorFollow, To: u.To.Major, BinDir: x.req.BinDir, Replica: id}); fail.KindOf(err) == fail.Usage {
				return err
			} else if fail.KindOf(err) == fail.Refused && s.Replicas[i].Data == ag.DataPresent {
				told = true // its programs are those of the new version, and it needs time only
			} else if err != nil {
				cli.Say(x.c, "%s: %v; asking again", id, err)
			} else {
				told = true
				cli.Say(x.c, "%s follows", id)
			}
		case s.Replicas[i].Data == ag.DataPresent && well(s.Replicas[i]):
			good++
		default:
			good = 0
		}
		if i >= 0 && good == 0 && time.Since(said) > sayAgain {
			said = time.Now()
			m := s.Replicas[i]
			cli.Say(x.c, "waiting for %s … %v (%s %s)", id, time.Since(began).Round(time.Second), m.Sync, m.Progress)
		}
		if retry.Sleep(ctx, lookAgain) != nil {
			return fail.Unhealthyf("%s while %s has no copy of the cluster of PostgreSQL %d yet; the copy goes on in the nodes", x.ended(time.Since(began)), id, u.To.Major)
		}
	}
	cli.Say(x.c, "%s has a copy of the cluster of PostgreSQL %d after %v", id, u.To.Major, time.Since(began).Round(100*time.Millisecond))
	return nil
}

func rank(r api.Replica) int {
	if r.Mode == ag.SynchronousCommit {
		return 0
	}
	return 1
}

// open notes and tells when the primary takes writes again.
func (x *upgrading) open(s api.Status, u major.Upgrade) bool {
	if s.WriteOpen && s.Primary == u.Self && x.outage == 0 && !x.began.IsZero() {
		if x.outage = time.Since(x.began); u.Mode == major.Green {
			cli.Say(x.c, "PostgreSQL %s takes writes on %s", u.To.Version, u.Self)
			return true
		}
		cli.Say(x.c, "PostgreSQL %s takes writes on %s, %v after the upgrade was asked for", u.To.Version, u.Self, x.outage.Round(100*time.Millisecond))
	}
	return s.WriteOpen
}

// openLimit is how long a primary may take to open that every replica follows.
const openLimit = 2 * time.Minute

// opens waits until the primary takes writes.
func (x *upgrading) opens(u major.Upgrade) error {
	ctx, cancel := context.WithTimeout(x.c.Context(), openLimit)
	defer cancel()
	for {
		if s, err := x.cl.Status(ctx); err == nil && x.open(s, u) {
			return nil
		}
		if retry.Sleep(ctx, lookAgain) != nil {
			return fail.Unhealthyf("%s runs PostgreSQL %s, and takes no writes after %v; see coterie status", u.Self, u.To.Version, openLimit)
		}
	}
}

// astray reports whether a replica may need other programs: somebody has removed its data directory, and there may be
// a copy of the new cluster in it already, which the programs of the old version cannot start.
func astray(r api.Replica) bool {
	return r.Data == ag.DataEmpty || r.Data == ag.DataPresent && !well(r)
}

func well(r api.Replica) bool {
	return r.Sync == ag.Synchronized || r.Mode != ag.SynchronousCommit && r.Sync == ag.Synchronizing
}

// back gives an upgrade up that is under way, or asks for the way back from one that is done.
func (x *upgrading) back(u major.Upgrade) error {
	if u.Phase != major.Done && underWay(u) {
		if err := os.WriteFile(x.layout.MajorStop(), nil, 0o600); err != nil {
			return fmt.Errorf("give the upgrade up: %w", err)
		}
		cli.Say(x.c, "giving the upgrade up (%s)", u.Phase)
		now, err := x.await()
		switch {
		case err != nil:
			return err
		case now.Phase == major.GivenUp:
			cli.Say(x.c, "given up: the group goes on with PostgreSQL %s", now.From.Version)
			return x.show(now)
		}
		return fail.Refusedf("it was too late: the group has passed to PostgreSQL %s; the way back from there loses what is written since: coterie upgrade major --rollback --allow-data-loss", now.To.Version)
	}
	s, err := x.cl.Status(x.c.Context())
	if err != nil {
		return cli.NoAgent(x.c, err)
	}
	if x.req.AllowDataLoss && !x.yes && cli.Interactive(x.c) {
		if err := cli.Confirm(x.c, s.Group, "Everything that was written since %s is lost. Type the name of the group to go on:", u.Asked.Local().Format(time.DateTime)); err != nil {
			return err
		}
	}
	req := x.req
	req.Act = api.MajorBack
	x.began = time.Now()
	_, err = x.cl.Major(x.c.Context(), req)
	if err := x.answered(err); err != nil {
		return err
	}
	if u.Return == nil || !u.Return.Open {
		return x.finish(nil)
	}
	now, err := x.await()
	switch {
	case err != nil:
		return err
	case now.Phase == major.Done && !now.Back && now.Return != nil:
		return fail.Refusedf("the group has not passed back, and goes on with PostgreSQL %s: %s", now.To.Version, now.Return.Why)
	}
	return x.finish(nil)
}

// endReturn ends the way back that loses nothing.
func (x *upgrading) endReturn() error {
	if _, err := x.cl.Major(x.c.Context(), api.MajorRequest{Act: api.MajorEnd}); err != nil {
		return cli.NoAgent(x.c, err)
	}
	u, err := x.await()
	if err != nil {
		return err
	}
	return x.show(u)
}

// show prints the state of the upgrade on this node.
func (x *upgrading) show(u major.Upgrade) error {
	if x.asJSON {
		return cli.PrintJSON(x.c, outcome{State: stateOf(u), Followed: []ag.ReplicaID{}, Remaining: remaining(u)})
	}
	w := cli.Out(x.c)
	if u.Phase == "" {
		_, _ = fmt.Fprintln(w, "no major upgrade was begun on this node")
		return nil
	}
	s := stateOf(u)
	if dir := majors.Left(x.layout, u); dir != "" {
		s.Next = "the group goes on with the old cluster, but " + dir + " of the new one could not be removed: see log/agent.log for the reason; the next start of the agent tries again"
	}
	cli.Linef(w, "%s   from PostgreSQL %s to %s, asked for %s\n", s.Phase, s.From, s.To, s.Asked.Local().Format(time.DateTime))
	if s.Phase == major.Copying && s.Progress != "" {
		cli.Linef(w, "%s\n", s.Progress)
	}
	if s.Why != "" {
		cli.Linef(w, "because %s\n", s.Why)
	}
	if line := returns(u); line != "" {
		_, _ = fmt.Fprintln(w, line)
	}
	if underWay(u) && x.idle() {
		s.Next = "no agent runs: start it, and it goes on: coterie agent --node " + x.layout.Dir
	}
	cli.Linef(w, "%s\n", s.Next)
	return nil
}

// returns describes the way back that loses nothing; "": there was to be none.
func returns(u major.Upgrade) string {
	r := u.Return
	switch {
	case r == nil || u.Phase != major.Done || r.Within == 0:
		return ""
	case !r.Open:
		return "the old cluster follows no more: " + cmp.Or(r.Why, "it is not known why")
	case r.Asked:
		return "the group is about to pass back to PostgreSQL " + u.From.Version + "; " + r.Progress
	}
	text := fmt.Sprintf("way back with every row until %s: coterie upgrade major --rollback; %s", r.Until.Local().Format(time.DateTime), cmp.Or(r.Progress, "the old cluster is about to follow"))
	if r.Why != "" {
		text += "; the group did not pass back when that was asked for: " + r.Why
	}
	return text
}

func stateOf(u major.Upgrade) *state {
	s := &state{Phase: u.Phase, From: u.From.Version, To: u.To.Version, Mode: u.Mode, Back: u.Back, Asked: u.Asked, Why: u.Why, Stage: u.Stage, Progress: u.Progress, Return: u.Return}
	switch {
	case u.Phase == "":
		return nil
	case u.Phase == major.Asked:
		s.Next = "pg_upgrade makes the new cluster, or is about to; nothing has changed for the group: coterie upgrade major --rollback gives it up"
	case u.Phase == major.Copying:
		s.Next = "the new cluster is filled while the old one serves, and the group passes to it by itself: coterie upgrade major --rollback gives it up"
	case u.Phase == major.Made:
		s.Next = "the new cluster is made, and the group is about to pass to it"
	case u.Phase == major.Passed:
		s.Next = "the group has passed to the new cluster, and this node is about to start it"
	case u.Phase == major.Following:
		s.Next = "this node is about to drop its copy of the old cluster for one of the new"
	case u.Phase == major.GivenUp:
		s.Next = "the group goes on with the old cluster; nothing remains to be done"
	case u.To.SystemID == "" || u.Back:
		s.Next = "nothing remains to be done on this node"
	default:
		s.Next = fmt.Sprintf("the other replicas follow by coterie upgrade major --to %d, if they have not", u.To.Major)
	}
	return s
}

// remaining lists what is left to a person.
func remaining(u major.Upgrade) []string {
	list := []string{}
	if u.Phase != major.Done || u.To.SystemID == "" {
		return list
	}
	if u.Archive {
		list = append(list, fmt.Sprintf("the archive, which takes no WAL until then: on the primary coterie backup enable, then coterie backup run --type full, which names the replica to run it on; "+
			"if %s is not the primary any more, coterie backup enable there as well, as its configuration of the tool names %s", u.Self, u.From.Data))
	}
	if !u.Back && u.Mode != major.Green {
		list = append(list, fmt.Sprintf("the planner's statistics, as pg_upgrade does not take all of them along: %s --all --analyze-in-stages, with a connection to the group", filepath.Join(u.To.BinDir, "vacuumdb")))
	}
	if _, err := os.Lstat(u.From.Data); err == nil {
		why := "it is the way back"
		if u.Whole {
			why = "nobody needs it for a way back"
		} else if u.Back {
			why = "it has what was written since the upgrade"
		} else if u.Return != nil && u.Return.Open {
			why = fmt.Sprintf("it follows the new one until %s, and coterie upgrade major --finish ends that first", u.Return.Until.Local().Format(time.DateTime))
		} else if u.Mode == major.Link {
			why = "its files are those of the new cluster, by hard links, and removing them frees nothing else"
		}
		if u.From.WAL != "" {
			why += "; its WAL is in " + u.From.WAL
		}
		list = append(list, fmt.Sprintf("the old data directory %s: remove it when it is not needed any more (%s)", u.From.Data, why))
	}
	return list
}

// print prints a plan.
func (x *upgrading) print(p api.MajorPlan) {
	w := cli.Out(x.c)
	cli.Linef(w, "from   PostgreSQL %s in %s, %s of data\n", p.From.Version, p.From.Data, units.Bytes(p.Size))
	cli.Linef(w, "to     PostgreSQL %s in %s, by %s, %s free\n", cmp.Or(p.To.Version, fmt.Sprint(p.To.Major)), p.To.Data, p.Mode, units.Bytes(p.Free))
	cli.Linef(w, "outage about %v without writes, more with very many tables\n", p.Outage.Round(time.Second))
	for i, s := range p.Steps {
		cli.Linef(w, "%d. %s\n", i+1, s)
	}
	for _, n := range p.Notes {
		cli.Linef(w, "note: %s\n", n)
	}
	for _, o := range p.Obstacles {
		cli.Linef(w, "obstacle: %s\n", o)
	}
}

// idle reports whether no agent holds this node, so that none takes the steps. The lock is only looked at: an agent
// that begins at the same moment must get it.
func (x *upgrading) idle() bool {
	st, err := os.Stat(filepath.Join(x.layout.State(), "agent.lock"))
	if err != nil {
		return true
	}
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		return false // not known
	}
	inode := fmt.Sprintf(":%d ", st.Sys().(*syscall.Stat_t).Ino)
	for line := range strings.Lines(string(locks)) {
		if strings.Contains(line, " FLOCK ") && strings.Contains(line, inode) {
			return false
		}
	}
	return true
}
