package hba

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/coteriedb/coterie/internal/lib/regular"
)

// maxRules is the longest rules file that is read, in bytes.
const maxRules = 1 << 20

// ConnType is the first field of a rule.
type ConnType string

// The connection types of pg_hba.conf. No client is ever GSS-encrypted here.
const (
	TypeLocal        ConnType = "local"
	TypeHost         ConnType = "host"
	TypeHostSSL      ConnType = "hostssl"
	TypeHostNoSSL    ConnType = "hostnossl"
	TypeHostGSSEnc   ConnType = "hostgssenc"
	TypeHostNoGSSEnc ConnType = "hostnogssenc"
)

// Method is how a client proves who it is.
type Method string

// The methods that the listener can check.
const (
	MethodSCRAM  Method = "scram-sha-256"
	MethodMD5    Method = "md5"
	MethodCert   Method = "cert"
	MethodTrust  Method = "trust"
	MethodReject Method = "reject"
	MethodPeer   Method = "peer"
)

// Name is a database or user field of a rule. A quoted keyword is a plain name.
type Name struct {
	Text   string
	Quoted bool
	Match  *Pattern // of a name that begins with a slash
}

func (n Name) keyword(word string) bool { return !n.Quoted && n.Text == word }

// role returns the role whose members +role means.
func (n Name) role() (string, bool) {
	if n.Quoted {
		return "", false
	}
	return strings.CutPrefix(n.Text, "+")
}

// file returns the file that @file means.
func (n Name) file() (string, bool) {
	if n.Quoted || len(n.Text) < 2 {
		return "", false
	}
	return strings.CutPrefix(n.Text, "@")
}

// is reports whether the name matches a database or user.
func (n Name) is(text string) bool {
	if n.Match != nil {
		return n.Match.Matches(text)
	}
	return n.Text == text
}

// Rule is one line of pg_hba.conf.
type Rule struct {
	Line       int // line number in its file; 0 for a default rule
	Type       ConnType
	Databases  []Name
	Users      []Name
	Address    netip.Prefix // of a host rule; zero with AnyAddress, SameHost or SameNet
	AnyAddress bool         // all
	SameHost   bool         // an address of this machine
	SameNet    bool         // an address in a network of this machine
	Method     Method
	ClientCert string // "", "verify-ca" or "verify-full": demanded in addition to the method
}

// Pattern returns the first name of the rule that is a regular expression; "" if there is none.
func (r *Rule) Pattern() string {
	for _, n := range slices.Concat(r.Databases, r.Users) {
		if n.Match != nil {
			return n.Text
		}
	}
	return ""
}

// AskForCertificates reports whether a rule requires a client certificate.
func AskForCertificates(rules []Rule) bool {
	return slices.ContainsFunc(rules, func(r Rule) bool { return r.Method == MethodCert || r.ClientCert != "" })
}

// DefaultRules admit every role to every database: the operating system's user of the same name on a Unix socket, and
// scram-sha-256 from anywhere else, with tlsOnly over TLS only.
func DefaultRules(tlsOnly bool) []Rule {
	r := Rule{Type: TypeHost, Databases: []Name{{Text: "all"}}, Users: []Name{{Text: "all"}}, AnyAddress: true, Method: MethodSCRAM}
	if tlsOnly {
		r.Type = TypeHostSSL
	}
	peer := Rule{Type: TypeLocal, Databases: r.Databases, Users: r.Users, Method: MethodPeer}
	return []Rule{peer, r}
}

// OverTLS returns the rules behind one that refuses every client of the network without TLS.
func OverTLS(rules []Rule) []Rule {
	refuse := Rule{Type: TypeHostNoSSL, Databases: []Name{{Text: "all"}, {Text: "replication"}}, Users: []Name{{Text: "all"}}, AnyAddress: true, Method: MethodReject}
	return append([]Rule{refuse}, rules...)
}

// Parse reads rules in the newest grammar of pg_hba.conf. Every line that the listener cannot honour exactly is an
// error that names the line; no line is skipped. The error joins those of all lines. Lists in files (@file) are an
// error, and so is a text without rules.
func Parse(r io.Reader) ([]Rule, error) { return parse(r, nil) }

// ParseFile is Parse for a file. Lists in files are looked for beside it.
func ParseFile(path string) ([]Rule, error) {
	f, err := regular.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read rules: %w", err)
	}
	defer func() { _ = f.Close() }()
	return parse(f, func(name string) ([]Name, error) {
		if !filepath.IsAbs(name) {
			name = filepath.Join(filepath.Dir(path), name)
		}
		return listFile(name)
	})
}

// ErrNoRule means that a text has no rule. PostgreSQL does not start with such a file.
var ErrNoRule = errors.New("there is no rule: nobody would be admitted")

// listed reads the names of a list in a file; nil: there are no such lists.
type listed func(name string) ([]Name, error)

func parse(r io.Reader, files listed) ([]Rule, error) {
	text, err := readAll(r)
	if err != nil {
		return nil, fmt.Errorf("read rules: %w", err)
	}
	var rules []Rule
	var bad []error
	for _, line := range judge(text, files) {
		rules = append(rules, line.Rule)
		if line.Err != nil {
			bad = append(bad, fmt.Errorf("line %d: %w", line.Number, line.Err))
		}
	}
	switch {
	case len(bad) > 0:
		return nil, errors.Join(bad...)
	case len(rules) == 0:
		return nil, ErrNoRule
	}
	return rules, nil
}

// Line is a line of a file of rules that is not empty, with those that continue it.
type Line struct {
	Number int    // of the first of them
	Text   string // without their ends
	Rule   Rule
	Err    error // why there is no such rule here; nil: there is
}

// Lines judges each line of a text as Parse does.
func Lines(text string) []Line { return judge(text, nil) }

func judge(text string, files listed) (out []Line) {
	for number, text := range joined(text) {
		line := Line{Number: number, Text: text}
		fields, err := splitFields(text)
		if err == nil && len(fields) == 0 {
			continue
		}
		if err == nil {
			line.Rule, err = parseRule(fields, files)
			line.Rule.Line = number
		}
		line.Err = err
		out = append(out, line)
	}
	return out
}

func parseRule(fields [][]Name, files listed) (Rule, error) {
	var r Rule
	if isInclude(fields) {
		return r, fmt.Errorf("%s is not supported: put the rules of that file here", fields[0][0].Text)
	}
	kind, err := single(fields, 0, "connection type")
	if err != nil {
		return r, err
	}
	r.Type = ConnType(kind)
	switch r.Type {
	case TypeLocal, TypeHost, TypeHostSSL, TypeHostNoSSL, TypeHostGSSEnc, TypeHostNoGSSEnc:
	default:
		return r, fmt.Errorf("unknown connection type %q", kind)
	}
	if len(fields) < 3 {
		return r, errors.New("a rule needs type, database, user, address (except local) and method")
	}
	if r.Databases, err = nameList(fields[1], "database", files); err != nil {
		return r, err
	}
	if r.Users, err = nameList(fields[2], "user", files); err != nil {
		return r, err
	}
	next := 3
	if r.Type != TypeLocal {
		if next, err = r.parseAddress(fields, next); err != nil {
			return r, err
		}
	}
	method, err := single(fields, next, "method")
	if err != nil {
		return r, err
	}
	if err := r.setMethod(method); err != nil {
		return r, err
	}
	return r, r.parseOptions(fields[next+1:])
}

// single returns a field that may not be a list.
func single(fields [][]Name, i int, what string) (string, error) {
	if i >= len(fields) {
		return "", fmt.Errorf("the %s is missing", what)
	}
	if len(fields[i]) != 1 {
		return "", fmt.Errorf("the %s may not be a list", what)
	}
	if file, isFile := fields[i][0].file(); isFile {
		return "", fmt.Errorf("the %s may not come from a file, as @%s: write it", what, file)
	}
	return fields[i][0].Text, nil
}

// nameList checks the names of a field, and replaces files by the names in them.
func nameList(names []Name, what string, files listed) (out []Name, err error) {
	for _, n := range names {
		file, isFile := n.file()
		switch {
		case n.Text == "", n.Text == "+" && !n.Quoted:
			return nil, fmt.Errorf("empty %s name", what)
		case isFile && files == nil:
			return nil, fmt.Errorf("%s %s: lists in files are not supported here: write the names", what, n.Text)
		case isFile:
			more, err := files(file)
			if err == nil {
				more, err = nameList(more, what, nil)
			}
			if err != nil {
				return nil, fmt.Errorf("%s %s: %w", what, n.Text, err)
			}
			out = append(out, more...)
			continue
		case strings.HasPrefix(n.Text, "/"): // quoted or not
			if n.Match, err = compile(n.Text[1:]); err != nil {
				return nil, fmt.Errorf("%s %s: %w", what, n.Text, err)
			}
		case what == "database" && strings.HasPrefix(n.Text, "+") && !n.Quoted:
			return nil, fmt.Errorf("database %s: roles have members, databases have none", n.Text)
		}
		out = append(out, n)
	}
	return out, nil
}

// parseAddress reads the address field, and the mask if there is a separate one. It returns the index of the next
// field.
func (r *Rule) parseAddress(fields [][]Name, i int) (int, error) {
	text, err := single(fields, i, "address")
	if err != nil {
		return i, err
	}
	switch {
	case fields[i][0].keyword("all"):
		r.AnyAddress = true
		return i + 1, nil
	case fields[i][0].keyword("samehost"):
		r.SameHost = true
		return i + 1, nil
	case fields[i][0].keyword("samenet"):
		r.SameNet = true
		return i + 1, nil
	}
	if strings.Contains(text, "/") {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return i, fmt.Errorf("address %q: not of the form address/bits", text)
		}
		r.Address = p.Masked()
		return i + 1, nil
	}
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return i, fmt.Errorf("address %q: host names are not supported here: write the address", text)
	}
	mask, err := single(fields, i+1, "mask")
	if err != nil {
		return i, err
	}
	if addr.Zone() != "" {
		return i, fmt.Errorf("address %q: a zone (%%) decides nothing: write the address without it", text)
	}
	bits, ok := maskBits(mask, addr.BitLen())
	if !ok {
		return i, fmt.Errorf("mask %q does not fit the address %s, or is not a run of ones", mask, addr)
	}
	r.Address = netip.PrefixFrom(addr, bits).Masked()
	return i + 2, nil
}

func maskBits(mask string, length int) (int, bool) {
	addr, err := netip.ParseAddr(mask)
	if err != nil || addr.BitLen() != length || addr.Zone() != "" {
		return 0, false
	}
	ones, size := net.IPMask(addr.AsSlice()).Size()
	return ones, size != 0
}

func (r *Rule) setMethod(method string) error {
	r.Method = Method(method)
	switch r.Method {
	case MethodSCRAM, MethodMD5, MethodTrust, MethodReject:
		return nil
	case MethodCert:
		if r.Type != TypeHostSSL {
			return errors.New("cert authentication is only supported on hostssl connections")
		}
		r.ClientCert = "verify-full"
		return nil
	case MethodPeer, "ident":
		if r.Type != TypeLocal {
			return fmt.Errorf("%s cannot be checked over the network: use scram-sha-256", method)
		}
		r.Method = MethodPeer // as PostgreSQL reads ident on a local line
		return nil
	case "gss", "sspi", "ldap", "pam", "radius", "bsd", "oauth", "password":
		return fmt.Errorf("method %s cannot be checked by the listener: use scram-sha-256 or cert", method)
	}
	return fmt.Errorf("unknown method %q", method)
}

func (r *Rule) parseOptions(fields [][]Name) error {
	for _, f := range fields {
		if len(f) != 1 {
			return errors.New("an option may not be a list")
		}
		name, value, _ := strings.Cut(f[0].Text, "=")
		if name != "clientcert" {
			return fmt.Errorf("option %q is not supported here", f[0].Text)
		}
		if r.Type != TypeHostSSL {
			return errors.New("clientcert can only be configured for hostssl rows")
		}
		if value != "verify-ca" && value != "verify-full" {
			return fmt.Errorf("clientcert=%s: only verify-ca and verify-full are known", value)
		}
		if r.Method != MethodCert {
			r.ClientCert = value
		} else if value != "verify-full" {
			return errors.New("the cert method always verifies in full")
		}
	}
	return nil
}

// NeedsRole reports whether the method is decided by facts about the role.
func (r *Rule) NeedsRole() bool { return r.Method == MethodSCRAM || r.Method == MethodMD5 }
