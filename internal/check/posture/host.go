package posture

import (
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/check"
	"github.com/coteriedb/coterie/internal/config"
)

// capabilityNames are those that the unit gives the agent.
var capabilityNames = map[uint]string{unix.CAP_NET_ADMIN: "CAP_NET_ADMIN", unix.CAP_NET_RAW: "CAP_NET_RAW", unix.CAP_BPF: "CAP_BPF", unix.CAP_PERFMON: "CAP_PERFMON"}

// process is what /proc tells of one process.
type process struct {
	user         int
	capabilities uint64
	noNew        bool // no program that it executes gets more privileges
}

// parseProcess reads the text of /proc/PID/status.
func parseProcess(text string) (p process, err error) {
	seen := 0
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		f := strings.Fields(value)
		if len(f) == 0 {
			continue
		}
		switch key {
		case "Uid":
			p.user, err = strconv.Atoi(f[0])
		case "CapPrm":
			p.capabilities, err = strconv.ParseUint(f[0], 16, 64)
		case "NoNewPrivs":
			p.noNew = f[0] == "1"
		default:
			continue
		}
		if seen++; err != nil {
			return p, err
		}
	}
	if seen < 3 {
		return p, fmt.Errorf("a status without user, capabilities or NoNewPrivs")
	}
	return p, nil
}

func readProcess(pid int) (process, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return process{}, err
	}
	return parseProcess(string(b))
}

func names(capabilities uint64) string {
	var out []string
	for i := range uint(64) {
		if capabilities&(1<<i) == 0 {
			continue
		}
		name := capabilityNames[i]
		if name == "" {
			name = fmt.Sprint("capability ", i)
		}
		out = append(out, name)
	}
	return strings.Join(out, ", ")
}

// judgeProcesses returns the findings about the privileges of the node's processes, and about this host's protection of
// processes of one user from each other.
func judgeProcesses(local *api.Process) (out []check.Finding) {
	for _, which := range []struct {
		name string
		pid  int
	}{{"agent", local.Agent}, {"keeper", local.Keeper}, {"server", local.Postgres}} {
		if which.pid == 0 {
			continue
		}
		p, err := readProcess(which.pid)
		if err != nil {
			out = append(out, failed(which.name, err))
			continue
		}
		out = append(out, judgeProcess(which.name, p)...)
	}
	scope, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope")
	return append(out, judgeScope(strings.TrimSpace(string(scope)), err))
}

func judgeProcess(name string, p process) (out []check.Finding) {
	switch {
	case p.user == 0:
		out = append(out, check.Finding{
			Level: check.Problem, What: "the " + name + " runs as root", Why: "a mistake in it is one in the whole machine", Run: "start it by the unit, as the server's user",
		})
	case p.capabilities == 0:
		out = append(out, ok("the %s has no capability", name))
	case name == "agent":
		out = append(out, ok("the agent has %s; see SECURITY.md for what they are for, and how to do without", names(p.capabilities)))
	default:
		out = append(out, check.Finding{
			Level: check.Problem, What: fmt.Sprintf("the %s has %s", name, names(p.capabilities)), Why: "a role that may run programs on the server has them, too",
			Run: "take AmbientCapabilities out of the unit, and report it: no program that the agent runs should get them",
		})
	}
	if !p.noNew && name == "agent" {
		out = append(out, check.Finding{
			Level: check.Warning, What: "the agent, and what it runs, may gain privileges by set-user-ID programs", Why: "the sandbox of the unit is not in force",
			Run: "run the agent by packaging/coterie.service, which has NoNewPrivileges=yes",
		})
	}
	return out
}

func judgeScope(scope string, err error) check.Finding {
	if err == nil && scope != "0" && scope != "" {
		return ok("kernel.yama.ptrace_scope is %s: a process cannot read the memory of others of its user", scope)
	}
	what, run := "kernel.yama.ptrace_scope is 0", "sysctl -w kernel.yama.ptrace_scope=1, and keep it in /etc/sysctl.d"
	if err != nil {
		what, run = "this kernel has no kernel.yama.ptrace_scope", "use a kernel with Yama, as distributions build it, or let no role run programs on the server"
	}
	return check.Finding{
		Level: check.Warning, What: what + ": processes of one user may read each other's memory",
		Why: "a program that a SQL role runs by pg_execute_server_program could read the agent's keys there", Run: run,
	}
}

// judgeKeys returns the findings about the strength and the dates of certificates that clients and nodes rely on.
func judgeKeys(l config.Layout, c config.Config) []check.Finding {
	files, out := filesIn(l.PKI(), ".crt")
	if c.ClientCA != "" {
		files = append(files, c.ClientCA)
	}
	for _, path := range files {
		b, err := os.ReadFile(path)
		if err != nil {
			out = append(out, failed(path, err))
			continue
		}
		for block, rest := pem.Decode(b); block != nil; block, rest = pem.Decode(rest) {
			cert, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				out = append(out, failed(path, err))
				continue
			}
			if weak := weakness(cert, time.Now()); weak != "" {
				out = append(out, check.Finding{
					Level: check.Problem, What: fmt.Sprintf("%s: the certificate of %s %s", path, cert.Subject.CommonName, weak), Why: "whoever forges or keeps it may pass for its owner",
					Run: "replace it; those of the group by coterie ca rotate",
				})
			}
		}
	}
	if len(out) == 0 {
		out = append(out, ok("certificates: %d files, none weak or expired", len(files)))
	}
	return out
}

// weakness returns why a certificate should not be relied on, empty if there is no reason.
func weakness(c *x509.Certificate, now time.Time) string {
	if slices.Contains([]x509.SignatureAlgorithm{x509.MD5WithRSA, x509.SHA1WithRSA, x509.ECDSAWithSHA1, x509.DSAWithSHA1}, c.SignatureAlgorithm) {
		return "is signed with " + c.SignatureAlgorithm.String()
	}
	switch k := c.PublicKey.(type) {
	case *rsa.PublicKey:
		if k.N.BitLen() < 2048 {
			return fmt.Sprintf("has an RSA key of %d bits", k.N.BitLen())
		}
	case *ecdsa.PublicKey:
		if k.Params().BitSize < 256 {
			return fmt.Sprintf("has an elliptic key of %d bits", k.Params().BitSize)
		}
	}
	if now.After(c.NotAfter) {
		return "has expired on " + c.NotAfter.Format(time.DateOnly)
	}
	return ""
}
