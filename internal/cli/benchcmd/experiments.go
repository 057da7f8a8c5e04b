package benchcmd

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/bench/bed"
	"github.com/coteriedb/coterie/internal/bench/experiment"
	"github.com/coteriedb/coterie/internal/bench/suite"
	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/lib/fail"
	benchreport "github.com/coteriedb/coterie/internal/measure/report"
	"github.com/coteriedb/coterie/internal/measure/tpcc"
	"github.com/coteriedb/coterie/internal/measure/workload"
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
		Use: "routing", Short: "Does read-only routing pay? By number of threads", Args: cli.Args(0, "no arguments"),
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
			n := bed.Need{CPU: 0.5}
			if f.Preset == suite.PresetPublished {
				o.Iterations, o.Duration, o.Rows, n.Memory = 1000, 0, suite.PublishedRoutingRows, suite.PublishedMemory
			}
			n.Bytes = bed.Loaded(o.Rows * workload.RowBytes)
			return measureAll(c, &f.Options, "Read-only routing", []suite.BedRun{{Need: n, Experiments: []suite.Experiment{suite.RoutingExperiment(o, params, paramFile)}}})
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

func benchTprocc() *cobra.Command {
	var f experimentFlags
	var o experiment.TproccOptions
	var mode string
	c := &cobra.Command{
		Use: "tprocc", Short: "TPC-C-derived transactions, by users, with the read-only ones routed or not", Args: cli.Args(0, "no arguments"),
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
			if f.Preset == suite.PresetPublished {
				o.Transactions = suite.PublishedTransactions
				if !c.Flags().Changed("warehouses") {
					o.Warehouses = suite.PublishedWarehouses
				}
				if o.Warehouses < suite.LeastWarehouses {
					return fail.Usagef("--warehouses %d: the published table is of an unstated number, which held the million customers that it also read: choose %d or more", o.Warehouses, suite.LeastWarehouses)
				}
			}
			if o.KeyAndThink && o.Transactions == 0 && !c.Flags().Changed("duration") {
				o.Duration = 2 * time.Minute // a New-Order takes half a minute
			}
			return measureAll(c, &f.Options, "TPC-C-derived transactions", []suite.BedRun{{Need: bed.Need{CPU: 0.5, Bytes: bed.Loaded(o.Warehouses * 110 << 20)}, Experiments: []suite.Experiment{suite.TproccExperiment(o)}}})
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

func benchRead() *cobra.Command {
	var f experimentFlags
	var o experiment.ReadOptions
	c := &cobra.Command{
		Use: "read", Short: "How long one client takes to read many rows, as text, binary and COPY", Args: cli.Args(0, "no arguments"),
		Long: `Reads all rows of TPC-C's table customer by one client, from the primary and from a secondary; with --client-at, from that node and from the others. As root, a
lab's table that is larger than a quarter of shared_buffers is read cold, with the servers' files dropped from the page cache, and then warm.` + targetHelp,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := errors.Join(atLeastOne(c, "rows"), f.sizes(c, "rows")); err != nil {
				return err
			}
			var n bed.Need
			if f.Preset == suite.PresetPublished {
				o.Rows, n.Memory = experiment.PublishedRows, suite.PublishedMemory
			}
			n.Bytes = bed.Loaded(o.Rows * workload.CustomerBytes)
			o.Formats = []workload.Format{workload.Text, workload.Binary, workload.Copy}
			return measureAll(c, &f.Options, "Reading rows", []suite.BedRun{{Need: n, Experiments: []suite.Experiment{{
				Name: "read", Title: "Reading rows", Question: "How long does one client take to read so many rows?",
				Run: func(ctx context.Context, b *experiment.Bed) (benchreport.Experiment, error) { return b.Read(ctx, o) },
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
		Use: "connect", Short: "Logins per second", Args: cli.Args(0, "no arguments"),
		Long: `Connects with a password, asks one thing and leaves, again and again. Nobody published logins per second, so there are no published conditions
to take, and no --preset.` + targetHelp,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := positive("clients", o.Clients); err != nil {
				return err
			}
			return measureAll(c, &f.Options, "Logging in", []suite.BedRun{{Need: bed.Need{}, Experiments: []suite.Experiment{{
				Name: "connect", Title: "Logging in", Question: "How many logins per second?",
				Run: func(ctx context.Context, b *experiment.Bed) (benchreport.Experiment, error) { return b.Connect(ctx, o) },
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
		Use: "commit", Short: "Measure the cost of a synchronous commit: the insert matrix", Args: cli.Args(0, "no arguments"),
		Long: `Inserts the same number of rows in one transaction, in many, and one by one, waiting for the secondaries or not, without and with compression of
the link. Beside it stands the physical floor, measured in the same run: the round trip to the nearest secondary and its disk. As root the
lab's links are of 1 Gbit/s and 0.5 ms. With --target-a and --target-b the first is the asynchronous arm.` + targetHelp,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := errors.Join(atLeastOne(c, "rows"), f.sizes(c, "rows"), checkCompression(compression)); err != nil {
				return err
			}
			o := experiment.CommitOptions{Cells: suite.MatrixCells(total), Compression: compression}
			if f.Preset == suite.PresetPublished {
				o.Cells = experiment.PublishedCells
			}
			if len(cells) > 0 {
				var err error
				if o.Cells, err = parseCells(cells); err != nil {
					return err
				}
			}
			if f.Preset == suite.PresetPublished && slices.ContainsFunc(o.Cells, func(one experiment.Cell) bool { return !slices.Contains(experiment.PublishedCells, one) }) {
				return fail.Usagef("--cells %s: --preset published has those of the published matrix, all of them or some: %v", strings.Join(cells, ","), experiment.PublishedCells)
			}
			if f.TargetA != "" {
				o.Compression = nil
			}
			n := bed.Need{Network: true, Links: suite.CommitLink, Bytes: bed.Loaded(2 * suite.Largest(o.Cells) * workload.RowBytes)}
			return measureAll(c, &f.Options, "The insert matrix", []suite.BedRun{{Need: n, Experiments: []suite.Experiment{suite.CommitExperiment(o, linkWord(f.Link, suite.CommitLink))}}})
		},
	}
	f.add(c)
	c.Flags().IntVar(&total, "rows", 20_000, "of each cell; published: 1,000,000")
	c.Flags().StringSliceVar(&cells, "cells", nil, "shapes, inserts x rows of each, such as 1x1000000,100x10000 (default: those of --rows); the last is the one whose commits are set beside the floor")
	c.Flags().StringSliceVar(&compression, "compression", []string{"OFF", "ZSTD"}, "LOG_COMPRESSION of the secondaries, each in turn")
	return c
}

// checkCompression converts the list to capitals. It refuses values that a group would refuse as LOG_COMPRESSION before
// anything is made.
func checkCompression(list []string) error {
	for i, kind := range list {
		list[i] = strings.ToUpper(kind)
		if kind == "" { // unchanged
			continue
		}
		_, err := ddl.Parse("ALTER AVAILABILITY GROUP [bench] MODIFY REPLICA ON N'n1' WITH (LOG_COMPRESSION = " + kind + ")")
		if err != nil || strings.ContainsAny(kind, " ,()'[]-/") {
			return fail.Usagef("--compression %s: choose AUTO, OFF, LZ4 or ZSTD, or ZSTD with a level, as ZSTD:3", kind)
		}
	}
	return nil
}

// atLeastOne refuses flags below 1.
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

// checkOnly refuses a part of an experiment that does not exist: a run without measurements would look like success.
func checkOnly(only, parts []string) error {
	for _, p := range only {
		if !slices.Contains(parts, p) {
			return fail.Usagef("--only %s: choose among %s", p, strings.Join(parts, ", "))
		}
	}
	return nil
}

// parseCells parses cells such as 10x100000.
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

func linkWord(flag, standard string) string {
	if flag != "" {
		return flag
	}
	return standard
}

// catalogue lists the experiments: command, question, source, requirements.
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
	{"continuity", "What do sessions see in failovers, and what does that cost?", "", "pgbench, for the cost"},
	{"console", "What does the console in the browser take, how soon does it tell, and what does it cost?", "", "a lab; chromium, for what a browser shows"},
	{"linkem", "How true are the lab's links?", "", "root"},
}
