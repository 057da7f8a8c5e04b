package nodecmd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/check"
	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/cli/sqlrun"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/provision/preflight"
)

// plan is the group that the answers describe.
type plan struct {
	group        string
	level        int
	timeout      int // ms
	dbFailover   bool
	databases    []string
	replicas     []plannedReplica // the first is this node
	listener     string
	listenerPort int
}

type plannedReplica struct {
	name, host string
	mode       ag.AvailabilityMode
	failover   ag.FailoverMode
	manual     bool // the administrator brings its copy of the data
}

func (r plannedReplica) witness() bool { return r.mode == ag.ConfigurationOnly }

// wizard asks the user questions, each answered with one line. The end of the input ends it.
type wizard struct {
	in  *bufio.Scanner
	out io.Writer

	tty     bool // the answers are typed
	colours bool // out shows colours
}

var errNoAnswer = errors.New("the answers ended before the questions; nothing was made")

// ask repeats the question until accept takes the answer. An empty answer means the default.
func (w *wizard) ask(question, otherwise string, accept func(string) error) (string, error) {
	for {
		cli.Linef(w.out, "%s [%s]: ", question, otherwise)
		if !w.in.Scan() {
			return "", errors.Join(w.in.Err(), errNoAnswer)
		}
		if !w.tty {
			_, _ = fmt.Fprintln(w.out)
		}
		a := strings.TrimSpace(w.in.Text())
		if a == "" {
			a = otherwise
		}
		if a == "none" {
			a = ""
		}
		err := accept(a)
		if err == nil {
			return a, nil
		}
		cli.Linef(w.out, "  %v\n", err)
	}
}

func anything(string) error { return nil }

func oneOf(words ...string) func(string) error {
	return func(a string) error {
		if slices.Contains(words, strings.ToLower(a)) {
			return nil
		}
		return fmt.Errorf("choose one of %s", strings.Join(words, ", "))
	}
}

func inRange(least, most int) func(string) error {
	return func(a string) error {
		if n, err := strconv.Atoi(a); err != nil || n < least || n > most {
			return fmt.Errorf("a number from %d to %d", least, most)
		}
		return nil
	}
}

// page prints the heading of a page.
func (w *wizard) page(n int, title string) { cli.Linef(w.out, "\n%d. %s\n", n, title) }

// plan asks all questions and returns the plan. self is the name of this node.
func (w *wizard) plan(self string) (p plan, err error) {
	number := func(question string, otherwise, least, most int) int {
		if err != nil {
			return 0
		}
		var a string
		a, err = w.ask(question, strconv.Itoa(otherwise), inRange(least, most))
		n, _ := strconv.Atoi(a) // inRange has checked it
		return n
	}
	text := func(question, otherwise string, accept func(string) error) string {
		if err != nil {
			return ""
		}
		var a string
		a, err = w.ask(question, otherwise, accept)
		return a
	}
	w.page(1, "Name")
	p.group = text("Name of the availability group", "coterie", nonEmpty)
	w.page(2, "Health detection")
	p.level = number("FAILURE_CONDITION_LEVEL, which ills of a running primary count: 1 it is down … 5 any", ag.DefaultConditionLevel, 1, 5)
	p.timeout = number("HEALTH_CHECK_TIMEOUT in ms", int(ag.DefaultHealthTimeout/time.Millisecond), 1000, 1<<31-1)
	p.dbFailover = yes(text("DB_FAILOVER, fail over when a registered database fails (yes, no)", "yes", oneOf("yes", "no")))
	w.page(3, "Databases")
	for db := range strings.SplitSeq(text("Databases to register, with commas between; an absent one is created. The whole instance is replicated", "none", anything), ",") {
		if db = strings.TrimSpace(db); db != "" {
			p.databases = append(p.databases, db)
		}
	}
	w.page(4, "Replicas")
	p.replicas = []plannedReplica{{name: self, mode: ag.SynchronousCommit, failover: ag.Automatic}}
	cli.Linef(w.out, "%s is the first: SYNCHRONOUS_COMMIT, AUTOMATIC\n", self)
	for err == nil && len(p.replicas) < 10 {
		host := text("Host of the next node, none to end", "none", anything)
		if host == "" {
			break
		}
		p.replicas = append(p.replicas, w.replica(host, text))
	}
	w.page(5, "Listener")
	p.listener = text("Name of a listener beside the nodes' own ports", "none", anything)
	if p.listener != "" {
		p.listenerPort = number("Its port", 5432, 1, 65535)
	}
	w.page(6, "Initial data")
	manual := text("How copies come to be: automatic (seeded from the primary), manual (you bring them)", "automatic", oneOf("automatic", "manual")) == "manual"
	for i := range p.replicas {
		p.replicas[i].manual = manual && i > 0 && !p.replicas[i].witness()
	}
	return p, err
}

func nonEmpty(a string) error {
	if a == "" || len(a) > 63 {
		return errors.New("a name has 1 to 63 bytes")
	}
	return nil
}

func yes(a string) bool { return strings.EqualFold(a, "yes") }

// replica prompts for the name and the role of the node on host.
func (w *wizard) replica(host string, text func(question, otherwise string, accept func(string) error) string) plannedReplica {
	r := plannedReplica{host: host, name: sanitizeName(host), mode: ag.AsynchronousCommit, failover: ag.Manual}
	r.name = text("  its name as a node", r.name, config.CheckName)
	switch text("  it is: sync (commits wait for it), async, witness (a vote without data)", "sync", oneOf("sync", "async", "witness")) {
	case "sync":
		r.mode = ag.SynchronousCommit
		if yes(text("  may it become the primary by itself (yes, no)", "yes", oneOf("yes", "no"))) {
			r.failover = ag.Automatic
		}
	case "witness":
		r.mode = ag.ConfigurationOnly
	}
	return r
}

// statements returns the statements that make the group after all nodes have joined.
func (p plan) statements() []ddl.Statement {
	word := func(name, v string) ddl.Setting {
		return ddl.Setting{Name: name, Value: ddl.Value{Form: ddl.Word, Text: v}}
	}
	number := func(name string, v int) ddl.Setting {
		return ddl.Setting{Name: name, Value: ddl.Value{Form: ddl.Number, Text: strconv.Itoa(v)}}
	}
	create := ddl.Create{
		Databases: p.databases,
		Options: []ddl.Setting{
			number("FAILURE_CONDITION_LEVEL", p.level), number("HEALTH_CHECK_TIMEOUT", p.timeout), word("DB_FAILOVER", map[bool]string{true: "ON", false: "OFF"}[p.dbFailover]),
		},
	}
	for _, r := range p.replicas {
		x := ddl.Replica{Server: r.name, Options: []ddl.Setting{word("AVAILABILITY_MODE", string(r.mode)), word("FAILOVER_MODE", string(r.failover))}}
		if r.manual {
			x.Options = append(x.Options, word("SEEDING_MODE", "MANUAL"))
		}
		create.Replicas = append(create.Replicas, x)
	}
	if p.listener != "" {
		create.Listener = &ddl.Listener{Name: p.listener, Port: p.listenerPort}
	}
	out := []ddl.Statement{{Group: p.group, Action: create}}
	for _, r := range p.replicas[1:] {
		if !r.witness() {
			out = append(out, ddl.Statement{Group: p.group, Action: ddl.Join{Server: r.name}, NoWait: r.manual})
		}
	}
	return out
}

// script returns the statements as a file, with comments that name the commands to run before.
func (p plan) script() string {
	var b strings.Builder
	fmt.Fprintf(&b, "-- The availability group %s. First, on %s:  coterie init --no-group\n", p.group, p.replicas[0].name)
	for _, r := range p.replicas[1:] {
		verb, role := "join", ""
		if r.witness() {
			verb, role = "witness", " --role witness"
		}
		fmt.Fprintf(&b, "-- then on %s:  coterie member add-token%s  and on %s:  coterie %s TOKEN --name %s\n", p.replicas[0].name, role, r.host, verb, r.name)
	}
	fmt.Fprintf(&b, "-- then on %s:  coterie sql -f THIS_FILE\n\n", p.replicas[0].name)
	for _, s := range p.statements() {
		fmt.Fprintf(&b, "%s;\n", s)
	}
	return b.String()
}

// write writes the script to a file.
func (p plan) write(path string) error {
	if path == "" {
		return errors.New("name a file")
	}
	if err := os.WriteFile(path, []byte(p.script()), 0o644); err != nil { //nolint:gosec // statements contain no secrets
		return fmt.Errorf("%w; this runs as the server's user: name a file in a directory that it may write to", err)
	}
	return nil
}

// check applies the statements to the configuration that the group will have. A refusal is thus found before anything
// is made.
func (p plan) check() []check.Finding {
	g := ag.Group{Draft: true, Name: "none", CommitRule: ag.RuleQuorum, SessionTimeout: 10 * time.Second}
	for i, r := range p.replicas {
		x := ag.Replica{ID: ag.ReplicaID(r.name), AvailabilityMode: ag.SynchronousCommit, FailoverMode: ag.Automatic, Join: ag.Detached, Suspended: i > 0, Voter: true}
		if r.witness() {
			x.AvailabilityMode, x.FailoverMode, x.Join, x.Suspended = ag.ConfigurationOnly, ag.Manual, "", false
		}
		g.Replicas = append(g.Replicas, x)
	}
	where := ddl.Context{Self: ag.ReplicaID(p.replicas[0].name), Primary: ag.ReplicaID(p.replicas[0].name)}
	var out []check.Finding
	for _, s := range p.statements() {
		parsed, err := ddl.Parse(s.String())
		if err != nil {
			return append(out, check.Finding{Level: check.Problem, What: err.Error(), Run: "answer differently"})
		}
		next, notices, err := parsed.Change(g, where)
		if err != nil {
			return append(out, check.Finding{Level: check.Problem, What: err.Error(), Run: "answer differently"})
		}
		for _, n := range notices {
			out = append(out, check.Finding{Level: check.Warning, What: n.Message})
		}
		g = next
	}
	made := "1 statement makes the group"
	if n := len(p.statements()); n > 1 {
		made = fmt.Sprintf("%d statements make the group", n)
	}
	out = append(out, check.Finding{Level: check.OK, What: made})
	if len(p.replicas) == 2 {
		out = append(out, check.Finding{
			Level: check.Warning, What: "two nodes", Why: "they cannot tell a dead primary from a cut link: only the one that has the vote can take over", Run: "add a witness or a third replica",
		})
	}
	return out
}

// validate prints the validation page and reports whether it found no problem.
func (w *wizard) validate(ctx context.Context, dir string, p plan, ports []string) (bool, error) {
	w.page(7, "Validation")
	own, err := preflight.DescribeMachine(ctx, dir)
	if err != nil {
		return false, err
	}
	r := &check.Registry{}
	r.Add("group", 0, func(context.Context) ([]check.Finding, error) { return p.check(), nil })
	r.Add("this host", 0, func(context.Context) ([]check.Finding, error) { return preflight.JudgeMachine(own, dir), nil })
	for _, x := range p.replicas[1:] {
		r.Add(x.host, preflight.Limit, func(ctx context.Context) ([]check.Finding, error) { return preflight.Other(ctx, own, x.host, ports) })
	}
	found := r.Run(ctx)
	w.findings(found)
	return !check.Worst(found).Worse(check.Warning), nil
}

// findings prints what the validation found.
func (w *wizard) findings(found []check.Finding) {
	for _, f := range found {
		colour, off := map[check.Level]string{check.OK: "\x1b[32m", check.Warning: "\x1b[33m", check.Problem: "\x1b[31m"}[f.Level], "\x1b[0m"
		if !w.colours {
			colour, off = "", ""
		}
		cli.Linef(w.out, "  "+colour+"%-8s"+off+" %s: %s\n", f.Level, f.Area, f.What) // a value would have its colour escaped
		for _, more := range []string{f.Why, f.Run} {
			if more != "" {
				cli.Linef(w.out, "           %s\n", more)
			}
		}
	}
}

// initInteractive runs the wizard. It then makes the node and the group, or writes the script.
func initInteractive(c *cobra.Command, dir string, f *NodeFlags, profile string) error {
	if err := f.check(c.Context(), "replica", dir, ""); err != nil {
		return err
	}
	var p plan
	var made bool
	if err := makeNode(dir, func() (err error) {
		p, made, err = askAndMake(c, dir, f, profile)
		return err
	}); err != nil || !made {
		return err
	}
	return startAnd(c, dir, f.noStart, p.form)
}

// askAndMake asks for a group, and makes its first node unless it is told to do less.
func askAndMake(c *cobra.Command, dir string, f *NodeFlags, profile string) (p plan, made bool, err error) {
	w := &wizard{
		in: bufio.NewScanner(io.LimitReader(c.InOrStdin(), 64<<10)), out: c.OutOrStdout(), tty: term.IsTerminal(int(os.Stdin.Fd())), colours: cli.Colours(c.OutOrStdout()),
	}
	if p, err = w.plan(f.name); err != nil {
		return p, false, err
	}
	ports, err := f.PortNumbers()
	if err != nil {
		return p, false, err
	}
	fine, err := w.validate(c.Context(), dir, p, ports)
	if err != nil {
		return p, false, err
	}
	w.page(8, "Summary")
	_, _ = fmt.Fprintf(w.out, "%s\n", p.script())
	otherwise := "create"
	if !fine {
		otherwise = "quit"
		_, _ = fmt.Fprintln(w.out, "The validation found problems.")
	}
	what, err := w.ask("create makes it, script writes the file, quit leaves all as it is", otherwise, oneOf("create", "script", "quit"))
	if err != nil {
		return p, false, err
	}
	switch strings.ToLower(what) {
	case "quit":
		return p, false, fail.Refusedf("nothing was made")
	case "script":
		path, err := w.ask("File to write", "group.sql", p.write)
		if err != nil {
			return p, false, err
		}
		cli.Say(c, "wrote %s", path)
		return p, false, nil
	}
	if err := initNode(c, f, newGroup{dir: dir, name: p.group, profile: profile, draft: true}); err != nil {
		return p, false, err
	}
	if f.noStart {
		abs, err := filepath.Abs(dir)
		if err != nil {
			return p, true, err
		}
		path := filepath.Join(abs, "group.sql")
		if err := os.WriteFile(path, []byte(p.script()), 0o600); err != nil {
			return p, true, err
		}
		cli.Say(c, "once all nodes have joined: coterie sql --node %s -f %s", abs, path)
	}
	return p, true, nil
}

// form admits the planned nodes, waits until all have joined, and makes the group.
func (p plan) form(ctx context.Context, c *cobra.Command, abs string) error {
	l, err := config.NewLayout(abs)
	if err != nil {
		return err
	}
	cl := api.NewClient(l.AgentSock(), l.Owner())
	if err := p.await(ctx, cl, func(s api.Status) []string {
		if s.WriteOpen {
			return nil
		}
		return []string{"this node"}
	}, func([]string) {}); err != nil {
		return err
	}
	for _, r := range p.replicas[1:] {
		if err := p.admit(ctx, c, cl, r); err != nil {
			return err
		}
	}
	told := ""
	err = p.await(ctx, cl, p.missing, func(list []string) {
		if text := strings.Join(list, ", "); text != told {
			told = text
			cli.Say(c, "waiting for %s to join", text)
		}
	})
	if err != nil {
		return err
	}
	for _, s := range p.statements() {
		r, err := sqlrun.AskWithin(ctx, c, cl, s.String())
		if err != nil {
			return fmt.Errorf("%s: %w; what is left to do: %s", s.Verb(), err, p.script())
		}
		for _, n := range r.Notices {
			cli.Say(c, "%s: %s", n.Severity, n.Message)
		}
	}
	cli.Say(c, "the group %s is made: coterie status --node %s", p.group, abs)
	return nil
}

// admit prints the command with which a planned node joins.
func (p plan) admit(ctx context.Context, c *cobra.Command, cl *api.Client, r plannedReplica) error {
	role := "replica"
	if r.witness() {
		role = "witness"
	}
	t, err := cl.CreateToken(ctx, api.TokenRequest{Role: role, TTL: time.Hour})
	if err != nil {
		return err
	}
	cli.Say(c, "on %s, until %s:", r.host, t.Expires.Local().Format("15:04"))
	_, err = fmt.Fprintf(c.OutOrStdout(), "%s --name %s\n", t.Command, r.name)
	return err
}

// missing returns the planned nodes that have not joined or are not connected.
func (p plan) missing(s api.Status) []string {
	var out []string
	for _, r := range p.replicas {
		joined := slices.ContainsFunc(s.Replicas, func(x api.Replica) bool { return string(x.Name) == r.name && x.Connected == "CONNECTED" })
		if !joined {
			out = append(out, r.name)
		}
	}
	return out
}

// await polls the status until missing returns nothing. It passes every other result to tell.
func (p plan) await(ctx context.Context, cl *api.Client, missing func(api.Status) []string, tell func([]string)) error {
	return retry.Until(ctx, 300*time.Millisecond, func() (bool, error) {
		s, err := cl.Status(ctx)
		if err != nil {
			return false, nil //nolint:nilerr // the agent may be starting
		}
		list := missing(s)
		if len(list) > 0 {
			tell(list)
		}
		return len(list) == 0, nil
	})
}
