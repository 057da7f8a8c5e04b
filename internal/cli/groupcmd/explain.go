package groupcmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent/decisions"
	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// Explain returns the command explain, which prints the decisions behind changes of leadership.
func Explain() *cobra.Command {
	var asJSON, all, last bool
	var epoch uint64
	var verbose int
	c := &cobra.Command{
		Use: "explain", GroupID: "group", Short: "Explain the last failover, or why none happened", Args: cli.Args(0, "no arguments"),
		Long: `Says why the leadership changed hands the last time, in a few lines, what would happen if the primary failed now, and what the death of
each member would lead to. It asks every member in reach, and names those that did not answer. Where this node's agent does not run, it
reads what that left on disk, without the other members.

-v adds every step with its rule, -vv also what each node saw when it decided. The order of the steps is that of the group's record: by
epoch, then by revision. Times are of each node's own clock; clocks of two nodes are never compared.

Of what a node saw: "counted [a b] k=1" says that each acknowledged commit is on at least 1 of a and b, "sealed at" how far the copy of a
member goes that has promised to take nothing more of the old epoch, "answering" who of the others answered this node, "leader's last
sign" how long ago the leader last renewed its right to lead.`,
		Example: "  coterie explain\n  coterie explain -v\n  coterie explain --epoch 7\n  coterie explain --all --json",
		RunE: func(c *cobra.Command, _ []string) error {
			e, err := explain(c)
			if err != nil {
				return err
			}
			if !e.Pick(ag.Epoch(epoch)) {
				if len(e.Missing) == 0 {
					return fail.Usagef("no member remembers a change of leadership to epoch %d; known are: %s", epoch, epochsOf(e.Changes))
				}
				return fail.Unhealthyf("no member that answers remembers a change of leadership to epoch %d; known are: %s", epoch, epochsOf(e.Changes))
			}
			if !all {
				e.Decisions = nil
			}
			if asJSON {
				return cli.PrintJSON(c, e)
			}
			return printExplanation(cli.Out(c), e, detail{steps: verbose > 0, views: verbose > 1, all: all})
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON, with the view each decision saw")
	c.Flags().BoolVar(&all, "all", false, "every decision that is remembered")
	c.Flags().CountVarP(&verbose, "verbose", "v", "every step with its rule; twice: also what each node saw")
	c.Flags().BoolVar(&last, "last-failover", true, "the last failover (this is what it does anyway)")
	_ = c.Flags().MarkHidden("last-failover") // scripts have it
	c.Flags().Uint64Var(&epoch, "epoch", 0, "the change of leadership that began this epoch")
	return c
}

func epochsOf(changes []decisions.Change) string {
	var s []string
	for _, c := range changes {
		s = append(s, fmt.Sprint(c.Epoch))
	}
	if len(s) == 0 {
		return "none"
	}
	return strings.Join(s, ", ")
}

// explain asks the agent. If no agent runs, it reads the decisions on disk.
func explain(c *cobra.Command) (*decisions.Explanation, error) {
	cl, err := cli.Client(c)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(c.Context(), 2*decisions.ReportWait)
	defer cancel()
	e := &decisions.Explanation{}
	raw, err := cl.Explain(ctx)
	if err == nil {
		return e, json.Unmarshal(raw, e)
	}
	dir := cli.Node(c)
	l, lerr := config.NewLayout(dir)
	if lerr != nil {
		return nil, err
	}
	ds, rerr := decisions.Read(l.State())
	if rerr != nil || len(ds) == 0 {
		return nil, errors.Join(cli.NoAgent(c, err), rerr)
	}
	self := ds[len(ds)-1].Node
	cli.Say(c, "no agent runs %s; this is what it left on disk, without the other members", l.Dir)
	e.Node, e.Missing = self, map[ag.ReplicaID]string{}
	e.Tell(map[ag.ReplicaID]decisions.Report{self: {Decisions: ds}})
	return e, nil
}

// detail is how much of an explanation is printed.
type detail struct {
	steps bool // each decision, with its rule
	views bool // with what its node saw
	all   bool // every decision that is remembered
}

func printExplanation(w io.Writer, e *decisions.Explanation, how detail) error {
	switch {
	case e.Last == nil && len(e.Changes) == 0:
		_, _ = fmt.Fprintln(w, "No change of leadership is remembered.")
	case e.Last != nil:
		printChange(w, *e.Last, how)
	}
	printSince(w, e)
	if len(e.Missing) > 0 && len(e.Missing) >= len(e.Asked) {
		cli.Linef(w, "\nThose who do not answer %s may have changed the leadership since: ask another node, too.\n", e.Node)
	}
	for _, id := range slices.Sorted(maps.Keys(e.Missing)) {
		why := reason(e.Missing[id])
		said := "did not answer"
		if strings.HasSuffix(why, "is not a member of this group") { // it answered, and knows this node no more
			said = "does not tell this node"
		}
		cli.Linef(w, "\n%s %s, so what it decided is not in this: %s\n", id, said, why)
	}
	printForecast(w, e)
	if err := printDeaths(w, e.Failures); err != nil {
		return err
	}
	switch {
	case how.all:
		_, _ = fmt.Fprintln(w, "\nEvery decision that is remembered:")
		return printSteps(w, e.Decisions, how)
	case e.Last != nil && !how.steps:
		_, _ = fmt.Fprintln(w, "\nEvery step: coterie explain -v; with what each node saw: -vv")
	}
	return nil
}

// printSince prints how often the primary has taken its own leadership again since the change that was told.
func printSince(w io.Writer, e *decisions.Explanation) {
	if e.Last == nil {
		return
	}
	last, times := decisions.Change{}, 0
	for _, c := range e.Changes {
		switch {
		case c.Epoch > e.Last.Epoch && c.From != c.To:
			return // an earlier change was asked for
		case c.Epoch > e.Last.Epoch:
			last, times = c, times+1
		}
	}
	if times > 0 {
		cli.Linef(w, "\n%s has taken its own leadership again since (%d×), at last in epoch %d: %s\n  coterie explain --epoch %[3]d\n", last.To, times, last.Epoch, last.Reason)
	}
}

// lastWords are the rules by which a primary ends its own leadership.
var lastWords = []ag.Rule{
	ag.RuleStepDown, ag.RuleRelease, ag.RuleFenceDeposed, ag.RuleFenceExpired, ag.RuleFenceForeign, ag.RuleRestart, ag.RuleQuarantined,
}

func printChange(w io.Writer, c decisions.Change, how detail) {
	kind := "Failover"
	switch {
	case c.From == c.To:
		kind = "Restart of the primary"
	case c.Forced:
		kind = "FORCED failover"
	case strings.HasPrefix(c.Reason, "planned"):
		kind = "Planned failover"
	}
	cli.Linef(w, "%s: %s -> %s, epoch %d -> %d\n", kind, c.From, c.To, c.Before, c.Epoch)
	cli.Linef(w, "  why      %s\n", c.Reason)
	for _, d := range story(c) {
		cli.Linef(w, "  %-8s %s %s: %s\n", d.Node, d.At.Local().Format("15:04:05.000"), d.Meaning(), d.Because)
	}
	if took := took(c); took != "" {
		cli.Linef(w, "  took     %s\n", took)
	}
	if how.steps {
		_, _ = fmt.Fprintln(w, "\nStep by step, in the order of the group's record:")
		_ = printSteps(w, c.Decision, how)
	}
}

// story returns the decisions that tell a change in short: the last one of the old primary, which caused the others,
// the first by which another member acted, the choice of the copy, and the one by which the new primary led.
func story(c decisions.Change) []decisions.Decision {
	var told []decisions.Decision
	first := func(chosen func(decisions.Decision) bool) {
		if i := slices.IndexFunc(c.Decision, chosen); i >= 0 {
			told = append(told, c.Decision[i])
		}
	}
	for _, d := range c.Decision {
		if d.Node == c.From && d.Epoch == c.Before && slices.Contains(lastWords, d.Rule) {
			told = append(told, d)
		}
	}
	first(func(d decisions.Decision) bool { return slices.Contains(firstActs, d.Rule) })
	first(func(d decisions.Decision) bool { return d.Rule == ag.RuleChoose && d.Epoch == c.Epoch })
	first(func(d decisions.Decision) bool { return d.Rule == ag.RuleLead && d.Epoch == c.Epoch && d.Node == c.To })
	return told
}

// firstActs are the rules by which a member begins a change of leadership.
var firstActs = []ag.Rule{ag.RuleClaim, ag.RuleRetake, ag.RuleForce, ag.RuleHandOver}

func printSteps(w io.Writer, ds []decisions.Decision, how detail) error {
	t := tabwriter.NewWriter(w, 2, 8, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, "  EPOCH\tREV\tNODE\tITS CLOCK\tRULE\tWHAT IT DID, AND WHY")
	for _, d := range ds {
		cli.Linef(t, "  %d\t%d\t%s\t%s\t%s\t%s: %s\n", d.Epoch, d.Revision(), d.Node, d.At.Local().Format("15:04:05.000"), d.Rule, d.Meaning(), d.Because)
		if how.views {
			cli.Linef(t, "  \t\t\t\t\t  saw %s\n", saw(d.View))
		}
	}
	return t.Flush()
}

// took returns the duration of a failover on the clock of the new primary: from its first decision about it, which is
// named, to the open gate. A primary that leads again began with the end of its own server.
func took(c decisions.Change) string {
	var began, led, opened time.Time
	var step ag.Rule
	for _, d := range c.Decision {
		if d.Node != c.To {
			continue
		}
		switch {
		case c.From == c.To && d.Epoch == c.Before && slices.Contains(lastWords, d.Rule):
			began, step = d.At, d.Rule
		case began.IsZero() && d.Epoch >= c.Before && (d.Rule == ag.RuleClaim || d.Rule == ag.RuleRetake || d.Rule == ag.RulePromote || d.Rule == ag.RuleForce || d.Rule == ag.RuleOutbid):
			began, step = d.At, d.Rule
		case d.Rule == ag.RuleLead && d.Epoch == c.Epoch:
			led = d.At
		case d.Open && d.Epoch == c.Epoch && opened.IsZero():
			opened = d.At
		}
	}
	if began.IsZero() || led.IsZero() {
		return ""
	}
	s := fmt.Sprintf("%v from the first step of %s (%s) until it led", led.Sub(began).Round(time.Millisecond), c.To, step)
	if !opened.IsZero() {
		s += fmt.Sprintf(", %v until it took writes", opened.Sub(began).Round(time.Millisecond))
	}
	return s + " (by " + string(c.To) + "'s clock)"
}

// saw returns a view as one line.
func saw(v ag.View) string {
	s := []string{fmt.Sprintf("server %s at %s", v.Local.Server, v.Local.Position)}
	if !v.Quorum {
		s = append(s, "no quorum")
	}
	if v.Record.Epoch.Leader != v.Self {
		s = append(s, fmt.Sprintf("leader's last sign %v ago", v.Silence.Round(10*time.Millisecond)))
	}
	var counted []string
	for _, m := range v.Record.State.V {
		counted = append(counted, string(m.ID))
	}
	s = append(s, fmt.Sprintf("counted [%s] k=%d", strings.Join(counted, " "), v.Record.State.K), fmt.Sprintf("answering %v", v.Reach))
	for _, x := range v.Seals {
		s = append(s, fmt.Sprintf("%s sealed at %s", x.Member, x.Position))
	}
	if why := v.Group.Options.Illness(v.Local.Health); why != "" {
		s = append(s, "ill: "+why)
	}
	return strings.Join(s, "; ")
}

// reason returns the last cause of a call that failed, in words for people.
func reason(text string) string {
	if i := strings.LastIndex(text, ": "); i >= 0 {
		text = text[i+2:]
	}
	if text == context.DeadlineExceeded.Error() {
		return "no answer in time"
	}
	return text
}

// printForecast prints what each node would do. A node's own conditions do not include its need of others, such as a
// majority of the votes: NotReady is the judgement of that.
func printForecast(w io.Writer, e *decisions.Explanation) {
	switch {
	case len(e.Now) == 0 && e.NoPrimary != "":
		cli.Linef(w, "\nWhat happens next is not known here: %s. Run coterie explain on another member.\n", e.NoPrimary)
		return
	case len(e.Now) == 0:
		return
	case e.NoPrimary == "":
		_, _ = fmt.Fprintln(w, "\nIf the primary failed now:")
		if e.NotReady != "" {
			cli.Linef(w, "  automatic failover is not ready: %s\n", e.NotReady)
		}
	case strings.HasSuffix(e.NotReady, "takes over now"):
		cli.Linef(w, "\nNo primary leads now: %s. %s.\n", e.NoPrimary, e.NotReady)
	default:
		cli.Linef(w, "\nNo primary leads now: %s.\n  nobody takes over without a person: %s\n", e.NoPrimary, e.NotReady)
	}
	several := ableToLead(e.Now) > 1
	for _, o := range e.Now {
		not := lacks(o)
		switch {
		case o.Leads && len(not) == 0:
			cli.Linef(w, "  %s leads\n", o.Node)
		case o.Leads:
			cli.Linef(w, "  %s leads, but not for long: %s\n", o.Node, strings.Join(not, "; "))
		case len(not) == 0 && e.NotReady != "":
			cli.Linef(w, "  %s itself could take over\n", o.Node)
		case len(not) == 0 && several:
			cli.Linef(w, "  %s could take over\n", o.Node)
		case len(not) == 0:
			cli.Linef(w, "  %s would take over\n", o.Node)
		default:
			cli.Linef(w, "  %s would not take over: %s\n", o.Node, strings.Join(not, "; "))
		}
	}
}

// lacks returns the conditions of a leadership that do not hold for a node, as sentences.
func lacks(o decisions.Forecast) (not []string) {
	for i, c := range o.Checks {
		if !c.Holds && (o.Leads || i != 2) { // a forecast is about the time after the leader's death, so a living leader is not an obstacle
			not = append(not, contrary(c))
		}
	}
	return not
}

// ableToLead returns how many nodes that do not lead could take over.
func ableToLead(all []decisions.Forecast) (n int) {
	for _, o := range all {
		if !o.Leads && len(lacks(o)) == 0 {
			n++
		}
	}
	return n
}

// contraries are the conditions of a leadership as sentences for the case that they do not hold.
var contraries = map[string]string{
	"a majority of the quorum answers":                                             "no majority of the quorum answers it",
	"somebody else leads":                                                          "no other replica leads",
	"the leader is silent, has released, or was seen to die":                       "the leader is not silent",
	"commits are on at least one secondary (k ≥ 1)":                                "commits wait for no secondary, so it may lack some",
	"this copy is one of those that are counted":                                   "commits do not wait for its copy",
	"this copy is sound":                                                           "its copy is not sound",
	"this replica may lead by itself":                                              "it may not take over without a person",
	"enough members answer to seal the epoch":                                      "too few members answer it",
	"it is well, or nobody else came forward":                                      "it is ill, and leaves the leadership to others",
	"automatic failover is not switched off":                                       "automatic failover is switched off",
	"the record names it, in this epoch":                                           "the record names another leadership",
	"its lease holds":                                                              "its lease has ended",
	"its server is writable":                                                       "its server does not take writes",
	"nobody changed reserved settings behind it":                                   "reserved settings of its server were changed",
	"it is well, or nobody could take over":                                        "it is ill, and another replica could take over",
	"it did not itself give up the leadership lately, or nobody else came forward": "it gave up the leadership lately, and leaves it to others",
}

// contrary returns a condition that does not hold as a sentence, with what was seen if that says more.
func contrary(c ag.Check) string {
	s, ok := contraries[c.Condition]
	switch {
	case !ok:
		s = "this is not so: " + c.Condition
	case c.Seen == "it does not":
		return s
	}
	return fmt.Sprintf("%s (%s)", s, c.Seen)
}
