package adopt

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/coteriedb/coterie/internal/lib/termtext"
)

// printer writes a report, each value in its line, and ignores write errors, because the report goes to a person's
// terminal.
type printer struct{ w io.Writer }

func (p printer) line(format string, a ...any) { termtext.Linef(p.w, format+"\n", a...) }

func (p printer) fact(name, value string) {
	p.line("  %-14s %s", name, cmp.Or(value, "none"))
}

// Print writes the report for a person. clients are the addresses where the listener will answer.
func (r *Report) Print(w io.Writer, clients []string) {
	p := printer{w}
	p.line("Cluster")
	p.fact("data", r.Data)
	p.fact("configuration", r.ConfigFile)
	if r.Name != "" {
		p.fact("known as", r.Name)
	}
	p.fact("version", r.Version)
	p.fact("system id", r.SystemID)
	p.fact("state", r.State)
	p.fact("checksums", map[bool]string{true: "on", false: "off (wal_log_hints will be on, so that pg_rewind works)"}[r.Checksums])
	p.fact("tablespaces", strings.Join(r.Tablespaces, ", "))
	p.fact("slots", r.slotList())
	if r.ArchiveMode != "" && r.ArchiveMode != "off" {
		p.fact("archive", fmt.Sprintf("archive_mode = %s, archive_command = %s: it runs on whichever node is primary, so it must work on each", r.ArchiveMode, r.ArchiveCommand))
	}
	if r.SyncNames != "" {
		p.fact("synchronous", fmt.Sprintf("synchronous_standby_names = %s: recorded; from now on the agent sets it", r.SyncNames))
	}
	r.printStart(p)
	r.printRules(p, clients)
	r.printRoles(p)
	r.printSettings(p)
	if len(r.Refusals) > 0 {
		p.line("\nRefused: the cluster cannot be adopted as it is")
		for _, f := range r.Refusals {
			p.line("  - %s\n    to do: %s", f.Reason, f.Fix)
		}
	}
}

func (r *Report) slotList() string {
	var out []string
	for _, s := range r.Slots {
		out = append(out, s.Name+map[bool]string{true: " (physical: would be dropped)", false: " (logical: stays)"}[s.Physical])
	}
	return strings.Join(out, ", ")
}

func (r *Report) printStart(p printer) {
	p.line("\nWho starts it (from now on the agent alone)")
	s := r.Start
	if s.Conf != "" {
		p.line("  %s: %s -> disabled", s.Conf, s.Value)
	}
	switch {
	case s.Unit != "" && s.Systemd:
		p.line("  %s: masked if this is run as root, else run: sudo systemctl mask %s", s.Unit, s.Unit)
	case s.Unit != "":
		p.line("  %s exists, but systemd does not run here: run systemctl mask %s where it does", s.Unit, s.Unit)
	case s.Conf == "":
		p.line("  nothing was found; if something starts this cluster at boot, disable it by hand")
	}
}

func (r *Report) printRules(p printer, clients []string) {
	p.line("\nClients connect to %s; the rules of %s:", strings.Join(clients, " and "), r.HBAFile)
	for _, rule := range r.Rules {
		verdict := "kept"
		if rule.Problem != "" {
			verdict = "REFUSED, " + rule.Problem
		}
		p.line("  line %-4d %-60s %s", rule.Line, strings.Join(strings.Fields(rule.Text), " "), verdict)
	}
	if !slices.ContainsFunc(clients, func(c string) bool { return strings.HasPrefix(c, "/") }) {
		p.line("  the local socket is not taken over: rules of type local match nobody")
	}
}

func (r *Report) printRoles(p printer) {
	p.line("\nRoles that may log in")
	if r.Roles.Roles == nil {
		p.line("  not looked at: %s", cmp.Or(r.RolesUnknown, "the cluster is refused for other reasons"))
		return
	}
	good := 0
	for _, role := range r.Roles.Roles {
		switch role.Password {
		case "none":
			p.line("  %s has no password: it cannot log in by scram-sha-256 or md5, only by a rule with peer, cert or trust", role.Name)
		case "md5":
			p.line("  %s has an md5 password: it cannot log in where the rule says scram-sha-256, until its password is set again", role.Name)
		case "other":
			p.line("  %s has a password that is neither scram-sha-256 nor md5: it cannot log in with it", role.Name)
		default:
			good++
		}
	}
	p.line("  %d with a scram-sha-256 password: as before", good)
}

func (r *Report) printSettings(p printer) {
	p.line("\nSettings that Coterie overrides (the files keep them)")
	n := 0
	for _, s := range r.Settings {
		if s.Ours {
			n++
			p.line("  %s = '%s' -> '%s'   (%s, line %d)", s.Name, s.Value, s.Beats, s.File, s.Line)
		}
	}
	p.line("  %d of %d set in files; the others stay in force", n, len(r.Settings))
}
