package posture

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/check"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lib/unixuser"
	"github.com/coteriedb/coterie/internal/listener/clientcert"
	"github.com/coteriedb/coterie/internal/listener/hba"
)

// Find returns the findings about the node in dir. Without an agent, processes and roles are not checked.
func Find(ctx context.Context, dir string) ([]check.Finding, error) {
	l, err := config.NewLayout(dir)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(l.Dir, config.File)); errors.Is(err, os.ErrNotExist) {
		return []check.Finding{{Level: check.OK, What: "there is no node in " + l.Dir, Run: "coterie init or coterie join makes one; --node DIR names another directory"}}, nil
	}
	c, err := config.Load(l.Dir)
	if err != nil {
		return nil, err
	}
	out := append(judgePorts(l, c), judgeConsole(l, c)...)
	if c.Kind != "witness" { // it has no clients
		out = append(out, judgeRules(l, c)...)
	}
	out = append(out, judgeClientCertificates(c)...)
	out = append(out, judgeFiles(l)...)
	out = append(append(out, judgeHooks(l)...), judgeWebhooks(l, c)...)
	out = append(out, judgeKeys(l, c)...)
	s, err := api.NewClient(l.AgentSock(), l.Owner()).Status(ctx)
	var local *api.Process
	for _, r := range s.Replicas {
		if r.Local != nil {
			local = r.Local
		}
	}
	switch {
	case err == nil && local == nil && s.Availability.Removed:
		return append(out, failed("processes and roles", errors.New("this node is no member of its group any more"))), nil
	case errors.Is(err, api.ErrNoAgent):
		return append(out, failed("processes and roles", errors.New("no agent runs here; start it with coterie agent --node "+l.Dir))), nil
	case err != nil:
		return append(out, failed("processes and roles", fmt.Errorf("the agent did not answer: %w", err))), nil
	case local == nil:
		return append(out, failed("processes and roles", errors.New("the agent has only just started, and does not say yet"))), nil
	}
	out = append(out, judgeWitnesses(s)...)
	out = append(out, judgeConfiguration(s.Configuration))
	out = append(out, judgeRefusals("requests of operators", s.Requests)...)
	out = append(out, judgeRefusals("parts of the record", s.Record)...)
	out = append(out, judgeProcesses(local)...)
	if c.PostgreSQL == nil || local.Postgres == 0 {
		return out, nil
	}
	roles, err := findRoles(ctx, l, c.PostgreSQL.Superuser)
	if err != nil {
		return append(out, failed("roles", err)), nil
	}
	out = append(out, roles...)
	if c.HTTPS.Listen != "" {
		out = append(out, findConsoleLogins(ctx, l, c))
	}
	return out, nil
}

func ok(format string, args ...any) check.Finding {
	return check.Finding{Level: check.OK, What: fmt.Sprintf(format, args...)}
}

func failed(what string, err error) check.Finding {
	return check.Finding{Level: check.Failed, What: fmt.Sprintf("%s: not checked: %v", what, err)}
}

// judgePorts returns a finding for each port: where it is open, and to whom.
func judgePorts(l config.Layout, c config.Config) []check.Finding {
	out := []check.Finding{ok("endpoint %s: mutual TLS 1.3; a stranger may only try to join by a token", c.Endpoint.Listen)}
	for name, a := range map[string]config.Address{"read_write": c.ReadWrite, "read_only": c.ReadOnly} {
		addresses, _ := a.Places()
		if len(addresses) > 0 {
			out = append(out, ok("%s %s: open to clients that can log in", name, strings.Join(addresses, ", ")))
		}
	}
	switch addresses, _ := c.HTTP.Places(); {
	case len(addresses) == 0:
		out = append(out, ok("http: switched off"))
	case inner(addresses):
		out = append(out, ok("http %s: clear text, and bound to an inner address", strings.Join(addresses, ", ")))
	default:
		out = append(out, check.Finding{
			Level: check.Warning, What: fmt.Sprintf("http %s: status and metrics in clear text, without a login, to everybody who reaches it", strings.Join(addresses, ", ")),
			Why: "it tells the names, addresses and state of all members", Run: "set http.listen in coterie.yaml to an inner address such as 127.0.0.1:8008, or let a firewall admit the monitoring only; then coterie restart",
		})
	}
	if c.Kind == "witness" { // it has no clients
		return out
	}
	if tls := (check.Finding{
		Level: check.Warning, What: "clients may log in without TLS", Why: "what they ask and what is answered can be read on the network; the password cannot",
		Run: "set tls_only: true in coterie.yaml, and coterie restart; or have the rules for logins begin with hostssl: coterie hba set",
	}); !c.TLSOnly && !onlyTLS(l, c) {
		out = append(out, tls)
	} else {
		out = append(out, ok("clients need TLS"))
	}
	return out
}

// inner reports whether all addresses are of this machine or of a private network.
func inner(addresses []string) bool {
	for _, a := range addresses {
		host, _, err := net.SplitHostPort(a)
		ip := net.ParseIP(host)
		if err != nil || host != "localhost" && (ip == nil || !ip.IsLoopback() && !ip.IsPrivate() && !ip.IsLinkLocalUnicast()) {
			return false
		}
	}
	return true
}

// ofTheGroup is where the rules of a node are written that has none of its own.
const ofTheGroup = "the group's record"

// rules returns the rules of the listener as the agent reads them, and where they are written: in the node's own file,
// else in the record of the group, which has those of a cluster that was adopted.
func rules(l config.Layout, c config.Config) (all []hba.Rule, where string, err error) {
	if c.HBA != "" {
		all, err = hba.ParseFile(c.HBA)
		return all, c.HBA, err
	}
	var g ag.Group
	b, err := os.ReadFile(l.GroupFile())
	if err == nil {
		err = json.Unmarshal(b, &g)
	}
	switch {
	case err != nil && !errors.Is(err, os.ErrNotExist):
		return nil, ofTheGroup, err
	case g.HBA == "":
		return hba.DefaultRules(c.TLSOnly), ofTheGroup, nil
	}
	all, err = hba.Parse(strings.NewReader(g.HBA))
	return all, ofTheGroup, err
}

// onlyTLS reports whether no rule admits a client of the network without TLS.
func onlyTLS(l config.Layout, c config.Config) bool {
	all, _, err := rules(l, c)
	if err != nil {
		return false
	}
	for _, r := range all {
		if r.Type != hba.TypeLocal && r.Type != hba.TypeHostSSL && r.Method != hba.MethodReject {
			return false
		}
	}
	return true
}

// judgeRules returns the findings about the rules for clients.
func judgeRules(l config.Layout, c config.Config) (out []check.Finding) {
	all, where, err := rules(l, c)
	change := "use %s there, then coterie restart"
	if where == ofTheGroup {
		change = "use %s there: coterie hba show, and coterie hba set"
	}
	if err != nil {
		return []check.Finding{{
			Level: check.Problem, What: fmt.Sprintf("the rules in %s cannot be read: %v", where, err), Why: "an agent that starts with them admits nobody but the node's user, on a Unix socket",
			Run: "mend the file; the agent reads it again by itself",
		}}
	}
	certificates := false
	if c.ClientCA == "" && hba.AskForCertificates(all) {
		out = append(out, check.Finding{
			Level: check.Problem, What: fmt.Sprintf("rules in %s ask for a client's certificate, and coterie.yaml names no client_ca", where),
			Why: "they let nobody in here", Run: "set client_ca in coterie.yaml, then coterie restart; or coterie hba set with other rules",
		})
	}
	for _, r := range all {
		finding := func(level check.Level, why, instead string) check.Finding {
			return check.Finding{
				Level: level, What: fmt.Sprintf("line %d of %s uses %s", r.Line, where, r.Method), Why: "the rule " + why,
				Run: fmt.Sprintf(change, instead),
			}
		}
		certificates = certificates || r.Method == hba.MethodCert || r.ClientCert != ""
		switch {
		case r.Method == hba.MethodTrust && r.Type == hba.TypeLocal:
			out = append(out, finding(check.Warning, "admits every user of this machine as any role", "peer, or scram-sha-256"))
		case r.Method == hba.MethodTrust:
			out = append(out, finding(check.Problem, "admits everybody at its addresses without a password", "scram-sha-256"))
		case r.Method == hba.MethodMD5:
			out = append(out, finding(check.Warning, "accepts MD5, whose stored hash suffices for a login", "scram-sha-256"))
		}
	}
	if certificates && c.ClientCA != "" && c.ClientCRL == "" {
		out = append(out, check.Finding{
			Level: check.Warning, What: "client certificates are used, and no revocation list", Why: "a stolen certificate is good until it expires",
			Run: "set client_crl in coterie.yaml",
		})
	}
	if len(out) == 0 {
		out = append(out, ok("no rule for clients trusts, and none accepts MD5"))
	}
	return out
}

// judgeClientCertificates returns a finding for each file about client certificates that cannot be used.
func judgeClientCertificates(c config.Config) (out []check.Finding) {
	finding := func(setting, path string, err error) {
		out = append(out, check.Finding{
			Level: check.Problem, What: fmt.Sprintf("%s %s cannot be used: %v", setting, path, err),
			Why: "an agent that starts with it admits no client by its certificate", Run: "mend the file; the agent reads it again by itself",
		})
	}
	if c.ClientCA != "" {
		if _, err := clientcert.Authorities(c.ClientCA); err != nil {
			finding("client_ca", c.ClientCA, err)
		}
	}
	if c.ClientCRL != "" {
		if _, err := clientcert.Open(c.ClientCRL, nil); err != nil {
			finding("client_crl", c.ClientCRL, err)
		}
	}
	return out
}

// filesIn returns the paths of the files in a directory whose names have that end, and a finding if it cannot be read.
func filesIn(dir, end string) (found []string, bad []check.Finding) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		bad = []check.Finding{failed(dir, err)}
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), end) {
			found = append(found, filepath.Join(dir, e.Name()))
		}
	}
	return found, bad
}

// judgeFiles returns the findings about owners and modes of what is secret.
func judgeFiles(l config.Layout) []check.Finding {
	private := []string{l.Dir, l.PKI(), l.State(), l.Run, l.Backup(), filepath.Join(l.Dir, config.File)}
	keys, out := filesIn(l.PKI(), ".key")
	repository, bad := filesIn(l.Backup(), ".conf") // with the key of the repository
	keys, out = append(keys, repository...), append(out, bad...)
	for _, path := range append(private, keys...) {
		st, err := os.Stat(path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			out = append(out, failed(path, err))
			continue
		}
		forbidden := os.FileMode(0o077)
		if path == private[len(private)-1] {
			forbidden = 0o022 // it contains no secret
		}
		owner := int(st.Sys().(*syscall.Stat_t).Uid)
		if st.Mode().Perm()&forbidden != 0 || owner != l.Owner() && owner != 0 {
			out = append(out, check.Finding{
				Level: check.Problem, What: fmt.Sprintf("%s has mode %04o and belongs to user %s", path, st.Mode().Perm(), unixuser.Name(owner)),
				Why: "another user may read or change it, and with it the node", Run: fmt.Sprintf("chmod go= %s; chown %s %[1]s", path, unixuser.Name(l.Owner())),
			})
		}
	}
	if len(out) == 0 {
		out = append(out, ok("keys and directories are private to the node's user"))
	}
	return out
}

// judgeConfiguration returns a finding about the members that can write the configuration, which decides which clients
// are admitted and which programs the servers run.
func judgeConfiguration(c api.Configuration) check.Finding {
	switch {
	case c.Refused > 0 && c.At != nil:
		return check.Finding{
			Level: check.Problem, What: fmt.Sprintf("configurations in the quorum's store were refused since the agent started: %d, the last at %s: %s", c.Refused, c.At.UTC().Format(time.RFC3339), c.Why),
			Why: "no replica wrote them: a witness, or the administrator's etcd, may be in other hands; none of them was used", Run: "coterie member remove the witness that may be stolen; coterie status",
		}
	case !c.SignedRecord:
		waits := ""
		for _, id := range c.WaitsFor {
			waits += " " + string(id)
		}
		if waits != "" {
			waits = "; the primary waits for" + waits
		}
		if c.SignedOnly {
			return check.Finding{
				Level: check.Warning, What: "the record of who leads, and of which members hold which commits, is used without a signature" + waits,
				Why: "whoever has a witness can have a replica lead that lacks acknowledged commits",
				Run: "install this version on every member, and coterie restart; when all answer, the primary ends it by itself",
			}
		}
		return check.Finding{
			Level: check.Warning, What: "a configuration of the group is used without a signature" + waits,
			Why: "whoever has a witness can change the rules for clients, the superuser and the settings of the servers",
			Run: "install this version on every member, and coterie restart; when all answer, the primary ends it by itself",
		}
	}
	return ok("only configurations, records and requests of failovers that a replica has signed are used")
}

// judgeRefusals returns a finding if values of a kind in the quorum's store were refused.
func judgeRefusals(kind string, r api.Refusals) []check.Finding {
	if r.Refused == 0 || r.At == nil {
		return nil
	}
	return []check.Finding{{
		Level: check.Problem, What: fmt.Sprintf("%s in the quorum's store were refused since the agent started: %d, the last at %s: %s", kind, r.Refused, r.At.UTC().Format(time.RFC3339), r.Why),
		Why: "if no replica wrote them, a witness, or the administrator's etcd, may be in other hands; none of them was carried out", Run: "coterie member remove the witness that may be stolen; coterie status",
	}}
}

// judgeWitnesses returns a finding if the group has witnesses: their loss is more than that of a vote.
func judgeWitnesses(s api.Status) []check.Finding {
	var names []string
	for _, r := range s.Replicas {
		if r.Mode == ag.ConfigurationOnly {
			names = append(names, string(r.Name))
		}
	}
	if len(names) == 0 {
		return nil
	}
	return []check.Finding{ok("witnesses: %s; each is a full member of the quorum's store, whose thief can stop the group, and lose commits by an earlier copy of its disk: protect it, and remove it at once when it is stolen", strings.Join(names, ", "))}
}
