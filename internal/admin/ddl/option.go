package ddl

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// Place is the part of a statement in which an option is written.
type Place string

// The places of options.
const (
	InGroup     Place = "GROUP"
	InReplica   Place = "REPLICA"
	InSecondary Place = "SECONDARY_ROLE"
	InPrimary   Place = "PRIMARY_ROLE"
)

// Verdict is the way in which an option is treated.
type Verdict string

// The verdicts. An option that is NotYet in effect is recorded, and has no effect until the feature exists. One of
// NoEffect is accepted because it is common, and has no meaning here. One that is Refused is an error. The last two
// come with a reason (Option.Why).
const (
	InEffect Verdict = "in effect"
	NotYet   Verdict = "recorded, not yet in effect"
	NoEffect Verdict = "accepted, no effect"
	Refused  Verdict = "refused"
)

// Option is one option of the language.
type Option struct {
	Name     string
	Place    Place
	Form     Form
	Words    []string // Form Word: the values; Form Number: the words accepted beside numbers
	Min, Max int64    // Form Number: the bounds; Form Word: those of a number in parentheses that may follow the last word; 0: none may
	Unit     string
	Default  string
	Verdict  Verdict
	Why      string // reason of NoEffect and Refused; otherwise a remark
	About    string // one sentence for the reference
	OnlyNew  bool   // accepted in CREATE only

	set func(*change, Value) *Error
	get func(ag.Group, ag.Replica) (Value, bool) // nil: the configuration does not keep it
}

// change is the configuration that an option is applied to.
type change struct {
	group   *ag.Group
	replica *ag.Replica // nil for options of the group
	context Context
	notices *[]Notice
	pos     Pos
}

func word(s string) Value    { return Value{Form: Word, Text: s} }
func number(n int64) Value   { return Value{Form: Number, Text: itoa(n)} }
func textual(s string) Value { return Value{Form: Text, Text: s} }

// Options returns all options of the language, in the order of the reference.
func Options() []Option { return slices.Clone(options) }

func findOption(place Place, name string) (Option, bool) {
	i := slices.IndexFunc(options, func(o Option) bool { return o.Place == place && strings.EqualFold(o.Name, name) })
	if i < 0 {
		return Option{}, false
	}
	return options[i], true
}

// names returns the names of the options of a place, for an error.
func names(place Place, creating bool) []string {
	var out []string
	for _, o := range options {
		if o.Place == place && (creating || !o.OnlyNew) {
			out = append(out, o.Name)
		}
	}
	return out
}

var options = slices.Concat(groupOptions, replicaOptions, roleOptions)

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

func (v Value) number() int64 {
	n, _ := strconv.ParseInt(v.Text, 10, 64) // the parser has checked it
	return n
}

// record keeps the typed value of an option that is not stored in a field of its own.
func record(name string, form Form) (func(*change, Value) *Error, func(ag.Group, ag.Replica) (Value, bool)) {
	return func(c *change, v Value) *Error {
			if c.group.Options.Recorded == nil {
				c.group.Options.Recorded = map[string]string{}
			}
			text := v.Text
			if v.Form == Flag {
				text = "ON"
			}
			c.group.Options.Recorded[name] = text
			return nil
		}, func(g ag.Group, _ ag.Replica) (Value, bool) {
			text, ok := g.Options.Recorded[name]
			return Value{Form: form, Text: text}, ok
		}
}

func recorded(o Option) Option {
	o.Place = InGroup
	o.set, o.get = record(o.Name, o.Form)
	return o
}

func setRequired(c *change, v Value) *Error {
	if v.Text == "DEFAULT" {
		c.group.Required = nil
		return nil
	}
	n, most := int(v.number()), c.takePart()
	if n > most {
		return c.pos.errorf(StateInvalid, "%d of the secondaries take part in commits; requiring %d would stop every commit", most, n).
			WithHint("make another replica SYNCHRONOUS_COMMIT, or RESUME a suspended one, first")
	}
	c.group.Required = &n
	return nil
}

// takePart returns how many synchronous secondaries take part in commits. While no replica is known to be the primary
// one of them will be.
func (c *change) takePart() int {
	if _, ok := c.group.Replica(c.context.Primary); ok {
		return c.group.TakePart(c.context.Primary)
	}
	return max(c.group.TakePart("")-1, 0)
}

// keepsRequired refuses a change that leaves fewer synchronous secondaries than the REQUIRED that was set.
func (c *change) keepsRequired() *Error {
	n := c.takePart()
	if c.group.Required == nil || *c.group.Required <= n {
		return nil
	}
	return c.pos.errorf(StateInvalid, "%d of the %d secondaries that REQUIRED_SYNCHRONIZED_SECONDARIES_TO_COMMIT asks for would be left", n, *c.group.Required).
		WithHint("ALTER AVAILABILITY GROUP %s SET (REQUIRED_SYNCHRONIZED_SECONDARIES_TO_COMMIT = %d) first", Brackets(c.group.Name), n)
}

func setHealthTimeout(c *change, v Value) *Error {
	t := time.Duration(v.number()) * time.Millisecond
	c.group.Options.HealthTimeout = t
	if n := v.number(); n < 15000 && t != ag.DefaultHealthTimeout && c.context.announce {
		c.notice("HEALTH_CHECK_TIMEOUT = %d is below the 15000 that SQL Server takes at least; accepted", n)
	}
	return nil
}

func onOff(b bool) Value {
	if b {
		return word("ON")
	}
	return word("OFF")
}

// maintenanceForm is the form of MAINTENANCE, for its errors.
const maintenanceForm = "ON, OFF, or N'until 2026-11-25T18:00:00Z: reason'"

// setMaintenance sets or ends maintenance. A text is the reason, after until, a time and a colon if it ends by itself.
func setMaintenance(c *change, to **ag.Maintenance, v Value) *Error {
	if v.Form == Word {
		*to = nil
		if v.Text == "ON" {
			*to = &ag.Maintenance{}
		}
		return nil
	}
	m := ag.Maintenance{Reason: v.Text}
	if rest, dated := strings.CutPrefix(v.Text, "until "); dated {
		at, reason, _ := strings.Cut(rest, ": ")
		until, err := time.Parse(time.RFC3339, at)
		if err != nil {
			return c.pos.errorf(StateInvalid, "MAINTENANCE is %s; expected %s", Literal(clip(v.Text)), maintenanceForm)
		}
		m = ag.Maintenance{Until: until.UTC(), Reason: reason}
	}
	*to = &m
	return nil
}

func setReplicaMaintenance(c *change, v Value) *Error {
	on := v.Form != Word || v.Text == "ON"
	switch r := c.replica; {
	case on && !r.HasData():
		return c.pos.errorf(StateInvalid, "%s is a witness: it takes no readers and is never promoted, and maintenance would change nothing", r.ID)
	case on && r.ID == c.context.Primary:
		return c.pos.errorf(StateWrongState, "%s is the primary, which cannot be taken out of routing", r.ID).
			WithHint("make another replica the primary first, or switch automatic failover off: ALTER AVAILABILITY GROUP %s SET (MAINTENANCE = ON)", Brackets(c.group.Name))
	}
	return setMaintenance(c, &c.replica.Options.Maintenance, v)
}

func getMaintenance(m *ag.Maintenance) (Value, bool) {
	switch {
	case m == nil:
		return Value{}, false
	case *m == ag.Maintenance{}:
		return word("ON"), true
	case m.Until.IsZero():
		return textual(m.Reason), true
	}
	return textual(m.String()), true
}

// groupOptions are in the order of the reference: SQL Server's options, then our own.
var groupOptions = []Option{
	{
		Name: "AUTOMATED_BACKUP_PREFERENCE", Place: InGroup, Form: Word, Words: []string{"PRIMARY", "SECONDARY_ONLY", "SECONDARY", "NONE"}, Default: "SECONDARY",
		Verdict: InEffect, About: "Where a backup is made: obeyed by coterie backup run, and advice to other jobs, which ask with sys.fn_hadr_backup_is_preferred_replica or coterie check backup-preferred.",
		set: func(c *change, v Value) *Error {
			c.group.Options.BackupPreference = ag.BackupPreference(v.Text)
			return nil
		},
		get: func(g ag.Group, _ ag.Replica) (Value, bool) {
			return word(string(g.Options.BackupPreference)), g.Options.BackupPreference != ""
		},
	},
	{
		Name: "FAILURE_CONDITION_LEVEL", Place: InGroup, Form: Number, Min: 1, Max: 5, Default: "3", Verdict: InEffect,
		About: "Which ills of a primary that still runs count as its failure: 1 the server is down, up to 5 any that qualifies.",
		set:   func(c *change, v Value) *Error { c.group.Options.ConditionLevel = int(v.number()); return nil },
		get: func(g ag.Group, _ ag.Replica) (Value, bool) {
			return number(int64(g.Options.ConditionLevel)), g.Options.ConditionLevel != 0
		},
	},
	{
		Name: "HEALTH_CHECK_TIMEOUT", Place: InGroup, Form: Number, Min: 1000, Max: 4294967295, Unit: "ms", Default: "10000", Verdict: InEffect,
		About: "For how long a probe of the primary may go unanswered at most; one that is unusual for the host counts sooner, unless FAILURE_DETECTION is STRICT. With a notice below 15000, the least that SQL Server takes, unless it is the default.",
		set:   setHealthTimeout,
		get: func(g ag.Group, _ ag.Replica) (Value, bool) {
			return number(g.Options.HealthTimeout.Milliseconds()), g.Options.HealthTimeout != 0
		},
	},
	{
		Name: "DB_FAILOVER", Place: InGroup, Form: Word, Words: []string{"ON", "OFF"}, Default: "ON", Verdict: InEffect,
		About: "Whether a registered database that fails on the primary fails the group over. SQL Server's default is OFF.",
		set:   func(c *change, v Value) *Error { c.group.Options.NoDBFailover = v.Text == "OFF"; return nil },
		get: func(g ag.Group, _ ag.Replica) (Value, bool) {
			return onOff(!g.Options.NoDBFailover), g.Options.NoDBFailover
		},
	},
	{
		Name: "REQUIRED_SYNCHRONIZED_SECONDARIES_TO_COMMIT", Place: InGroup, Form: Number, Words: []string{"DEFAULT"}, Min: 0, Max: 8, Default: "by the commit rule",
		Verdict: InEffect, About: "With fewer synchronized secondaries commits wait. DEFAULT: as many as the commit rule allows without stopping at the first failure.",
		set: setRequired,
		get: func(g ag.Group, _ ag.Replica) (Value, bool) {
			if g.Required == nil {
				return Value{}, false
			}
			return number(int64(*g.Required)), true
		},
	},
	recorded(Option{
		Name: "DTC_SUPPORT", Form: Word, Words: []string{"PER_DB", "NONE"}, Default: "NONE", Verdict: NoEffect,
		Why: "prepared transactions are in the write-ahead log and survive every failover by themselves", About: "Distributed transactions.",
	}),
	recorded(Option{
		Name: "CLUSTER_TYPE", Form: Word, Words: []string{"WSFC", "BUILTIN", "EXTERNAL", "NONE"}, Default: "BUILTIN", OnlyNew: true, Verdict: NoEffect,
		Why: "the quorum is the one with which the group was founded", About: "What holds the group together.",
	}),
	recorded(Option{
		Name: "BASIC", Form: Flag, OnlyNew: true, Verdict: NoEffect, Why: "there are no tiers: a group of two may read its secondary",
		About: "SQL Server's group of two replicas and one database.",
	}),
	recorded(Option{
		Name: "CONTAINED", Form: Flag, OnlyNew: true, Verdict: NoEffect, Why: "roles, grants and settings are in the instance and are always replicated",
		About: "A group that carries its own logins and jobs.",
	}),
	{
		Name: "DISTRIBUTED", Place: InGroup, Form: Flag, OnlyNew: true, Verdict: Refused, Why: "groups of groups are not supported", About: "A group of two groups.",
	},
	recorded(Option{
		Name: "WRITE_LEASE_VALIDITY", Form: Number, Min: 1, Max: 3600, Unit: "s", Verdict: NoEffect,
		Why: "every primary holds a lease, whose length LEASE_PROFILE says", About: "For how long a primary may write without renewing.",
	}),
	recorded(Option{
		Name: "CLUSTER_CONNECTION_OPTIONS", Form: Text, Verdict: NoEffect, Why: "nodes meet by mutual TLS 1.3 with certificates of the group's own authority",
		About: "How nodes reach the cluster.",
	}),
	{
		Name: "COMMIT_RULE", Place: InGroup, Form: Word, Words: []string{"QUORUM", "ALL"}, Default: "QUORUM", Verdict: InEffect,
		About: "For how many synchronized secondaries a commit waits: as many as failures are survived, or ALL of them, as SQL Server does.",
		set:   func(c *change, v Value) *Error { c.group.CommitRule = ag.CommitRule(v.Text); return nil },
		get: func(g ag.Group, _ ag.Replica) (Value, bool) {
			return word(string(g.CommitRule)), g.CommitRule != "" && g.CommitRule != ag.RuleQuorum
		},
	},
	{
		Name: "COMMIT_BARRIER", Place: InGroup, Form: Word, Words: []string{"DEFAULT", "STRICT"}, Default: "DEFAULT", Verdict: InEffect,
		About: "What a client is told of a commit whose wait was cut short. STRICT: no answer before the listener itself has seen the flush.",
		set: func(c *change, v Value) *Error {
			c.group.Options.CommitBarrier = ""
			if v.Text == "STRICT" {
				c.group.Options.CommitBarrier = ag.BarrierStrict
			}
			return nil
		},
		get: func(g ag.Group, _ ag.Replica) (Value, bool) {
			return word(string(g.Options.CommitBarrier)), g.Options.CommitBarrier != ""
		},
	},
	{
		Name: "BACKEND_REUSE", Place: InGroup, Form: Word, Words: []string{"ON", "OFF"}, Default: "OFF", Verdict: InEffect,
		About: "Whether the server process of a client that has left may serve another one of the same role, database, host and startup parameters.",
		set:   func(c *change, v Value) *Error { c.group.Options.BackendReuse = v.Text == "ON"; return nil },
		get: func(g ag.Group, _ ag.Replica) (Value, bool) {
			return onOff(g.Options.BackendReuse), g.Options.BackendReuse
		},
	},
	{
		Name: "CONTINUITY", Place: InGroup, Form: Word, Words: []string{"SESSION", "REPLAY", "OFF"}, Default: "SESSION", Verdict: InEffect,
		About: "Whether a failover moves client sessions with their state to the new primary. REPLAY: with a transaction that was open on a lost server, which is executed again there. OFF: they end, and clients reconnect.",
		set: func(c *change, v Value) *Error {
			c.group.Options.Continuity = ""
			if v.Text != "SESSION" {
				c.group.Options.Continuity = ag.Continuity(v.Text)
			}
			return nil
		},
		get: func(g ag.Group, _ ag.Replica) (Value, bool) {
			return word(string(g.Options.Continuity)), g.Options.Continuity != ""
		},
	},
	{
		Name: "ALLOW_RELAXED_COMMIT", Place: InGroup, Form: Word, Words: []string{"ON", "OFF"}, Default: "OFF", Verdict: InEffect,
		About: "Whether ALTER SYSTEM, ALTER ROLE and ALTER DATABASE may set a default of synchronous_commit below on. A session's own SET is always allowed.",
		set:   func(c *change, v Value) *Error { c.group.Options.AllowRelaxedCommit = v.Text == "ON"; return nil },
		get: func(g ag.Group, _ ag.Replica) (Value, bool) {
			return onOff(g.Options.AllowRelaxedCommit), g.Options.AllowRelaxedCommit
		},
	},
	{
		Name: "FAILURE_DETECTION", Place: InGroup, Form: Word, Words: []string{"FAST", "STRICT", "ADAPTIVE"}, Min: 200, Max: 60000, Unit: "ms", Default: "FAST", Verdict: InEffect,
		About: "How a takeover may begin. FAST: also by evidence and votes, be it a death that the network shows or a silence that is unusual. STRICT: only when the primary's lease has ended. " +
			"ADAPTIVE(ms): as FAST, and a pause of so long is never unusual; without a number the LEASE_PROFILE says how long.",
		set: func(c *change, v Value) *Error {
			name, floor, _ := strings.Cut(strings.TrimSuffix(v.Text, ")"), "(")
			c.group.Options.FailureDetection = ag.FailureDetection(name)
			c.group.Options.SilenceFloor = time.Duration(Value{Text: floor}.number()) * time.Millisecond
			return nil
		},
		get: func(g ag.Group, _ ag.Replica) (Value, bool) {
			v := word(string(g.Options.FailureDetection))
			if floor := g.Options.SilenceFloor; v.Text == string(ag.DetectAdaptive) && floor > 0 {
				v.Text += "(" + itoa(floor.Milliseconds()) + ")"
			}
			return v, v.Text != ""
		},
	},
	{
		Name: "MAINTENANCE", Place: InGroup, Form: Text, Words: []string{"ON", "OFF"}, Default: "OFF", Verdict: InEffect,
		About: "While it is on, no automatic failover begins; planned and forced ones happen. N'until 2026-11-25T18:00:00Z: reason' ends by itself; coterie maintenance writes it.",
		set:   func(c *change, v Value) *Error { return setMaintenance(c, &c.group.Maintenance, v) },
		get:   func(g ag.Group, _ ag.Replica) (Value, bool) { return getMaintenance(g.Maintenance) },
	},
	{
		Name: "LEASE_PROFILE", Place: InGroup, Form: Word, Words: []string{"DEFAULT", "FAST", "WAN"}, Default: "DEFAULT", Verdict: InEffect,
		About: "How long the primary's lease lasts and how long it must be silent before another takes over: 6.5 s, FAST 3 s, WAN 17 s.",
		set: func(c *change, v Value) *Error {
			c.group.Profile = strings.ToLower(v.Text)
			return nil
		},
		get: func(g ag.Group, _ ag.Replica) (Value, bool) {
			return word(strings.ToUpper(g.Profile)), g.Profile != "" && g.Profile != "default"
		},
	},
	{
		Name: "SESSION_TIMEOUT", Place: InGroup, Form: Number, Min: 2, Max: 600, Unit: "s", Default: "10", Verdict: InEffect,
		About: "After so long without a sign of life a secondary is not waited for any more. Of replicas that have none of their own.",
		set: func(c *change, v Value) *Error {
			c.group.SessionTimeout = time.Duration(v.number()) * time.Second
			return nil
		},
		get: func(g ag.Group, _ ag.Replica) (Value, bool) {
			s := g.SessionTimeout
			return number(int64(s / time.Second)), s != 0 && s != 10*time.Second
		},
	},
}
