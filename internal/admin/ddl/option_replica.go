package ddl

import (
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

var replicaOptions = []Option{
	{
		Name: "ENDPOINT_URL", Place: InReplica, Form: Text, Verdict: NoEffect, Why: "a node is dialled at the endpoint it announced when it joined",
		About: "Where the other nodes reach the replica, as TCP://host:port. Kept and shown.",
		set: func(c *change, v Value) *Error {
			if bad := checkURL(c.pos, "ENDPOINT_URL", v.Text); bad != nil {
				return bad
			}
			c.replica.Options.EndpointURL = v.Text
			return nil
		},
		get: func(_ ag.Group, r ag.Replica) (Value, bool) {
			return textual(r.Options.EndpointURL), r.Options.EndpointURL != ""
		},
	},
	{
		Name: "AVAILABILITY_MODE", Place: InReplica, Form: Word, Words: []string{"SYNCHRONOUS_COMMIT", "ASYNCHRONOUS_COMMIT", "CONFIGURATION_ONLY"},
		Default: "SYNCHRONOUS_COMMIT", Verdict: InEffect, About: "Whether commits may wait for the replica. CONFIGURATION_ONLY is the witness: a vote without data.",
		set: setMode,
		get: func(_ ag.Group, r ag.Replica) (Value, bool) { return word(string(r.AvailabilityMode)), true },
	},
	{
		Name: "FAILOVER_MODE", Place: InReplica, Form: Word, Words: []string{"AUTOMATIC", "MANUAL", "EXTERNAL"}, Default: "AUTOMATIC", Verdict: InEffect,
		About: "Whether the replica may become primary without a person. EXTERNAL is read as MANUAL.", set: setFailoverMode,
		get: func(_ ag.Group, r ag.Replica) (Value, bool) { return word(string(r.FailoverMode)), r.HasData() },
	},
	{
		Name: "MAINTENANCE", Place: InReplica, Form: Text, Words: []string{"ON", "OFF"}, Default: "OFF", Verdict: InEffect,
		About: "While it is on, the replica takes no readers and does not take over. It keeps its vote, and commits may wait for it. Written as that of the group.",
		set:   setReplicaMaintenance,
		get:   func(_ ag.Group, r ag.Replica) (Value, bool) { return getMaintenance(r.Options.Maintenance) },
	},
	{
		Name: "SEEDING_MODE", Place: InReplica, Form: Word, Words: []string{"AUTOMATIC", "MANUAL"}, Default: "AUTOMATIC", Verdict: InEffect,
		About: "Whether an empty replica is given a copy by itself. SQL Server's default is MANUAL.",
		set:   func(c *change, v Value) *Error { c.replica.Options.ManualSeeding = v.Text == "MANUAL"; return nil },
		get: func(_ ag.Group, r ag.Replica) (Value, bool) {
			return word("MANUAL"), r.Options.ManualSeeding
		},
	},
	{
		Name: "BACKUP_PRIORITY", Place: InReplica, Form: Number, Min: 0, Max: 100, Default: "50", Verdict: InEffect,
		About: "Which replica a backup job should prefer; 0: never this one.",
		set: func(c *change, v Value) *Error {
			n := int(v.number())
			c.replica.Options.BackupPriority = &n
			return nil
		},
		get: func(_ ag.Group, r ag.Replica) (Value, bool) {
			if r.Options.BackupPriority == nil {
				return Value{}, false
			}
			return number(int64(*r.Options.BackupPriority)), true
		},
	},
	{
		Name: "SESSION_TIMEOUT", Place: InReplica, Form: Number, Min: 2, Max: 600, Unit: "s", Default: "the group's", Verdict: InEffect,
		About: "After so long without a sign of life the replica is not waited for any more. It never causes a failover.",
		set: func(c *change, v Value) *Error {
			c.replica.Options.SessionTimeout = time.Duration(v.number()) * time.Second
			if n := v.number(); n < 5 && c.context.announce {
				c.notice("SESSION_TIMEOUT = %d is below the 5 that SQL Server takes at least; accepted", n)
			}
			return nil
		},
		get: func(_ ag.Group, r ag.Replica) (Value, bool) {
			return number(int64(r.Options.SessionTimeout / time.Second)), r.Options.SessionTimeout != 0
		},
	},
	onLinks(codec("LOG_COMPRESSION", "How the replica's log stream is compressed.", func(r *ag.Replica) *string { return &r.Options.LogCompression })),
	codec("SEED_COMPRESSION", "How a copy is compressed on its way to the replica.", func(r *ag.Replica) *string { return &r.Options.SeedCompression }),
	{
		Name: "SEED_MAX_RATE", Place: InReplica, Form: Number, Min: 0, Max: 1 << 40, Unit: "bytes/s", Default: "0", Verdict: InEffect,
		About: "How fast the source may read its files for a copy, whatever that is on the wire; 0: no limit. With KB, MB or GB behind the number: powers of 1024.",
		set:   func(c *change, v Value) *Error { c.replica.Options.SeedMaxRate = v.number(); return nil },
		get: func(_ ag.Group, r ag.Replica) (Value, bool) {
			return number(r.Options.SeedMaxRate), r.Options.SeedMaxRate != 0
		},
	},
	onLinks(Option{
		Name: "TRANSPORT", Place: InReplica, Form: Word, Words: []string{"AUTO", "TCP", "QUIC"}, Default: "AUTO", Verdict: InEffect,
		About: "What carries the replica's log stream.",
		set:   func(c *change, v Value) *Error { c.replica.Options.Transport = unlessAuto(v.Text); return nil },
		get: func(_ ag.Group, r ag.Replica) (Value, bool) {
			return word(r.Options.Transport), r.Options.Transport != ""
		},
	}),
}

// onLinks is an option that open links look at by themselves: the statement that sets it does not wait for them.
func onLinks(o Option) Option {
	set := o.set
	o.About += " Open links take it within about a second."
	o.set = func(c *change, v Value) *Error {
		was := c.replica.Options
		if bad := set(c, v); bad != nil {
			return bad
		}
		later := Notice{Message: o.Name + " is recorded; open links take it within about a second: coterie.streams has what they use"}
		now := c.replica.Options
		if c.context.announce && (now.LogCompression != was.LogCompression || now.Transport != was.Transport) && !slices.Contains(*c.notices, later) {
			*c.notices = append(*c.notices, later) // once for all replicas
		}
		return nil
	}
	return o
}

func unlessAuto(s string) string {
	if s == "AUTO" {
		return ""
	}
	return s
}

func codec(name, about string, field func(*ag.Replica) *string) Option {
	return Option{
		Name: name, Place: InReplica, Form: Codec, Words: []string{"AUTO", "OFF", "LZ4", "ZSTD"}, Default: "AUTO", Verdict: InEffect,
		About: about + " ZSTD may have a level, as ZSTD:3; AUTO measures link and processor.",
		set:   func(c *change, v Value) *Error { *field(c.replica) = unlessAuto(v.Text); return nil },
		get: func(_ ag.Group, r ag.Replica) (Value, bool) {
			return Value{Form: Codec, Text: *field(&r)}, *field(&r) != ""
		},
	}
}

var roleOptions = []Option{
	{
		Name: "ALLOW_CONNECTIONS", Place: InSecondary, Form: Word, Words: []string{"NO", "READ_ONLY", "ALL"}, Default: "READ_ONLY", Verdict: InEffect,
		About: "Whether the replica takes readers while it is a secondary. SQL Server's default is NO. READ_ONLY and ALL are the same at the listener, which sends by intent.",
		set:   func(c *change, v Value) *Error { c.replica.Allow = ag.AllowConnections(v.Text); return nil },
		get: func(_ ag.Group, r ag.Replica) (Value, bool) {
			return word(string(r.Allow)), r.Allow != "" && r.Allow != ag.AllowReadOnly
		},
	},
	{
		Name: "READ_ONLY_ROUTING_URL", Place: InSecondary, Form: Text, Words: []string{"NONE"}, Verdict: NoEffect, Why: "the listener reaches every replica by its endpoint",
		About: "Where readers reach the replica, as TCP://host:port. Kept and shown.",
		set: func(c *change, v Value) *Error {
			return setURL(c, &c.replica.Options.ReadOnlyURL, "READ_ONLY_ROUTING_URL", v)
		},
		get: func(_ ag.Group, r ag.Replica) (Value, bool) {
			return textual(r.Options.ReadOnlyURL), r.Options.ReadOnlyURL != ""
		},
	},
	{
		Name: "ALLOW_CONNECTIONS", Place: InPrimary, Form: Word, Words: []string{"READ_WRITE", "ALL"}, Default: "ALL", Verdict: InEffect,
		About: "Whether the replica takes readers while it is the primary. READ_WRITE: a reader is never sent to it, whatever a routing list says.",
		set:   func(c *change, v Value) *Error { c.replica.Options.PrimaryAllow = ag.PrimaryAllow(v.Text); return nil },
		get: func(_ ag.Group, r ag.Replica) (Value, bool) {
			return word(string(r.Options.PrimaryAllow)), r.Options.PrimaryAllow == ag.PrimaryAllowReadWrite
		},
	},
	{
		Name: "READ_ONLY_ROUTING_LIST", Place: InPrimary, Form: Routes, Default: "all others in turn, then the primary", Verdict: InEffect,
		About: "Where the listener sends readers while this replica is the primary: the first entry that can take them, in turn within a set. NONE: readers go to the primary.",
		set:   setRoutes, get: getRoutes,
	},
	{
		Name: "READ_WRITE_ROUTING_URL", Place: InPrimary, Form: Text, Words: []string{"NONE"}, Verdict: NoEffect, Why: "every node's listener passes writers on to the primary",
		About: "Where writers reach the replica, as TCP://host:port. Kept and shown.",
		set: func(c *change, v Value) *Error {
			return setURL(c, &c.replica.Options.ReadWriteURL, "READ_WRITE_ROUTING_URL", v)
		},
		get: func(_ ag.Group, r ag.Replica) (Value, bool) {
			return textual(r.Options.ReadWriteURL), r.Options.ReadWriteURL != ""
		},
	},
}

// setURL sets a URL for routing. The word NONE takes it away.
func setURL(c *change, to *string, name string, v Value) *Error {
	if v.Form == Word {
		*to = ""
		return nil
	}
	if bad := checkURL(c.pos, name, v.Text); bad != nil {
		return bad
	}
	*to = v.Text
	return nil
}

// checkURL returns an error unless text is scheme://host:port.
func checkURL(pos Pos, option, text string) *Error {
	scheme, rest, ok := strings.Cut(text, "://")
	host, port, err := net.SplitHostPort(strings.TrimSuffix(rest, "/"))
	n, convErr := strconv.Atoi(port)
	if !ok || err != nil || convErr != nil || host == "" || n < 1 || n > 65535 || len(text) > 512 || strings.ContainsAny(host, " \t\r\n'\"") ||
		!strings.EqualFold(scheme, "tcp") && !strings.EqualFold(scheme, "quic") && !strings.EqualFold(scheme, "tunnel") {
		return pos.errorf(StateInvalid, "%s is %s; expected TCP://host:port", option, Literal(clip(text)))
	}
	return nil
}

func setMode(c *change, v Value) *Error {
	mode := ag.AvailabilityMode(v.Text)
	r := c.replica
	if (mode == ag.ConfigurationOnly) != (r.AvailabilityMode == ag.ConfigurationOnly) {
		return c.pos.errorf(StateWrongState, "availability mode CONFIGURATION_ONLY cannot be altered to or from: %s %s", r.ID,
			map[bool]string{true: "holds data", false: "is a witness"}[r.HasData()]).WithHint("a witness is made by coterie witness, a replica by coterie join")
	}
	r.AvailabilityMode = mode
	if mode == ag.AsynchronousCommit && r.FailoverMode == ag.Automatic && !c.context.modeGiven {
		r.FailoverMode = ag.Manual
		c.notice("%s commits asynchronously from now on, so its failover mode is MANUAL", r.ID)
	}
	if mode == ag.AsynchronousCommit {
		return c.keepsRequired()
	}
	return nil
}

func setFailoverMode(c *change, v Value) *Error {
	r := c.replica
	mode := ag.FailoverMode(v.Text)
	if v.Text == "EXTERNAL" {
		mode = ag.Manual
		c.notice("FAILOVER_MODE = EXTERNAL is read as MANUAL: no outside cluster manager decides here")
	}
	if mode == ag.Automatic && r.AvailabilityMode != ag.SynchronousCommit {
		return c.pos.errorf(StateInvalid, "FAILOVER_MODE = AUTOMATIC needs AVAILABILITY_MODE = SYNCHRONOUS_COMMIT; %s is %s", r.ID, r.AvailabilityMode)
	}
	r.FailoverMode = mode
	return nil
}

func setRoutes(c *change, v Value) *Error {
	o := &c.replica.Options
	o.RoutingList, o.RoutingNone = nil, false
	switch v.Text {
	case "NONE":
		o.RoutingNone = true
		return nil
	case "DEFAULT":
		return nil
	}
	seen := map[ag.ReplicaID]bool{}
	for _, set := range v.List {
		var ids []ag.ReplicaID
		for _, name := range set {
			r, ok := member(*c.group, name)
			switch {
			case !ok:
				return c.pos.messagef(41167, "availability replica %s of the routing list is not in availability group %s", Literal(name), Literal(c.group.Name)).
					WithHint("its replicas are %s", memberNames(*c.group))
			case !r.HasData():
				return c.pos.errorf(StateInvalid, "%s is a witness: it has nothing to read", r.ID)
			case seen[r.ID]:
				return c.pos.errorf(StateInvalid, "%s is in the routing list twice", r.ID)
			}
			seen[r.ID] = true
			ids = append(ids, r.ID)
		}
		o.RoutingList = append(o.RoutingList, ids)
	}
	return nil
}

func getRoutes(_ ag.Group, r ag.Replica) (Value, bool) {
	if r.Options.RoutingNone {
		return Value{Form: Routes, Text: "NONE"}, true
	}
	v := Value{Form: Routes}
	for _, set := range r.Options.RoutingList {
		var names []string
		for _, id := range set {
			names = append(names, string(id))
		}
		v.List = append(v.List, names)
	}
	return v, len(v.List) > 0
}
