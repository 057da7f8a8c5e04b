package groupcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/lib/units"
	"github.com/coteriedb/coterie/internal/postgres/seeding"
	"github.com/coteriedb/coterie/internal/postgres/seeding/pagesum"
	"github.com/coteriedb/coterie/internal/postgres/seeding/progress"
)

// seedFlags are the flags of coterie replica seed.
type seedFlags struct {
	req                 api.SeedRequest
	watch, cancel, json bool
}

// Seed returns the command seed.
func Seed() *cobra.Command {
	var o seedFlags
	c := &cobra.Command{
		Use: "seed NAME", Short: "Copy the data to a replica, watch it, verify a copy, or mend one",
		Long: `A replica whose copy is missing or cannot be brought back is seeded by itself. This command asks for it where that does not happen
(SEEDING_MODE = MANUAL, a cancelled seeding), and shows how far it is.

--watch shows progress until the end: bytes of files, bytes on the wire, their ratio, the rate, and what is left.
--verify reads every page of the running server there, and reports those whose checksum is wrong. Nothing is changed. Exit code 3 if
there are any.
--full mends a copy that is whole but damaged or doubted: the replica is dropped from the synchronized set, its server stops, every byte
is compared with the source by hash, and only what differs travels.
--from begins with another copy of the same cluster, in a directory on the replica's machine: a restored backup, a mounted snapshot. It
is only read; what is right in it does not travel.
--cancel ends what is under way. The part that has arrived stays, and counts when the copy is asked for again. Nobody begins it until then.

Copies under way and those before: SELECT * FROM sys.dm_hadr_automatic_seeding, and for its progress sys.dm_hadr_physical_seeding_stats.`,
		Example: "  coterie replica seed n3 --watch\n  coterie replica seed n3 --verify\n  coterie replica seed n3 --full --watch\n  coterie replica seed n3 --from /mnt/restored/pgdata --watch\n  coterie replica seed n3 --cancel",
		Args:    cli.OneReplica("the replica's name"),
		RunE: func(c *cobra.Command, a []string) error {
			cl, err := cli.Client(c)
			if err != nil {
				return err
			}
			o.req.Replica = ag.ReplicaID(cli.MemberName(a[0]))
			return o.run(c, cl)
		},
	}
	f := c.Flags()
	f.BoolVar(&o.watch, "watch", false, "show progress until the end; attaches to what is under way")
	f.BoolVar(&o.req.Verify, "verify", false, "read the checksums of every page there and report; changes nothing")
	f.BoolVar(&o.req.Full, "full", false, "replace what differs in a copy that is whole")
	f.StringVar(&o.req.From, "from", "", "a data directory on the replica's machine to begin with (absolute path)")
	f.BoolVar(&o.cancel, "cancel", false, "end what is under way")
	f.BoolVar(&o.json, "json", false, "print the operation as JSON")
	return c
}

func (o *seedFlags) run(c *cobra.Command, cl *api.Client) error {
	switch {
	case o.cancel && (o.watch || o.req.Verify || o.req.Full || o.req.From != ""):
		return fail.Usagef("--cancel stands alone")
	case o.req.Verify && (o.req.Full || o.req.From != ""):
		return fail.Usagef("--verify changes nothing: leave --full and --from away")
	case o.req.From != "" && !strings.HasPrefix(o.req.From, "/"):
		return fail.Usagef("--from %s: name an absolute path on the replica's machine", o.req.From)
	}
	op, err := o.begin(c, cl)
	if err != nil {
		return cli.NoAgent(c, err)
	}
	if o.watch || o.req.Verify {
		if op, err = o.follow(c, cl, op); err != nil {
			return cli.NoAgent(c, err)
		}
	}
	if o.json {
		if err := cli.PrintJSON(c, op); err != nil {
			return err
		}
	}
	return o.outcome(c, op)
}

// begin requests the operation. With --watch, an earlier operation is enough if the request is refused.
func (o *seedFlags) begin(c *cobra.Command, cl *api.Client) (op seeding.Operation, err error) {
	if o.cancel {
		return op, cl.CancelSeeding(c.Context(), o.req.Replica, &op)
	}
	err = cl.Seed(c.Context(), o.req, &op)
	var failed fail.Error
	if errors.As(err, &failed) && o.watch && !o.req.Full && !o.req.Verify && o.req.From == "" {
		var ops []seeding.Operation
		if cl.Seedings(c.Context(), o.req.Replica, &ops) == nil && len(ops) > 0 {
			// After a refused request the last operation is shown. If the replica was not reached, only an operation
			// that continues is.
			if last := ops[len(ops)-1]; failed.Kind == fail.Refused || !last.State.Ended() {
				return last, nil
			}
		}
	}
	return op, err
}

// follow prints the progress until the operation ends. On a terminal it updates one line.
func (o *seedFlags) follow(c *cobra.Command, cl *api.Client, op seeding.Operation) (seeding.Operation, error) {
	out, _ := c.OutOrStdout().(*os.File)
	bar := out != nil && term.IsTerminal(int(out.Fd()))
	every := 2 * time.Second
	if bar {
		every = 300 * time.Millisecond
	}
	lost, said := 0, ""
	for !op.State.Ended() {
		if line := seedLine(op); !o.json && line != said && line != "" {
			said = line
			if bar {
				_, _ = fmt.Fprintf(out, "\r%s\x1b[K", cli.Cell(line))
			} else {
				cli.Linef(cli.Out(c), "%s\n", line)
			}
		}
		if retry.Sleep(c.Context(), every) != nil {
			if bar {
				_, _ = fmt.Fprintln(out)
			}
			return op, fmt.Errorf("no longer watched; it goes on: coterie replica seed %s --watch, or --cancel", o.req.Replica)
		}
		next, err := o.look(c.Context(), cl, op.ID)
		if err != nil {
			if lost++; lost > 20 {
				return op, err
			}
			continue
		}
		lost, op = 0, next
	}
	if bar {
		_, _ = fmt.Fprint(out, "\r\x1b[K")
	}
	return op, nil
}

func (o *seedFlags) look(ctx context.Context, cl *api.Client, id string) (seeding.Operation, error) {
	var ops []seeding.Operation
	if err := cl.Seedings(ctx, o.req.Replica, &ops); err != nil {
		return seeding.Operation{}, err
	}
	for _, op := range ops {
		if op.ID == id {
			return op, nil
		}
	}
	return seeding.Operation{}, fail.Unhealthyf("%s does not remember the operation any more", o.req.Replica)
}

// seedLine describes an operation in one line: a bar, bytes, ratio, rate and remaining time.
func seedLine(op seeding.Operation) string {
	p := op.Progress
	p.Waiting = cmp.Or(op.Absent, p.Waiting)
	switch {
	case op.Absent != "" && op.State != seeding.Seeding:
		return strings.ToLower(string(op.State)) + ": " + op.Absent
	case op.State == seeding.Pending:
		return "waiting until the replica may be given up: " + op.Because
	case op.State == seeding.Retrying && op.Failure != nil:
		line := fmt.Sprintf("attempt %d: %s", op.Attempts, op.Failure.Text)
		if !op.Next.IsZero() {
			line += "; next at " + op.Next.Format(time.TimeOnly)
		}
		return line
	case p.Total == 0:
		return cmp.Or(p.Waiting, p.Phase)
	}
	const width = 24
	full := int(width * p.Done / max(p.Total, 1))
	line := fmt.Sprintf("[%s%s] %5.1f %%  %s of %s", strings.Repeat("#", full), strings.Repeat(".", width-full), 100*float64(p.Done)/float64(p.Total), units.Bytes(p.Done), units.Bytes(p.Total))
	if op.State == seeding.Seeding {
		line += "  wire " + wireText(p)
		if p.Same > 0 {
			line += fmt.Sprintf("  there %s", units.Bytes(p.Same))
		}
	}
	if p.Waiting != "" {
		return line + "  " + p.Waiting
	}
	line += fmt.Sprintf("  %s/s", units.Bytes(int64(p.Rate)))
	if left := p.ETA(); left > 0 {
		line += fmt.Sprintf("  %v left", left.Round(time.Second))
	}
	line += "  " + p.Phase
	if op.Source != "" {
		line += " from " + string(op.Source)
	}
	return line
}

// ratioFrom is the number of transferred bytes of files from which a compression ratio is shown. Below it, requests and
// hashes, which are part of the bytes on the network, distort the ratio.
const ratioFrom = 1 << 20

// wireText returns the bytes on the network, with the ratio of file bytes to them.
func wireText(p progress.Progress) string {
	if p.Done-p.Same < ratioFrom {
		return units.Bytes(p.Wire)
	}
	return fmt.Sprintf("%s (%.1fx)", units.Bytes(p.Wire), p.Ratio())
}

// outcome prints the final state of the operation and returns the error with its exit code.
func (o *seedFlags) outcome(c *cobra.Command, op seeding.Operation) error {
	name, p := o.req.Replica, op.Progress
	took := op.Ended.Sub(op.Started).Round(100 * time.Millisecond)
	switch {
	case op.State == seeding.Completed && op.Report != nil:
		return o.reportDamage(c, *op.Report, took)
	case o.json && (op.State == seeding.Completed || !op.State.Ended()):
	case op.State == seeding.Completed:
		cli.Say(c, "%s: copied from %s (%s) in %v: %s of files, %s of them were there, on the wire %s, attempts: %d; codec %s", name, op.Source, op.Chosen, took,
			units.Bytes(p.Total), units.Bytes(p.Same), wireText(p), op.Attempts, p.Codec)
	case op.State == seeding.Cancelled && op.Attempts == 0 && op.Report == nil && o.cancel:
		cli.Say(c, "%s: cancelled before anything changed; coterie replica seed %s --full asks for it again", name, name)
	case op.State == seeding.Cancelled && op.Report != nil && o.cancel:
		cli.Say(c, "%s: the verification is cancelled; nothing was changed", name)
	case op.State == seeding.Cancelled && o.cancel:
		cli.Say(c, "%s: cancelled; coterie replica seed %s goes on with what has arrived", name, name)
	case op.State == seeding.Cancelled:
		return fail.Unhealthyf("%s: cancelled; coterie replica seed %s goes on with what has arrived", name, name)
	case op.State == seeding.Failed && op.Failure != nil:
		return fail.Unhealthyf("%s: %s", name, op.Failure.Text)
	default:
		cli.Say(c, "%s: %s; follow it with coterie replica seed %s --watch", name, strings.ToLower(string(op.State)), name)
	}
	return nil
}

// reportDamage prints the result of --verify. Damaged pages are an unhealthy error.
func (o *seedFlags) reportDamage(c *cobra.Command, r pagesum.Report, took time.Duration) error {
	name := o.req.Replica
	if !o.json {
		cli.Say(c, "%s: %d pages in %d files (%s) read in %v, %d damaged", name, r.Pages, r.Files, units.Bytes(r.Bytes), took, r.Damaged)
		for _, d := range r.First {
			cli.Say(c, "  page %d of %s (its LSN is %s)", d.Block, d.File, d.LSN)
		}
	}
	if r.Damaged > 0 {
		return fail.Unhealthyf("%s has %d damaged pages; coterie replica seed %s --full replaces what differs from the source (of a primary: coterie failover first)", name, r.Damaged, name)
	}
	return nil
}
