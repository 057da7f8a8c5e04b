package ddl

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/coteriedb/coterie/internal/ag"
)

// Context describes the node on which a statement runs.
type Context struct {
	Self    ag.ReplicaID // the node that was asked
	Primary ag.ReplicaID // "" while there is none

	announce  bool // give the notices that are given once per statement
	modeGiven bool // the statement sets FAILOVER_MODE as well as AVAILABILITY_MODE
}

// Notice is a message for the client that is not an error.
type Notice struct {
	Number  int // number of the corresponding availability-group message; 0: none corresponds
	Message string
}

func (c *change) notice(format string, a ...any) {
	*c.notices = append(*c.notices, Notice{Message: fmt.Sprintf(format, a...)})
}

// ReplicaID returns the member's name for a server's name as typed. Host names are folded as coterie init folds them,
// so that N'SRV153.contoso.com' and N'SRV153' are the node srv153.
func ReplicaID(server string) ag.ReplicaID {
	host, _, _ := strings.Cut(strings.ToLower(server), ".")
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, host)
	return ag.ReplicaID(name)
}

// node returns the node of the quorum with a server's name.
func node(g ag.Group, server string) (*ag.Replica, bool) {
	for _, id := range []ag.ReplicaID{ag.ReplicaID(strings.ToLower(server)), ReplicaID(server)} {
		for i := range g.Replicas {
			if g.Replicas[i].ID == id {
				return &g.Replicas[i], true
			}
		}
	}
	return nil, false
}

// member returns the replica of the group with a server's name.
func member(g ag.Group, server string) (*ag.Replica, bool) {
	r, ok := node(g, server)
	return r, ok && r.Part()
}

func memberNames(g ag.Group) string {
	var out []string
	for _, r := range g.Replicas {
		if r.Part() {
			out = append(out, string(r.ID))
		}
	}
	return strings.Join(out, ", ")
}

// Clone returns a configuration that shares no memory with g.
func Clone(g ag.Group) ag.Group {
	g.Replicas = slices.Clone(g.Replicas)
	for i := range g.Replicas {
		o := &g.Replicas[i].Options
		o.Parameters = maps.Clone(o.Parameters)
		o.RoutingList = slices.Clone(o.RoutingList)
		for k := range o.RoutingList {
			o.RoutingList[k] = slices.Clone(o.RoutingList[k])
		}
		if o.BackupPriority != nil {
			n := *o.BackupPriority
			o.BackupPriority = &n
		}
	}
	g.Parameters = maps.Clone(g.Parameters)
	if g.Required != nil {
		n := *g.Required
		g.Required = &n
	}
	g.Options.Databases = slices.Clone(g.Options.Databases)
	g.Options.Listeners = slices.Clone(g.Options.Listeners)
	for i := range g.Options.Listeners {
		g.Options.Listeners[i].Addresses = slices.Clone(g.Options.Listeners[i].Addresses)
	}
	g.Options.Recorded = maps.Clone(g.Options.Recorded)
	return g
}

// Change returns the configuration after the statement, and the notices for the client. It is a pure function, and its
// result shares no memory with g. An error is an *Error; the caller then writes nothing. A statement that is not a
// change (Kind) returns g.
func (s Statement) Change(g ag.Group, where Context) (ag.Group, []Notice, error) {
	next := Clone(g)
	if bad := s.check(g, where); bad != nil {
		return g, nil, bad
	}
	var notices []Notice
	where.announce = true
	c := &change{group: &next, context: where, notices: &notices, pos: s.Pos}
	if bad := c.apply(s); bad != nil {
		return g, nil, bad
	}
	return next, notices, nil
}

// Check returns an *Error if the statement may not run on this node: the group does not exist, the statement names
// another one, or WITH STRICT forbids it. Change calls Check itself; the caller does so before an operation or a
// report.
func (s Statement) Check(g ag.Group, where Context) error {
	if bad := s.check(g, where); bad != nil {
		return bad
	}
	return nil
}

func (s Statement) check(g ag.Group, where Context) *Error {
	if _, creating := s.Action.(Create); creating {
		return nil
	}
	if g.Draft || s.Group != "" && !strings.EqualFold(s.Group, g.Name) {
		if s.Group == "" && s.Kind() == KindReport {
			return nil
		}
		verb := "alter"
		if _, drop := s.Action.(Drop); drop {
			verb = "drop"
		}
		bad := s.Pos.messagef(15151, "cannot %s the availability group %s, because it does not exist", verb, Literal(clip(s.Group)))
		if g.Draft {
			return bad.WithHint("these nodes have no group yet: CREATE AVAILABILITY GROUP makes it")
		}
		return bad.WithHint("the group of these nodes is %s", Brackets(g.Name))
	}
	if s.Strict && s.onPrimary() && where.Self != where.Primary {
		return s.Pos.messagef(41140, "availability group %s cannot process the command here: the local replica is not the primary", Literal(g.Name)).
			WithHint("connect to %s and run it again, or leave WITH STRICT away", orNobody(where.Primary))
	}
	return nil
}

func orNobody(id ag.ReplicaID) string {
	if id == "" {
		return "the primary, of which there is none at present,"
	}
	return string(id)
}

func (c *change) apply(s Statement) *Error {
	switch a := s.Action.(type) {
	case Create:
		return c.create(s.Group, a)
	case Drop:
		return c.drop()
	case Set:
		return c.settings(a.Options, nil)
	case SetParameters:
		return c.setParameters(a)
	case SetHBA:
		return c.setHBA(a)
	case AddDatabase:
		return every(a.Names, c.addDatabase)
	case RemoveDatabase:
		if bad := every(a.Names, c.registered); bad != nil { // before the first one is gone from the list that the hint shows
			return bad
		}
		return every(a.Names, c.removeDatabase)
	case AddReplica:
		return every(a.Replicas, c.addReplica)
	case ModifyReplica:
		return every(a.Replicas, c.modifyReplica)
	case RemoveReplica:
		return every(a.Servers, c.removeReplica)
	case Join:
		if a.ClusterType != "" {
			c.notice("CLUSTER_TYPE: accepted, without effect: the quorum is the group's own")
		}
		return c.join(a.Server)
	case Consent:
		return c.consent(a.Deny)
	case AddListener:
		return c.addListener(a.Listener)
	case ModifyListener:
		if a.Remove {
			return c.removeAddress(a.Listener)
		}
		return c.modifyListener(a.Listener)
	case RemoveListener:
		return c.removeListener(a.Name)
	case Suspend:
		return c.suspend(a.Server, a.Database, true)
	case Resume:
		return c.suspend(a.Server, a.Database, false)
	case JoinDatabase:
		return c.joinDatabase(a.Database)
	case LeaveDatabase:
		return c.leaveDatabase(a.Database)
	case TraceFlags:
		return c.traceFlags(a)
	case SetSecondary:
		return c.pos.errorf(StateNotSupported, "SET (ROLE = SECONDARY) is refused: it would leave the group without a primary").
			WithHint("ALTER AVAILABILITY GROUP %s FAILOVER, on the replica that is to lead", Brackets(c.group.Name))
	case Offline:
		return c.pos.errorf(StateNotSupported, "OFFLINE is refused: there is no way back from it").
			WithHint("ALTER AVAILABILITY GROUP %s SUSPEND stops data movement", Brackets(c.group.Name))
	default:
		return nil
	}
}

// every applies a change to each entry of a list, up to the first that is refused.
func every[T any](list []T, apply func(T) *Error) *Error {
	for _, x := range list {
		if bad := apply(x); bad != nil {
			return bad
		}
	}
	return nil
}

// settings applies options to the group, or to one replica. Modes are applied before the options that depend on them,
// in whatever order they were typed.
func (c *change) settings(list []Setting, place func(Setting) Place) *Error {
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b Setting) int { return order(a) - order(b) })
	c.context.modeGiven = slices.ContainsFunc(list, func(s Setting) bool { return s.Name == "FAILOVER_MODE" })
	for _, s := range list {
		in := InGroup
		if place != nil {
			in = place(s)
		}
		o, ok := findOption(in, s.Name)
		if !ok || o.Verdict == Refused {
			return refusal(s.pos, o)
		}
		c.pos = s.pos
		if bad := c.ofData(in, s.Name); bad != nil {
			return bad
		}
		if bad := o.set(c, s.Value); bad != nil {
			return bad
		}
		switch o.Verdict {
		case NotYet:
			c.notice("%s: recorded, not yet in effect", o.Name)
		case NoEffect:
			c.notice("%s: accepted, without effect: %s", o.Name, o.Why)
		default:
		}
	}
	return nil
}

// ofData refuses an option of a witness that means something only where data is.
func (c *change) ofData(in Place, name string) *Error {
	if in == InGroup || c.replica.HasData() || slices.Contains([]string{"ENDPOINT_URL", "AVAILABILITY_MODE", "FAILOVER_MODE", "MAINTENANCE"}, name) {
		return nil
	}
	var replicas []ag.ReplicaID
	for _, r := range c.group.Replicas {
		if r.HasData() && r.Part() {
			replicas = append(replicas, r.ID)
		}
	}
	return c.pos.errorf(StateInvalid, "%s is a witness: it holds no data, and %s would change nothing", c.replica.ID, name).WithHint("name a replica: %s", ag.Names(replicas))
}

func order(s Setting) int {
	if s.Name == "AVAILABILITY_MODE" || s.Name == "COMMIT_RULE" {
		return 0
	}
	return 1
}

// replicaSettings applies the options of all three places.
func (c *change) replicaSettings(r Replica) *Error {
	for _, part := range []struct {
		place Place
		list  []Setting
	}{{InReplica, r.Options}, {InSecondary, r.Secondary}, {InPrimary, r.Primary}} {
		if bad := c.settings(part.list, func(Setting) Place { return part.place }); bad != nil {
			return bad
		}
	}
	return nil
}

func (c *change) modifyReplica(r Replica) *Error {
	m, ok := member(*c.group, r.Server)
	if !ok {
		return c.noReplica(41167, r.Server, r.pos)
	}
	c.replica = m
	return c.replicaSettings(r)
}

func (c *change) noReplica(number int, server string, pos Pos) *Error {
	return pos.messagef(number, "availability replica %s is not in availability group %s", Literal(clip(server)), Literal(c.group.Name)).
		WithHint("its replicas are %s", memberNames(*c.group))
}

func (c *change) addReplica(r Replica) *Error {
	m, ok := node(*c.group, r.Server)
	switch {
	case !ok:
		return r.pos.messagef(41167, "no node %s has joined", Literal(clip(r.Server))).
			WithHint("coterie member add-token here, then coterie join TOKEN --name %s there", ReplicaID(r.Server))
	case m.Part():
		return r.pos.messagef(35282, "availability replica %s is in availability group %s already", Literal(string(m.ID)), Literal(c.group.Name)).
			WithHint("MODIFY REPLICA ON changes its options")
	}
	m.Join, c.replica = ag.NotJoined, m
	m.Options = ag.ReplicaOptions{}
	m.Suspended, m.SuspendedBy, m.Allow = true, "", ag.AllowReadOnly
	if m.HasData() {
		m.AvailabilityMode, m.FailoverMode = ag.SynchronousCommit, ag.Automatic
	} else { // a witness holds no data that could be joined
		m.Join, m.Suspended = "", false
	}
	return c.replicaSettings(r)
}

func (c *change) removeReplica(server string) *Error {
	m, ok := member(*c.group, server)
	switch {
	case !ok:
		return c.noReplica(35283, server, c.pos)
	case m.ID == c.context.Primary:
		return c.pos.messagef(35284, "availability replica %s cannot be removed: it is the primary", Literal(string(m.ID))).WithHint("fail over first")
	case !m.HasData():
		return c.pos.errorf(StateWrongState, "%s is the witness: its vote would stay", m.ID).WithHint("coterie member remove %s takes the node out", m.ID)
	}
	detach(m)
	for i := range c.group.Replicas {
		o := &c.group.Replicas[i].Options
		had := len(o.RoutingList) > 0
		for k := range o.RoutingList {
			o.RoutingList[k] = slices.DeleteFunc(o.RoutingList[k], func(id ag.ReplicaID) bool { return id == m.ID })
		}
		o.RoutingList = slices.DeleteFunc(o.RoutingList, func(set []ag.ReplicaID) bool { return len(set) == 0 })
		if had && len(o.RoutingList) == 0 {
			o.RoutingList = nil
		}
	}
	if bad := c.keepsRequired(); bad != nil {
		return bad
	}
	c.notice("%s stays a node of the quorum and keeps its copy as it is; coterie member remove %s takes it out for good", m.ID, m.ID)
	return nil
}

// detach removes a node from the group. The node keeps its vote in the quorum and its copy.
func detach(r *ag.Replica) {
	r.Join, r.Suspended, r.SuspendedBy, r.Options = ag.Detached, true, "", ag.ReplicaOptions{}
}

func (c *change) join(server string) *Error {
	who := "the local replica"
	if server == "" {
		server = string(c.context.Self)
	} else {
		who = "replica " + Literal(clip(server))
	}
	m, ok := node(*c.group, server)
	switch {
	case !ok || m.Join == ag.Detached:
		return c.pos.messagef(41158, "%s cannot join availability group %s: it was not added to it", who, Literal(c.group.Name)).
			WithHint("ALTER AVAILABILITY GROUP %s ADD REPLICA ON %s first, on any node", Brackets(c.group.Name), Literal(clip(server)))
	case m.Join == "":
		c.notice("%s has joined already", m.ID)
		return nil
	}
	m.Join, m.Suspended, m.SuspendedBy = "", false, ""
	return nil
}

func (c *change) consent(deny bool) *Error {
	m, ok := member(*c.group, string(c.context.Self))
	if !ok {
		return c.noReplica(41167, string(c.context.Self), c.pos)
	}
	m.Options.NoSeeding = deny
	return nil
}
