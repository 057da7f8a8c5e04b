package console

import (
	"context"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"

	"github.com/coteriedb/coterie/internal/admin/batch"
)

// Limits of a message of RAISERROR, in characters: a longer one is cut, as in SQL Server, and says so.
const (
	maxRaised = 2047
	cutRaised = 2044
)

// raise answers with a notice up to the severity 10, and with an error above.
func (x *script) raise(ctx context.Context, st batch.Statement) error {
	said, kind, err := x.value(ctx, st.Text)
	switch {
	case err != nil:
		return err
	case isWhole(kind):
		return Errorf("0A000", "RAISERROR with the number of a message is not supported in the console").WithHint("write the message itself: there is no sys.messages")
	}
	var values []substitute
	for i, v := range st.Values {
		value, kind, err := x.value(ctx, v)
		if err != nil {
			return err
		}
		if value != nil && kind != Text && !isWhole(kind) {
			return Errorf("22023", "the value %d of RAISERROR is neither a text nor a whole number", i+1).WithHint("CAST it to varchar or int")
		}
		values = append(values, substitute{value, isWhole(kind)})
	}
	text := ""
	if said != nil {
		if text, err = message(fmt.Sprint(said), values); err != nil {
			return err
		}
	}
	severity, err := x.whole(ctx, st.Severity)
	if err != nil {
		return err
	}
	state, err := x.whole(ctx, st.State)
	if err != nil {
		return err
	}
	return x.raised(st, text, severity, state)
}

// raised answers with a message of that severity and state.
func (x *script) raised(st batch.Statement, text string, severity, state *int64) error {
	switch {
	case severity == nil || state == nil:
		return Errorf("22023", "the severity and the state of RAISERROR must not be NULL")
	case *state > 255:
		return Errorf("22023", "the state of RAISERROR is at most 255")
	case *severity > 18 && !st.Logged:
		e := Errorf("42501", "error severity levels greater than 18 need WITH LOG, and are for administrators")
		e.Number = 2754
		return e
	case *severity > 19:
		return Errorf("0A000", "RAISERROR with a severity above 19 is not supported in the console").WithHint("in SQL Server it ends the session: use 16, and RETURN")
	case *severity > 10:
		if *state < 0 {
			*state = 1
		}
		return &failure{err: Errorf("P0001", "%s", text), number: raisedNumber, severity: *severity, state: *state}
	}
	x.s.counts(0, 0)
	if st.Sets {
		x.s.counts(raisedNumber, 0)
	}
	x.tell(Result{Tag: "RAISERROR", Notices: []Notice{{"NOTICE", text}}})
	return nil
}

// value returns the query of an expression as it is.
func value(expression string) string { return "SELECT (" + expression + ")" }

// value returns an expression, and the type that a client gets it in.
func (x *script) value(ctx context.Context, expression string) (any, Type, error) {
	to := &lastRow{columns: 1}
	if _, err := x.s.run(ctx, value(expression), nil, to); err != nil {
		return nil, 0, err
	}
	if to.rows == 0 {
		return nil, to.types[0].Type, nil
	}
	return to.values[0], to.types[0].Type, nil
}

func isWhole(t Type) bool { return t == Int8 || t == Int4 }

// substitute is a value for a place in a message.
type substitute struct {
	value any
	whole bool
}

// place is a percent sign in a message, and what may follow it: flags, width, precision, size and type.
var place = regexp.MustCompile(`%(?:(%)|([-+ #0]*)(\*|[0-9]*)(?:\.(\*|[0-9]*))?(h|l|I64)?([diouxXs]))?`)

// message returns the text of RAISERROR with the values in their places. A place without a value, and a value without
// a place, is an error.
func message(text string, values []substitute) (string, error) {
	var out strings.Builder
	next := 0
	take := func() (substitute, error) {
		if next++; next > len(values) {
			return substitute{}, Errorf("22023", "the message of RAISERROR has more places than values, of which there are %d", len(values)).WithHint("%% stands for a percent sign")
		}
		return values[next-1], nil
	}
	for text != "" {
		at := place.FindStringSubmatchIndex(text)
		if at == nil {
			break
		}
		part := func(i int) (string, bool) {
			if at[2*i] < 0 {
				return "", false
			}
			return text[at[2*i]:at[2*i+1]], true
		}
		out.WriteString(text[:at[0]])
		if _, percent := part(1); percent {
			out.WriteByte('%')
		} else if err := substituted(&out, part, take); err != nil {
			return "", err
		}
		text = text[at[1]:]
	}
	out.WriteString(text)
	if next < len(values) {
		return "", Errorf("22023", "RAISERROR has %d values, and its message has %d places", len(values), next)
	}
	return cut(out.String()), nil
}

// cut returns a message that is not longer than those of SQL Server.
func cut(text string) string {
	if r := []rune(text); len(r) > maxRaised {
		return string(r[:cutRaised]) + "..."
	}
	return text
}

// substituted writes the value of one place.
func substituted(out *strings.Builder, part func(int) (string, bool), take func() (substitute, error)) error {
	verb, ok := part(6)
	if !ok {
		return Errorf("22023", "the message of RAISERROR has a percent sign that begins no place for a value").WithHint("%% stands for a percent sign")
	}
	flags, _ := part(2)
	width, err := measure(part, 3, take)
	if err != nil {
		return err
	}
	precision, err := measure(part, 4, take)
	if err != nil {
		return err
	}
	v, err := take()
	if err != nil {
		return err
	}
	if v.value == nil {
		out.WriteString("(null)")
		return nil
	}
	size, _ := part(5)
	if size == "h" {
		return Errorf("0A000", "RAISERROR with %%h%s is not supported in the console", verb).WithHint("%d takes every int, and %I64d every bigint")
	}
	if v.whole != (verb != "s") {
		return Errorf("22023", "a value of RAISERROR is not of the type that its place %%%s expects", verb).WithHint("%s takes a text, and %d a whole number: CAST it")
	}
	if verb == "s" {
		_, err = fmt.Fprintf(out, layout(only(flags, "-"), width, precision)+"s", v.value)
		return err
	}
	n, _ := v.value.(int64)
	text, err := number(flags, layout("", width, precision), size+verb, n)
	out.WriteString(text)
	return err
}

// measure returns a width or a precision as a layout has it: as digits, "" if there is none.
func measure(part func(int) (string, bool), i int, take func() (substitute, error)) (string, error) {
	text, ok := part(i)
	if !ok || i == 3 && text == "" {
		return "", nil
	}
	if text == "*" {
		v, err := take()
		if err != nil {
			return "", err
		}
		if text = fmt.Sprint(v.value); !v.whole || v.value == nil {
			text = "no number"
		}
	}
	n, err := strconv.Atoi("0" + text)
	if err != nil || n > maxRaised {
		return "", Errorf("22023", "a width or a precision in the message of RAISERROR is %.20s, and not a number from 0 to %d", text, maxRaised)
	}
	return strconv.Itoa(n), nil
}

// layout returns the beginning of a format of package fmt.
func layout(flags, width, precision string) string {
	if precision != "" {
		precision = "." + precision
	}
	return "%" + flags + width + precision
}

// only returns those of the flags that are allowed.
func only(flags, allowed string) string {
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune(allowed, r) {
			return r
		}
		return -1
	}, flags)
}

// number returns a whole number as its place wants it. A place without I64 is for an int, and the types without a sign
// show the bits.
func number(flags, rest, verb string, n int64) (string, error) {
	verb, large := strings.CutPrefix(strings.TrimPrefix(verb, "l"), "I64")
	if !large && (n < math.MinInt32 || n > math.MaxInt32) {
		return "", Errorf("22023", "the value %d of RAISERROR is beyond an int, which its place expects", n).WithHint("%I64d is the place of a bigint")
	}
	if strings.Contains(flags, "-") {
		flags = only(flags, "-+ #")
	}
	var shown any = n
	switch {
	case verb == "d" || verb == "i":
		verb, flags = "d", only(flags, "-+ 0")
	case large:
		shown = uint64(n)
	default:
		shown = uint32(int32(n))
	}
	if verb == "u" {
		verb, flags = "d", only(flags, "-0")
	} else if verb != "d" {
		if flags = only(flags, "-0#"); n == 0 {
			flags = only(flags, "-0")
		}
	}
	return fmt.Sprintf("%"+flags+strings.TrimPrefix(rest, "%")+verb, shown), nil
}
