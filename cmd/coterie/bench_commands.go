package main

import (
	"context"
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/lib/fail"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/bench/experiment"
	"github.com/coteriedb/coterie/internal/lab/linkem"
	benchreport "github.com/coteriedb/coterie/internal/measure/report"
	"github.com/coteriedb/coterie/internal/measure/tpcc"
	"github.com/coteriedb/coterie/internal/measure/workload"
)

// Links of the experiments, unless told otherwise.
const (
	commitLink = "rtt=0.5ms,rate=1gbit"
	tunnelLink = "rtt=20ms,rate=20mbit"
)

// publishedMemory is what a node may use under the published conditions, which say that memory was capped and not to what: less than a million
// customers need, so that they are read from the disk. The rows that routing asks for are shorter: there are three times as many.
const (
	publishedMemory      = 384 << 20
	publishedRoutingRows = 3 * experiment.PublishedRows
)

// Of the published TPROC-C: the transactions of each user, the warehouses of its second table (the first states none), and the fewest that
// hold the million customers that were read on the same servers.
const (
	publishedTransactions = 50_000
	publishedWarehouses   = 100
	leastWarehouses       = 34
)

// experimentCommands are the published experiments, and what is done with their results.
func experimentCommands() []*cobra.Command {
	return []*cobra.Command{benchRouting(), benchTprocc(), benchRead(), benchConnect(), benchCommit(), benchTunnel(), benchAll(), benchList(), benchCompare()}
}

const targetHelp = `

Without a target it makes a lab of three replicas on this machine and removes it. --group measures a group that is there, by its listeners' connection
string; --target-a and --target-b compare any two servers, or two ways to one.`

func benchRouting() *cobra.Command {
	var f experimentFlags
	var o experiment.RoutingOptions
	var params, paramFile, format string
	c := &cobra.Command{
		Use: "routing", Short: "Does read-only routing pay? By number of threads", Args: args(0, "no arguments"),
		Long: `Asks the same query by 1 to 12 threads, with read intent declared, once with the routing list NONE (the primary answers) and once with all replicas
in turn. Each node of the lab may use half a processor: without such a limit the same processors would do the work in both arms.` + targetHelp,
		Example: "  coterie bench routing --report out\n  coterie bench routing --target-a \"$PRIMARY\" --target-b \"$LISTENER\" --query 'select count(*) from t where a = $1' --params-query 'select a from t limit 1000'",
		RunE: func(c *cobra.Command, _ []string) error {
			if err := positive("threads", o.Threads); err != nil {
				return err
			}
			switch o.Format = workload.Format(format); o.Format {
			case workload.Binary, workload.Text, workload.Copy:
			default:
				return fail.Usagef("--format %s: choose binary, text or copy", format)
			}
			if err := errors.Join(atLeastOne(c, "rows"), f.sizes(c, "rows", "iterations", "duration", "rate")); err != nil {
				return err
			}
			n := need{cpu: 0.5}
			if f.preset == presetPublished {
				o.Iterations, o.Duration, o.Rows, n.memory = 1000, 0, publishedRoutingRows, publishedMemory
			}
			n.bytes = loaded(o.Rows * workload.RowBytes)
			return measureAll(c, &f.suiteOptions, "Read-only routing", []stageOf{{n, []piece{routingPiece(o, params, paramFile)}}})
		},
	}
	f.add(c)
	fs := c.Flags()
	fs.IntSliceVar(&o.Threads, "threads", experiment.PublishedThreads, "numbers of clients")
	fs.StringVar(&o.SQL, "query", "", "what is asked (default: an aggregate over 2,000 rows of a table of our own)")
	fs.StringVar(&params, "params-query", "", "a query whose rows are the parameters, in turn")
	fs.StringVar(&paramFile, "params-csv", "", "a CSV file without a heading, instead")
	fs.StringVar(&format, "format", "binary", "of the rows: binary, text or copy")
	fs.BoolVar(&o.Connect, "connect-each", false, "a connection for every query")
	fs.DurationVar(&o.Duration, "duration", 2*time.Second, "of each run")
	fs.Int64Var(&o.Iterations, "iterations", 0, "queries of each thread, instead of --duration")
	fs.DurationVar(&o.WarmUp, "warm-up", 300*time.Millisecond, "before each run, not counted")
	fs.Float64Var(&o.Rate, "rate", 0, "queries per second that all threads intend (0: as fast as they are answered); latency counts from the intended start")
	fs.IntVar(&o.Rows, "rows", 200_000, "of our own table")
	return c
}

func routingPiece(o experiment.RoutingOptions, params, paramFile string) piece {
	return piece{"routing", "Read-only routing", "Does read-only routing pay?", func(ctx context.Context, b *experiment.Bed) (benchreport.Experiment, error) {
		var err error
		switch {
		case paramFile != "":
			o.Params, err = workload.ParamFile(paramFile)
		case params != "" && b.Group != nil:
			o.Params, err = workload.ParamQuery(ctx, b.Group.ReadWrite(), params)
		case params != "":
			o.Params, err = workload.ParamQuery(ctx, b.A, params)
		}
		if err != nil {
			return benchreport.Experiment{}, err
		}
		if o.Iterations > 0 {
			o.Duration = 0
		}
		return b.Routing(ctx, o)
	}}
}

func benchTprocc() *cobra.Command {
	var f experimentFlags
	var o experiment.TproccOptions
	var mode string
	c := &cobra.Command{
		Use: "tprocc", Short: "TPC-C-derived transactions, by users, with the read-only ones routed or not", Args: args(0, "no arguments"),
		Long: `Runs the mix, once with everything on the primary and once with Order-Status and Stock-Level routed to secondaries. It counts
NOPM (new orders per minute, also by the database's own order numbers) and TPM, and checks the twelve consistency conditions on every replica
afterwards. It is derived from TPC-C and is not TPC-C.` + targetHelp,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := positive("users", o.Users); err != nil {
				return err
			}
			switch o.Mode = tpcc.Mode(mode); o.Mode {
			case tpcc.Functions, tpcc.ClientSQL, tpcc.Pipeline:
			default:
				return fail.Usagef("--mode %s: choose functions, sql or pipeline", mode)
			}
			if err := errors.Join(atLeastOne(c, "warehouses"), f.sizes(c, "transactions", "duration", "key-and-think")); err != nil {
				return err
			}
			if f.preset == presetPublished {
				o.Transactions = publishedTransactions
				if !c.Flags().Changed("warehouses") {
					o.Warehouses = publishedWarehouses
				}
				if o.Warehouses < leastWarehouses {
					return fail.Usagef("--warehouses %d: the published table is of an unstated number, which held the million customers that it also read: choose %d or more", o.Warehouses, leastWarehouses)
				}
			}
			if o.KeyAndThink && o.Transactions == 0 && !c.Flags().Changed("duration") {
				o.Duration = 2 * time.Minute // a New-Order takes half a minute
			}
			return measureAll(c, &f.suiteOptions, "TPC-C-derived transactions", []stageOf{{need{cpu: 0.5, bytes: loaded(o.Warehouses * 110 << 20)}, []piece{tproccPiece(o)}}})
		},
	}
	f.add(c)
	c.Flags().IntSliceVar(&o.Users, "users", experiment.PublishedThreads, "numbers of users")
	c.Flags().StringVar(&mode, "mode", string(tpcc.Functions), "how transactions reach the server: functions, one call each; sql, statement by statement; pipeline, the order lines at once")
	c.Flags().IntVar(&o.Warehouses, "warehouses", 2, "to load, about 100 MB each")
	c.Flags().DurationVar(&o.Duration, "duration", 5*time.Second, "of each run")
	c.Flags().DurationVar(&o.WarmUp, "warm-up", 500*time.Millisecond, "before each run, not counted")
	c.Flags().Int64Var(&o.Transactions, "transactions", 0, "of each user, instead of --duration")
	c.Flags().BoolVar(&o.KeyAndThink, "key-and-think", false, "users key and think for as long as TPC-C says; each run then takes 2m unless told otherwise")
	return c
}

func tproccPiece(o experiment.TproccOptions) piece {
	return piece{"tprocc", "TPC-C-derived transactions", "Is the mix faster with its read-only transactions routed?", func(ctx context.Context, b *experiment.Bed) (benchreport.Experiment, error) {
		return b.Tprocc(ctx, o)
	}}
}

func benchRead() *cobra.Command {
	var f experimentFlags
	var o experiment.ReadOptions
	c := &cobra.Command{
		Use: "read", Short: "How long one client takes to read many rows, as text, binary and COPY", Args: args(0, "no arguments"),
		Long: `Reads all rows of TPC-C's table customer by one client, from the primary and from a secondary; with --client-at, from that node and from the others. As root, a
lab's table that is larger than a quarter of shared_buffers is read cold, with the servers' files dropped from the page cache, and then warm.` + targetHelp,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := errors.Join(atLeastOne(c, "rows"), f.sizes(c, "rows")); err != nil {
				return err
			}
			var n need
			if f.preset == presetPublished {
				o.Rows, n.memory = experiment.PublishedRows, publishedMemory
			}
			n.bytes = loaded(o.Rows * workload.CustomerBytes)
			o.Formats = []workload.Format{workload.Text, workload.Binary, workload.Copy}
			return measureAll(c, &f.suiteOptions, "Reading rows", []stageOf{{n, []piece{{
				"read", "Reading rows", "How long does one client take to read so many rows?", func(ctx context.Context, b *experiment.Bed) (benchreport.Experiment, error) { return b.Read(ctx, o) },
			}}}})
		},
	}
	f.add(c)
	c.Flags().IntVar(&o.Rows, "rows", 100_000, "to read; published: 1,000,000")
	return c
}

func benchConnect() *cobra.Command {
	var f experimentFlags
	o := experiment.ConnectOptions{WarmUp: 200 * time.Millisecond}
	c := &cobra.Command{
		Use: "connect", Short: "Logins per second", Args: args(0, "no arguments"),
		Long: `Connects with a password, asks one thing and leaves, again and again. Nobody published logins per second, so there are no published conditions
to take, and no --preset.` + targetHelp,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := positive("clients", o.Clients); err != nil {
				return err
			}
			return measureAll(c, &f.suiteOptions, "Logging in", []stageOf{{need{}, []piece{{
				"connect", "Logging in", "How many logins per second?", func(ctx context.Context, b *experiment.Bed) (benchreport.Experiment, error) { return b.Connect(ctx, o) },
			}}}})
		},
	}
	f.addOthers(c)
	withoutPreset(c, "nobody published logins per second")
	c.Flags().IntSliceVar(&o.Clients, "clients", []int{1, 4, 12}, "numbers of clients")
	c.Flags().DurationVar(&o.Duration, "duration", 2*time.Second, "of each run")
	return c
}

func benchCommit() *cobra.Command {
	var f experimentFlags
	var total int
	var compression, cells []string
	c := &cobra.Command{
		Use: "commit", Short: "What a synchronous commit costs: the insert matrix", Args: args(0, "no arguments"),
		Long: `Inserts the same number of rows in one transaction, in many, and one by one, waiting for the secondaries or not, without and with compression of
the link. Beside it stands the physical floor, measured in the same run: the round trip to the nearest secondary and its disk. As root the
lab's links are of 1 Gbit/s and 0.5 ms. With --target-a and --target-b the first is the asynchronous arm.` + targetHelp,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := errors.Join(atLeastOne(c, "rows"), f.sizes(c, "rows"), checkCompression(compression)); err != nil {
				return err
			}
			o := experiment.CommitOptions{Cells: matrixCells(total), Compression: compression}
			if f.preset == presetPublished {
				o.Cells = experiment.PublishedCells
			}
			if len(cells) > 0 {
				var err error
				if o.Cells, err = parseCells(cells); err != nil {
					return err
				}
			}
			if f.preset == presetPublished && slices.ContainsFunc(o.Cells, func(one experiment.Cell) bool { return !slices.Contains(experiment.PublishedCells, one) }) {
				return fail.Usagef("--cells %s: --preset published has those of the published matrix, all of them or some: %v", strings.Join(cells, ","), experiment.PublishedCells)
			}
			if f.targetA != "" {
				o.Compression = nil
			}
			n := need{network: true, links: commitLink, bytes: loaded(2 * largest(o.Cells) * workload.RowBytes)}
			return measureAll(c, &f.suiteOptions, "The insert matrix", []stageOf{{n, []piece{commitPiece(o, linkWord(f.link, commitLink))}}})
		},
	}
	f.add(c)
	c.Flags().IntVar(&total, "rows", 20_000, "of each cell; published: 1,000,000")
	c.Flags().StringSliceVar(&cells, "cells", nil, "shapes, inserts x rows of each, such as 1x1000000,100x10000 (default: those of --rows); the last is the one whose commits are set beside the floor")
	c.Flags().StringSliceVar(&compression, "compression", []string{"OFF", "ZSTD"}, "LOG_COMPRESSION of the secondaries, each in turn")
	return c
}

// checkCompression writes the list in capitals and refuses, before anything is made, what a group would refuse as LOG_COMPRESSION.
func checkCompression(list []string) error {
	for i, kind := range list {
		list[i] = strings.ToUpper(kind)
		if kind == "" { // as it is
			continue
		}
		_, err := ddl.Parse("ALTER AVAILABILITY GROUP [bench] MODIFY REPLICA ON N'n1' WITH (LOG_COMPRESSION = " + kind + ")")
		if err != nil || strings.ContainsAny(kind, " ,()'[]-/") {
			return fail.Usagef("--compression %s: choose AUTO, OFF, LZ4 or ZSTD, or ZSTD with a level, as ZSTD:3", kind)
		}
	}
	return nil
}

// atLeastOne refuses sizes of nothing.
func atLeastOne(c *cobra.Command, flags ...string) error {
	for _, name := range flags {
		if n, err := c.Flags().GetInt(name); err != nil {
			return err
		} else if n < 1 {
			return fail.Usagef("--%s %d: choose 1 or more", name, n)
		}
	}
	return nil
}

// checkOnly refuses a part of an experiment that there is not: measuring nothing would look like success.
func checkOnly(only, parts []string) error {
	for _, p := range only {
		if !slices.Contains(parts, p) {
			return fail.Usagef("--only %s: choose among %s", p, strings.Join(parts, ", "))
		}
	}
	return nil
}

// parseCells reads shapes such as 10x100000.
func parseCells(list []string) (cells []experiment.Cell, err error) {
	for _, one := range list {
		inserts, rows, ok := strings.Cut(one, "x")
		c := experiment.Cell{}
		var err1, err2 error
		c.Inserts, err1 = strconv.Atoi(inserts)
		c.Rows, err2 = strconv.Atoi(rows)
		if !ok || err1 != nil || err2 != nil || c.Inserts < 1 || c.Rows < 1 {
			return nil, fail.Usagef("--cells %s: write inserts and rows of each, such as 10x100000", one)
		}
		cells = append(cells, c)
	}
	return cells, nil
}

// largest is the most rows that a cell inserts.
func largest(cells []experiment.Cell) (rows int) {
	for _, c := range cells {
		rows = max(rows, c.Inserts*c.Rows)
	}
	return rows
}

// matrixCells are the shapes of the matrix for a number of rows: in one transaction, in hundreds, in tens, and one by one.
func matrixCells(total int) []experiment.Cell {
	var out []experiment.Cell
	for _, rows := range []int{total, total / 10, 1000, 10, 1} {
		if rows >= 1 && rows <= total && !slices.ContainsFunc(out, func(c experiment.Cell) bool { return c.Rows == rows }) && total/rows <= 2000 {
			out = append(out, experiment.Cell{Inserts: total / rows, Rows: rows})
		}
	}
	if n := len(out); out[n-1].Rows > 1 {
		out = append(out, experiment.Cell{Inserts: min(total, 500), Rows: 1})
	}
	return out
}

func linkWord(flag, standard string) string {
	if flag != "" {
		return flag
	}
	return standard
}

func commitPiece(o experiment.CommitOptions, link string) piece {
	return piece{"commit", "The insert matrix", "What does a synchronous commit cost?", func(ctx context.Context, b *experiment.Bed) (benchreport.Experiment, error) {
		if b.Links != nil {
			if err := b.Links.Shape(ctx, link); err != nil {
				return benchreport.Experiment{}, err
			}
			o.Link = link
		}
		e, err := b.Commit(ctx, o)
		if err == nil && b.Links != nil {
			if err := plainCommit(ctx, b, &e, o); err != nil {
				e.Notes = append(e.Notes, "Plain PostgreSQL beside it: not run: "+err.Error())
			}
		}
		return e, err
	}}
}

// plainCommit does the same inserts on plain PostgreSQL with one synchronous standby behind the same kind of link.
func plainCommit(ctx context.Context, b *experiment.Bed, e *benchreport.Experiment, o experiment.CommitOptions) (err error) {
	shape, err := linkem.ParseShape(o.Link)
	if err != nil {
		return err
	}
	net, stop, err := startBenchNetwork(b.Seed)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	at := func(node string) place {
		return place{in: func(f func() error) error { return net.Do(node, f) }, addr: net.Addr(node), port: 5432, end: 5022}
	}
	s, err := newStage(ctx, at("n1"), at("n2"), "fsync=on")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close(context.WithoutCancel(ctx))) }()
	if err := errors.Join(net.Set("n1", "n2", shape), net.Set("n2", "n1", shape), s.join(ctx, wayCubic)); err != nil {
		return err
	}
	plain := *b
	plain.Group, plain.Faults, plain.Links, plain.Dial, plain.Published = nil, nil, nil, nil, false
	plain.A, plain.B = s.primary.DSN()+"&synchronous_commit=local", s.primary.DSN()+"&synchronous_commit=on"
	o.Compression = nil
	o.Floor = b.Floor // the links of the lab are as these
	b.Progress.Say("the same on plain PostgreSQL with one synchronous standby")
	p, err := plain.Commit(ctx, o)
	if err != nil {
		return err
	}
	for _, t := range p.Tables {
		mine := slices.IndexFunc(e.Tables, func(one benchreport.Table) bool { return one.Title == t.Title && t.Title == experiment.PenaltyTable })
		if mine < 0 {
			t.Title = "Plain PostgreSQL with one synchronous standby, the same link, afterwards: " + strings.ToLower(t.Title[:1]) + t.Title[1:]
			e.Tables = append(e.Tables, t)
			continue
		}
		for _, row := range t.Rows {
			row[0] = "plain PostgreSQL"
			e.Tables[mine].Rows = append(e.Tables[mine].Rows, row)
		}
	}
	for _, c := range p.Comparisons {
		c.Name = "plain PostgreSQL, " + c.Name
		e.Comparisons = append(e.Comparisons, c)
	}
	for _, m := range p.Metrics {
		m.Name = "plain PostgreSQL/" + m.Name
		e.Metrics = append(e.Metrics, m)
	}
	e.Notes = append(e.Notes, "Plain PostgreSQL on the same link: "+p.Answer)
	return nil
}

// outagePiece breaks the group, on links as they were made.
func outagePiece(o experiment.FailoverOptions, link string) piece {
	return piece{"failover", "The outage", "How long is an outage?", func(ctx context.Context, b *experiment.Bed) (e benchreport.Experiment, err error) {
		if b.Links != nil && link != "" {
			if err := b.Links.Shape(ctx, link); err != nil {
				return e, err
			}
		}
		if o.Dir, err = os.MkdirTemp("/var/tmp", "coterie-bench-"); err != nil { // on a disk: every acknowledgement is synced there
			return e, err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(o.Dir)) }()
		return b.Failover(ctx, o)
	}}
}

// catalogue lists the experiments: command, question, source, what it needs.
var catalogue = [][4]string{
	{"routing", "Does read-only routing pay?", "read_only_routing_2016.csv", "limited nodes: a lab as root, or real machines"},
	{"tprocc", "Is the TPC-C-derived mix faster with its read-only transactions routed?", "oltp_2016.csv", "the same"},
	{"read", "How long does one client take to read 1,000,000 rows?", "read_1m_rows.csv", "anything"},
	{"commit", "What does a synchronous commit cost?", "insert_matrix_2016.csv", "links: a lab as root, or anything without the floor"},
	{"tunnel", "What does compression of the link give?", "tunnel.csv", "a lab as root, or two targets"},
	{"seeding", "How fast is a copy, beside pg_basebackup?", "seeding.csv", "root"},
	{"failover", "How long is an outage, and what is lost?", "", "a lab"},
	{"connect", "How many logins per second?", "", "anything"},
	{"endpoint", "What does the link between replicas save and cost?", "tunnel.csv", "root"},
	{"listener", "What does the listener cost, beside HAProxy, PgBouncer and none?", "", "pgbench"},
	{"linkem", "How true are the lab's links?", "", "root"},
}
