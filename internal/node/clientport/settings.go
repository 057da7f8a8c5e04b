package clientport

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"github.com/coteriedb/coterie/internal/admin/catalog"
	"github.com/coteriedb/coterie/internal/lib/regular"
	"github.com/coteriedb/coterie/internal/listener/hba"
)

// counted returns a number of rules.
func counted(n int) string {
	if n == 1 {
		return "1 rule"
	}
	return fmt.Sprintf("%d rules", n)
}

// Settings returns what decides on this node who is admitted, as settings that can be compared with another node's: the
// rules in force and, of coterie.yaml, tls_only and the files of client certificates. None where this node serves no
// clients. The names have the prefix coterie and a dot, which no setting of PostgreSQL has.
func (p *Port) Settings() []catalog.Setting {
	j := p.files.judges.Load()
	if j == nil || !p.Serves() {
		return nil
	}
	out := []catalog.Setting{
		{Name: "coterie.hba", Value: counted(j.written) + ", " + j.digest, Source: j.source},
		{Name: "coterie.tls_only", Value: map[bool]string{true: "on", false: "off"}[p.c.Node.TLSOnly], Source: "coterie.yaml"},
	}
	for _, f := range []struct{ name, path string }{{"coterie.client_ca", p.c.Node.ClientCA}, {"coterie.client_crl", p.c.Node.ClientCRL}} {
		s := catalog.Setting{Name: f.name, Value: "none", Source: "coterie.yaml"}
		if f.path != "" {
			s.Value, s.Source = digestOf(f.path), f.path
		}
		out = append(out, s)
	}
	return out
}

// JudgeRules returns an error if no listener could honour rules of a group, which names the lines. Rules that let
// nobody in from the network are no error, since a node's own user is admitted by the management socket: warnings tell
// of them.
func (*Port) JudgeRules(text string, from []netip.Addr) (warnings []string, err error) {
	rules, err := hba.Parse(strings.NewReader(text))
	if err != nil {
		return nil, err
	}
	switch admitted := func(a netip.Addr) bool { return hba.AdmitsFrom(rules, a) }; {
	case !hba.Admits(rules):
		warnings = append(warnings, "these rules admit nobody from the network; RESET HBA takes them back, also by coterie sql on a node")
	case len(from) > 0 && !slices.ContainsFunc(from, admitted):
		warnings = append(warnings, fmt.Sprintf("these rules admit no address from which a session or a member comes now, such as %s; RESET HBA takes them back, also by coterie sql on a node", from[0]))
	}
	if hba.AskForCertificates(rules) {
		warnings = append(warnings, "rules that ask for a client's certificate let nobody in on a node whose coterie.yaml names no client_ca")
	}
	return warnings, nil
}

// maxCompared bounds what is read of a file to compare it.
const maxCompared = 16 << 20

// digestOf returns a short text that files with the same bytes share.
func digestOf(path string) string {
	f, err := regular.Open(path)
	if err != nil {
		return "cannot be read"
	}
	defer func() { _ = f.Close() }()
	h := sha256.New()
	if _, err := io.Copy(h, io.LimitReader(f, maxCompared)); err != nil {
		return "cannot be read"
	}
	return hex.EncodeToString(h.Sum(nil)[:6])
}
