package check

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/admin/console"
	"github.com/coteriedb/coterie/internal/config"
)

// lookupLimit is how long the lookups of all names of a check may take together.
const lookupLimit = 10 * time.Second

// Remaining lifetimes of a certificate at which it should have been renewed, and at which the renewal is urgent.
const (
	renewSoon = 18 * 24 * time.Hour // they are renewed with at least 21 days left
	renewNow  = 7 * 24 * time.Hour
)

// absent returns the findings for a directory without a node; nil if there is one. After an error that is not known, as
// where this user may not look.
func absent(l config.Layout) ([]Finding, error) {
	_, err := os.Stat(filepath.Join(l.Dir, config.File))
	if errors.Is(err, fs.ErrNotExist) {
		return []Finding{{Level: OK, What: "there is no node in " + l.Dir, Run: "coterie init or coterie join makes one; --node DIR names another directory"}}, nil
	}
	return nil, err
}

// isWitness reports whether the node is a witness, as far as its configuration can be read.
func isWitness(l config.Layout) bool {
	c, err := config.Load(l.Dir)
	return err == nil && c.Kind == "witness"
}

// rejoin is what helps a node whose certificates are lost.
const rejoin = "take the node out with coterie member remove, and have it join again"

// FindCertificates checks the remaining lifetime of the certificates of the node in dir.
func FindCertificates(dir string, now time.Time) ([]Finding, error) {
	l, err := config.NewLayout(dir)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(l.PKI())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var files []string
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".crt") {
			files = append(files, filepath.Join(l.PKI(), e.Name()))
		}
	}
	if len(files) == 0 {
		if found, err := absent(l); found != nil || err != nil {
			return found, err
		}
		return []Finding{{Level: Problem, What: l.PKI() + " holds no certificate", Why: "the node cannot prove who it is", Run: rejoin}}, nil
	}
	var out []Finding
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		block, _ := pem.Decode(b)
		if block == nil {
			out = append(out, Finding{Level: Problem, What: f + " holds no certificate", Why: "the node cannot prove who it is", Run: rejoin})
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f, err)
		}
		out = append(out, judgeCertificate(filepath.Base(f), c.NotAfter.Sub(now)))
	}
	return out, nil
}

func judgeCertificate(name string, left time.Duration) Finding {
	f := Finding{Level: OK, What: fmt.Sprintf("%s holds for %d days", name, int(left.Hours()/24))}
	switch {
	case left <= 0:
		f = Finding{Level: Problem, What: name + " has expired"}
	case left < renewNow:
		f.Level = Problem
	case left < renewSoon:
		f.Level = Warning
	}
	if f.Level != OK {
		f.Why = "nodes and clients refuse an expired certificate, and the node should have renewed it after two thirds of its life"
		f.Run = "look for part=certificates in log/agent.log of the node, and see that its agent runs and reaches a replica"
	}
	return f
}

// removed begins the finding of a node that the group does not have any more.
const removed = "this node is no member of the group any more"

// FindGroup returns what is wrong with the group, as coterie status says it, the replicas that could not lead, and
// what the death of each member would lead to.
func FindGroup(ctx context.Context, dir string) ([]Finding, error) {
	l, err := config.NewLayout(dir)
	if err != nil {
		return nil, err
	}
	if found, err := absent(l); found != nil || err != nil {
		return found, err
	}
	cl := api.NewClient(l.AgentSock(), l.Owner())
	problems, err := rowsOf(ctx, cl, "SELECT severity, finding, run FROM coterie.problems")
	if err != nil {
		return nil, err
	}
	var out []Finding
	for _, p := range problems {
		f := Finding{Level: Warning, What: fmt.Sprint(p[1]), Why: fewer, Run: "coterie status; coterie explain"}
		if p[0] == "Critical" {
			f.Level, f.Why = Problem, "clients have no service, or the next failure takes it away"
		}
		if strings.HasPrefix(f.What, removed) {
			f.Why = "clients that connect here are served by nobody; the group itself may be well"
		}
		if p[2] != nil {
			f.Run = fmt.Sprint(p[2])
		}
		out = append(out, f)
	}
	urls, err := rowsOf(ctx, cl, "SELECT replica, option, value FROM coterie.options WHERE is_set AND option LIKE '%_URL' ORDER BY replica, option")
	if err != nil {
		return nil, err
	}
	out = append(out, judgeNames(ctx, urls, (&net.Resolver{}).LookupHost)...)
	listener, err := findListener(ctx, cl, (&net.Resolver{}).LookupHost)
	if err != nil {
		return nil, err
	}
	out = append(out, listener...)
	never, err := rowsOf(ctx, cl, `SELECT name, failover_mode FROM coterie.replicas
WHERE availability_mode = 'SYNCHRONOUS_COMMIT' AND join_state = 'JOINED' AND role <> 'PRIMARY' AND failover_mode <> 'AUTOMATIC' AND NOT suspended`)
	if err != nil {
		return nil, err
	}
	for _, r := range never {
		out = append(out, Finding{
			Level: Warning, What: fmt.Sprintf("%v is synchronous, and can never take over by itself (FAILOVER_MODE = %v)", r[0], r[1]),
			Why: "commits wait for it, and it does not help availability", Run: fmt.Sprintf("coterie replica set %v failover_mode=AUTOMATIC", r[0]),
		})
	}
	if len(out) == 0 {
		out = append(out, Finding{Level: OK, What: "the group takes writes, acknowledges commits, and misses nothing"})
	}
	if slices.ContainsFunc(out, func(f Finding) bool { return strings.HasPrefix(f.What, removed) }) {
		return out, nil
	}
	deaths, err := findDeaths(ctx, cl, Worst(out))
	return append(out, deaths...), err
}

// judgeNames returns findings for the URLs whose host has no address. The URLs are rows of replica, option and value.
// Coterie itself connects to none of them.
func judgeNames(ctx context.Context, urls [][]any, lookup func(context.Context, string) ([]string, error)) []Finding {
	ctx, cancel := context.WithTimeout(ctx, lookupLimit)
	defer cancel()
	var out []Finding
	for _, r := range urls {
		u, err := url.Parse(fmt.Sprint(r[2]))
		if err == nil {
			_, err = lookup(ctx, u.Hostname())
		}
		if err != nil {
			out = append(out, Finding{
				Level: Warning, What: fmt.Sprintf("%v of %v is %v, which has no address here: %v", r[1], r[0], r[2], err),
				Why: "nothing is routed by it, but people and tools that read it are led astray",
				Run: fmt.Sprintf("ALTER AVAILABILITY GROUP … MODIFY REPLICA ON N'%v' WITH (%s) in coterie sql, or name the host in DNS", r[0], optionOf(fmt.Sprint(r[1]))),
			})
		}
	}
	return out
}

// optionOf returns how MODIFY REPLICA sets an option that has a URL.
func optionOf(name string) string {
	role := map[string]string{"READ_ONLY_ROUTING_URL": "SECONDARY_ROLE", "READ_WRITE_ROUTING_URL": "PRIMARY_ROLE"}[name]
	set := name + " = N'TCP://HOST:PORT'"
	if role == "" {
		return set
	}
	return role + " (" + set + ")"
}

// rowsOf returns the rows of a query at the node's console.
func rowsOf(ctx context.Context, cl *api.Client, query string) ([][]any, error) {
	a, err := cl.SQL(ctx, query)
	if err != nil {
		if errors.Is(err, api.ErrNoAgent) {
			return nil, errors.New("no agent runs here; start it with coterie agent")
		}
		return nil, err
	}
	if a.Error != nil {
		var refused console.Error
		if err := json.Unmarshal(a.Error, &refused); err != nil {
			return nil, err
		}
		return nil, &refused
	}
	var r console.Result
	err = json.Unmarshal(a.Result, &r)
	return r.Rows, err
}
