package ddl

import (
	"slices"
	"strings"

	"github.com/coteriedb/coterie/internal/ag"
)

// Place is where an option is written.
type Place string

// The places of options.
const (
	InGroup     Place = "GROUP"
	InReplica   Place = "REPLICA"
	InSecondary Place = "SECONDARY_ROLE"
	InPrimary   Place = "PRIMARY_ROLE"
)

// Verdict is what becomes of an option.
type Verdict string

// The verdicts. NotYet is recorded and has no effect until its engine is there; NoEffect is accepted because it is common, and means
// nothing here, for the reason given; Refused is an error, for the reason given.
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
	Words    []string // of Form Word: what it may be; of Number: words beside numbers
	Min, Max int64    // of Form Number
	Unit     string
	Default  string
	Verdict  Verdict
	Why      string // of NoEffect and Refused; of others a remark
	About    string // for the reference, one sentence
	OnlyNew  bool   // only in CREATE

	set func(*change, Value) *Error
	get func(ag.Group, ag.Replica) (Value, bool) // nil: it is nowhere to be read
}

// change is what an option is applied to.
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

// Options returns every option of the language, in the order of the reference.
func Options() []Option { return slices.Clone(options) }

func findOption(place Place, name string) (Option, bool) {
	i := slices.IndexFunc(options, func(o Option) bool { return o.Place == place && strings.EqualFold(o.Name, name) })
	if i < 0 {
		return Option{}, false
	}
	return options[i], true
}

// names lists the options of a place, for an error.
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
