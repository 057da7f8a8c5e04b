package settings

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/ag"
)

// Sync is a value of synchronous_standby_names. With the zero value commits wait for no secondary.
type Sync struct {
	Names []string // application names, see Application
	Num   int      // how many of them a commit waits for
	First bool     // FIRST (by order) instead of ANY
}

// Equal reports whether both settings mean the same.
func (s Sync) Equal(t Sync) bool {
	if s.Num == 0 || t.Num == 0 {
		return s.Num == t.Num
	}
	a, b := s.Names, t.Names
	if !s.First { // for ANY the order means nothing
		a, b = slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b))
	}
	return s.First == t.First && s.Num == t.Num && slices.Equal(a, b)
}

// String prints the setting as PostgreSQL reads it: ANY 1 ("cot_n1_7","cot_n2_7"), or nothing when Num is 0.
func (s Sync) String() string {
	if s.Num == 0 {
		return ""
	}
	method := "ANY"
	if s.First {
		method = "FIRST"
	}
	quoted := make([]string, len(s.Names))
	for k, n := range s.Names {
		quoted[k] = pgx.Identifier{n}.Sanitize()
	}
	return fmt.Sprintf("%s %d (%s)", method, s.Num, strings.Join(quoted, ","))
}

// ParseSync reads PostgreSQL's grammar of synchronous_standby_names: ”, a, b (FIRST 1), n (a, b) (FIRST n),
// FIRST n (a, b), ANY n (a, b).
func ParseSync(value string) (Sync, error) {
	tokens, err := syncTokens(value)
	if err != nil {
		return Sync{}, fmt.Errorf("synchronous_standby_names %.200q: %w", value, err)
	}
	if len(tokens) == 0 {
		return Sync{}, nil
	}
	s := Sync{Num: 1, First: true}
	if open := slices.IndexFunc(tokens, func(t syncToken) bool { return t.is("(") }); open >= 0 {
		if s, err = parseSyncMethod(tokens[:open]); err != nil {
			return Sync{}, fmt.Errorf("synchronous_standby_names %.200q: %w", value, err)
		}
		if !tokens[len(tokens)-1].is(")") {
			return Sync{}, fmt.Errorf("synchronous_standby_names %.200q: no closing parenthesis at the end", value)
		}
		tokens = tokens[open+1 : len(tokens)-1]
	}
	for k, t := range tokens {
		if comma := k%2 == 1; comma != t.is(",") || !comma && t.punct {
			return Sync{}, fmt.Errorf("synchronous_standby_names %.200q: unexpected %q", value, t.text)
		}
		if !t.punct {
			s.Names = append(s.Names, t.text)
		}
	}
	if len(tokens)%2 == 0 {
		return Sync{}, fmt.Errorf("synchronous_standby_names %.200q: a name is missing", value)
	}
	return s, nil
}

func parseSyncMethod(tokens []syncToken) (Sync, error) {
	s := Sync{First: true}
	if len(tokens) == 2 && !tokens[0].quoted {
		switch strings.ToUpper(tokens[0].text) {
		case "FIRST":
		case "ANY":
			s.First = false
		default:
			return Sync{}, fmt.Errorf("unknown method %q", tokens[0].text)
		}
		tokens = tokens[1:]
	}
	if len(tokens) != 1 || tokens[0].quoted {
		return Sync{}, errors.New("a number is expected before the list")
	}
	n, err := strconv.Atoi(tokens[0].text)
	if err != nil || n <= 0 {
		return Sync{}, fmt.Errorf("%q is not a number of secondaries", tokens[0].text)
	}
	s.Num = n
	return s, nil
}

type syncToken struct {
	text   string
	punct  bool // one of ( ) ,
	quoted bool
}

func (t syncToken) is(p string) bool { return t.punct && t.text == p }

func syncTokens(s string) ([]syncToken, error) {
	if strings.IndexByte(s, 0) >= 0 {
		return nil, errors.New("a setting has no zero bytes")
	}
	var tokens []syncToken
	for k := 0; k < len(s); {
		switch c := s[k]; {
		case strings.IndexByte(" \t\n\r\f\v", c) >= 0:
			k++
		case strings.IndexByte("(),", c) >= 0:
			tokens = append(tokens, syncToken{text: string(c), punct: true})
			k++
		case c == '"':
			text, n, ok := quotedName(s[k:])
			if !ok {
				return nil, errors.New("a quoted name does not end")
			}
			tokens = append(tokens, syncToken{text: text, quoted: true})
			k += n
		default:
			end := k
			for end < len(s) && strings.IndexByte(" \t\n\r\f\v(),\"", s[end]) < 0 {
				end++
			}
			tokens = append(tokens, syncToken{text: s[k:end]})
			k = end
		}
	}
	return tokens, nil
}

// quotedName reads a name in double quotes at the start of s and returns how many bytes it took.
func quotedName(s string) (name string, n int, ok bool) {
	var b strings.Builder
	for k := 1; k < len(s); k++ {
		switch {
		case s[k] != '"':
			b.WriteByte(s[k])
		case k+1 < len(s) && s[k+1] == '"':
			b.WriteByte('"')
			k++
		default:
			return b.String(), k + 1, true
		}
	}
	return "", 0, false
}

// ApplicationPrefix begins the application_name of every member's walreceiver.
const ApplicationPrefix = "cot_"

// Application is the application_name that the primary's agent gives a member's walsender in an epoch:
// cot_<member>_<epoch>.
func Application(member ag.ReplicaID, epoch ag.Epoch) string {
	return fmt.Sprintf("%s%s_%d", ApplicationPrefix, member, epoch)
}

// ParseApplication is the inverse of Application and ignores case, as PostgreSQL does when it compares such names.
func ParseApplication(name string) (member ag.ReplicaID, epoch ag.Epoch, ok bool) {
	name = strings.ToLower(name)
	rest, ok := strings.CutPrefix(name, ApplicationPrefix)
	cut := strings.LastIndexByte(rest, '_')
	if !ok || cut <= 0 {
		return "", 0, false
	}
	e, err := strconv.ParseUint(rest[cut+1:], 10, 64)
	if err != nil || strconv.FormatUint(e, 10) != rest[cut+1:] {
		return "", 0, false
	}
	return ag.ReplicaID(rest[:cut]), ag.Epoch(e), true
}

// SlotName is the name of the physical slot of a member.
func SlotName(member ag.ReplicaID) string { return ApplicationPrefix + string(member) }

// SeedSlotPrefix begins the names of the slots of seeding windows, which EnsureSlots does not drop.
const SeedSlotPrefix = "cot_seed_"
