package action

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// Request is a change that is asked for.
type Request struct {
	Statement ddl.Statement
	Risky     bool // it may lose commits, or a member; its document repeats the name of its target
	DryRun    bool // nothing is to be changed; of a failover only
}

// kinds are the changes by their names, with the document of each. The group's name is that of the statement, unless
// the document names one that is to be made.
var kinds = map[string]func(group string, body []byte) (Request, error){
	"create":      parse[Founding],
	"join":        parse[join],
	"failover":    parse[failover],
	"suspend":     parse[suspend],
	"resume":      parse[resume],
	"maintenance": parse[maintenance],
	"options":     parse[options],
	"routing":     parse[routing],
	"seed":        parse[seed],
	"cancel-seed": parse[cancelSeed],
	"remove":      parse[remove],
}

// Names returns the names of the changes.
func Names() []string { return slices.Sorted(maps.Keys(kinds)) }

// Parse returns the change of that name and document. The error is a *ddl.Error or a fail.Error.
func Parse(name, group string, body []byte) (Request, error) {
	f, ok := kinds[name]
	if !ok {
		return Request{}, fail.Usagef("there is no change %q", name)
	}
	return f(group, body)
}

// document is the document of a change.
type document interface {
	action() (ddl.Action, error)
	terms() Request // everything but the statement
}

func parse[T document](group string, body []byte) (Request, error) {
	var doc T
	if err := decode(body, &doc); err != nil {
		return Request{}, err
	}
	a, err := doc.action()
	if err != nil {
		return Request{}, err
	}
	if d, ok := any(doc).(named); ok {
		group = d.group()
	}
	r := doc.terms()
	r.Statement, err = ddl.Statement{Group: group, Action: a}.Checked()
	return r, err
}

// decode reads a body that is one document with the fields of into, and nothing behind it.
func decode(body []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	d.UseNumber()
	if err := d.Decode(into); err != nil {
		return fail.Usagef("the body is not the JSON that is expected: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return fail.Usagef("the body is not the JSON that is expected: something follows it")
	}
	return nil
}

// plain is a document without terms.
type plain struct{}

func (plain) terms() Request { return Request{} }

// needs returns an error that names the first field that is empty.
func needs(fields ...string) error {
	for i := 0; i+1 < len(fields); i += 2 {
		if fields[i+1] == "" {
			return fail.Usagef("%s is missing", fields[i])
		}
	}
	return nil
}

type failover struct {
	To            string `json:"to"`
	AllowDataLoss bool   `json:"allow_data_loss"`
	Now           bool   `json:"now"`
	Confirm       string `json:"confirm"`
	DryRun        bool   `json:"dry_run"`
}

func (d failover) action() (ddl.Action, error) {
	if d.Now && !d.AllowDataLoss {
		return nil, fail.Usagef("now is of a failover with allow_data_loss")
	}
	if d.AllowDataLoss && !d.DryRun && d.Confirm != d.To {
		return nil, fail.Refusedf("a failover that may lose commits has the target's name in confirm, too")
	}
	return ddl.Failover{To: d.To, Force: d.AllowDataLoss, Now: d.Now}, needs("to", d.To)
}

func (d failover) terms() Request {
	return Request{Risky: d.AllowDataLoss, DryRun: d.DryRun}
}

type target struct {
	plain
	Replica  string `json:"replica"`
	Database string `json:"database"`
}

// one returns an error unless either a replica or a database is named.
func (t target) one() error {
	if (t.Replica == "") == (t.Database == "") {
		return fail.Usagef("name a replica or a database")
	}
	return nil
}

type suspend struct{ target }

func (d suspend) action() (ddl.Action, error) {
	return ddl.Suspend{Server: d.Replica, Database: d.Database}, d.one()
}

type resume struct{ target }

func (d resume) action() (ddl.Action, error) {
	return ddl.Resume{Server: d.Replica, Database: d.Database}, d.one()
}

type maintenance struct {
	plain
	On      *bool     `json:"on"`
	Replica string    `json:"replica"` // "": of the group
	Until   time.Time `json:"until"`
	Reason  string    `json:"reason"`
}

func (d maintenance) action() (ddl.Action, error) {
	value := "OFF"
	switch {
	case d.On == nil:
		return nil, fail.Usagef("on is missing")
	case !*d.On && (d.Reason != "" || !d.Until.IsZero()):
		return nil, fail.Usagef("until and reason are of maintenance that is on")
	case len(d.Reason) > 200, strings.ContainsAny(d.Reason, "\n\r\t"), strings.HasPrefix(d.Reason, "until "), strings.EqualFold(d.Reason, "ON"), strings.EqualFold(d.Reason, "OFF"):
		return nil, fail.Usagef("reason is one line of at most 200 bytes that is not ON or OFF and does not begin with until")
	case *d.On && d.Reason == "" && d.Until.IsZero():
		value = "ON"
	case *d.On && d.Until.IsZero():
		value = d.Reason
	case *d.On:
		value = ag.Maintenance{Until: d.Until.Round(time.Second), Reason: d.Reason}.String()
	}
	if d.Replica == "" {
		s, err := ddl.NewSetting(ddl.InGroup, "MAINTENANCE", value)
		return ddl.Set{Options: []ddl.Setting{s}}, err
	}
	s, err := ddl.NewSetting(ddl.InReplica, "MAINTENANCE", value)
	return ddl.ModifyReplica{Replicas: []ddl.Replica{{Server: d.Replica, Options: []ddl.Setting{s}}}}, err
}

// values are options by their names. A value is a text, a number, or true and false for ON and OFF.
type values map[string]any

func (v values) settings(place ddl.Place) (out []ddl.Setting, err error) {
	for _, name := range slices.Sorted(maps.Keys(v)) {
		text := ""
		switch x := v[name].(type) {
		case string:
			text = x
		case json.Number:
			text = x.String()
		case bool:
			text = map[bool]string{true: "ON", false: "OFF"}[x]
		default:
			return nil, fail.Usagef("%s: a value is a text, a number, true or false", name)
		}
		s, err := ddl.NewSetting(place, name, text)
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

type options struct {
	plain
	Replica   string `json:"replica"` // "": of the group
	Options   values `json:"options"`
	Secondary values `json:"secondary_role"`
	Primary   values `json:"primary_role"`
}

func (d options) action() (ddl.Action, error) {
	if len(d.Options)+len(d.Secondary)+len(d.Primary) == 0 || d.Replica == "" && len(d.Options) == 0 {
		return nil, fail.Usagef("options is missing")
	}
	if d.Replica == "" {
		if len(d.Secondary)+len(d.Primary) > 0 {
			return nil, fail.Usagef("secondary_role and primary_role are of a replica, and none is named")
		}
		list, err := d.Options.settings(ddl.InGroup)
		return ddl.Set{Options: list}, err
	}
	r, err := replicaWith(d.Replica, d.Options, d.Secondary, d.Primary)
	return ddl.ModifyReplica{Replicas: []ddl.Replica{r}}, err
}

type routing struct {
	plain
	Replica string `json:"replica"`
	List    any    `json:"list"` // sets of names, in their order; or NONE or DEFAULT
}

func (d routing) action() (ddl.Action, error) {
	if err := needs("replica", d.Replica); err != nil {
		return nil, err
	}
	s, err := d.setting()
	return ddl.ModifyReplica{Replicas: []ddl.Replica{{Server: d.Replica, Primary: []ddl.Setting{s}}}}, err
}

func (d routing) setting() (ddl.Setting, error) {
	bad := fail.Usagef(`list is "NONE", "DEFAULT" or sets of replicas in their order, such as [["n2","n3"],["n1"]]`)
	word, isWord := d.List.(string)
	if isWord && (word == "NONE" || word == "DEFAULT") {
		return ddl.NewSetting(ddl.InPrimary, "READ_ONLY_ROUTING_LIST", word)
	}
	entries, ok := d.List.([]any)
	if !ok || len(entries) == 0 {
		return ddl.Setting{}, bad
	}
	var list [][]string
	for _, e := range entries {
		names, ok := e.([]any)
		if !ok || len(names) == 0 {
			return ddl.Setting{}, bad
		}
		var set []string
		for _, n := range names {
			name, ok := n.(string)
			if !ok {
				return ddl.Setting{}, bad
			}
			set = append(set, name)
		}
		list = append(list, set)
	}
	return ddl.NewRoutes(list), nil
}

type seed struct {
	plain
	Replica string `json:"replica"`
}

func (d seed) action() (ddl.Action, error) {
	return ddl.Seed{Server: d.Replica}, needs("replica", d.Replica)
}

type cancelSeed struct{ seed }

func (d cancelSeed) action() (ddl.Action, error) {
	return ddl.CancelSeeding{Server: d.Replica}, needs("replica", d.Replica)
}

type remove struct {
	Replica string `json:"replica"`
	Confirm string `json:"confirm"`
}

func (d remove) action() (ddl.Action, error) {
	if d.Confirm != d.Replica {
		return nil, fail.Refusedf("the removal of a replica has its name in confirm, too")
	}
	return ddl.RemoveReplica{Servers: []string{d.Replica}}, needs("replica", d.Replica)
}

func (d remove) terms() Request { return Request{Risky: true} }
