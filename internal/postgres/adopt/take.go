package adopt

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lib/durable"
	"github.com/coteriedb/coterie/internal/lib/fault"
)

// RecordFile is the name of the adoption's record in the node's state directory.
const RecordFile = "adopted.json"

// Adopted is the record of an adoption: the changes outside the node directory, and the cluster's former state. It is
// on disk before the first change, so that Undo works after an adoption that was interrupted at any point.
type Adopted struct {
	Cluster
	SystemID  string    `json:"system_id"`
	BinDir    string    `json:"bin_dir"`
	Start     Start     `json:"start"`
	AutoConf  string    `json:"auto_conf"`               // postgresql.auto.conf before the adoption
	Removed   []string  `json:"removed,omitempty"`       // its lines that the group reserves
	Unlisted  bool      `json:"unlisted,omitempty"`      // Removed is not known yet: the adoption was interrupted
	Generated bool      `json:"generated,omitempty"`     // a postgresql.conf for joining nodes was put into the data directory
	Dropped   []string  `json:"dropped_slots,omitempty"` // physical slots
	Settings  []Setting `json:"settings"`                // the settings that the files made
	SyncNames string    `json:"synchronous_standby_names,omitempty"`
}

// Load reads the record of an adoption from a node's state directory.
func Load(stateDir string) (*Adopted, error) {
	b, err := os.ReadFile(filepath.Join(stateDir, RecordFile))
	if err != nil {
		return nil, err
	}
	var a Adopted
	if err := json.Unmarshal(b, &a); err != nil {
		return nil, fmt.Errorf("%s: %w", RecordFile, err)
	}
	return &a, nil
}

// Server describes the cluster as the configuration of a node does.
func (a *Adopted) Server() *config.PostgreSQL {
	p := &config.PostgreSQL{BinDir: a.BinDir, Data: a.Data, Superuser: "postgres"}
	if a.Apart() {
		p.ConfigFile = a.ConfigFile
	}
	return p
}

func (a *Adopted) save(stateDir string) error {
	b, err := json.MarshalIndent(a, "", "  ")
	if err != nil {
		return err
	}
	return durable.Replace(filepath.Join(stateDir, RecordFile), b, 0o600)
}

// Take takes over the cluster that r describes; r must have no refusals. clean removes the reserved settings from
// postgresql.auto.conf. The caller calls Undo when Take returns an error, and when a later step fails.
func Take(r *Report, binDir, stateDir string, clean func() error) (*Adopted, error) {
	if len(r.Refusals) > 0 {
		return nil, r.Refusals[0]
	}
	auto, err := os.ReadFile(r.autoConf())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	a := &Adopted{
		Cluster: r.Cluster, SystemID: r.SystemID, BinDir: binDir, Start: r.Start, AutoConf: string(auto), Settings: r.Settings, SyncNames: r.SyncNames,
		Generated: r.Apart() && !exists(filepath.Join(r.Data, "postgresql.conf")),
		Unlisted:  true,
	}
	for _, s := range r.Slots {
		if s.Physical {
			a.Dropped = append(a.Dropped, s.Name)
		}
	}
	if err := a.save(stateDir); err != nil {
		return a, fmt.Errorf("record the adoption: %w", err)
	}
	fault.Point("adopt.recorded") // the record of the adoption is on disk; the cluster is as it was
	return a, a.change(r, stateDir, clean)
}

func (a *Adopted) change(r *Report, stateDir string, clean func() error) error {
	// From here on an accidental start is that of a standby, which writes nothing.
	if err := durable.Replace(filepath.Join(a.Data, "standby.signal"), nil, 0o600); err != nil {
		return fmt.Errorf("create standby.signal: %w", err)
	}
	fault.Point("adopt.signal") // the cluster starts as a standby; its own start is still enabled
	if a.Start.Conf != "" {
		if err := writeInPlace(a.Start.Conf, disabledConf(a.Start.Content)); err != nil {
			return fmt.Errorf("take over the start: %w", err)
		}
	}
	fault.Point("adopt.disabled") // the cluster's own start is disabled; its settings are as they were
	if err := clean(); err != nil {
		return err
	}
	fault.Point("adopt.cleaned") // reserved settings are away; the record does not list them
	now, err := os.ReadFile(a.autoConf())
	if err != nil {
		return err
	}
	a.Removed, a.Unlisted = missing(a.AutoConf, string(now)), false
	if err := a.save(stateDir); err != nil {
		return fmt.Errorf("record the adoption: %w", err)
	}
	fault.Point("adopt.listed") // the record lists what was taken away; slots are as they were
	for _, name := range a.Dropped {
		if err := os.RemoveAll(filepath.Join(a.Data, "pg_replslot", name)); err != nil {
			return fmt.Errorf("drop slot %s: %w", name, err)
		}
	}
	if a.Generated {
		if err := durable.Replace(filepath.Join(a.Data, "postgresql.conf"), []byte(generatedConf(r.Settings, a.autoConf())), 0o600); err != nil {
			return fmt.Errorf("write the configuration of joining nodes: %w", err)
		}
	}
	fault.Point("adopt.changed") // the cluster is changed; no group exists
	return nil
}

// missing returns the lines of a file that it does not have any more.
func missing(before, now string) (lines []string) {
	kept := slices.Collect(strings.Lines(now))
	for line := range strings.Lines(before) {
		if !slices.Contains(kept, line) {
			lines = append(lines, strings.TrimSuffix(line, "\n"))
		}
	}
	return lines
}

// nodeLocal are the settings that apply to one machine only.
var nodeLocal = []string{
	"data_directory", "hba_file", "ident_file", "external_pid_file", "port", "listen_addresses", "unix_socket_directories",
	"ssl", "ssl_cert_file", "ssl_key_file", "ssl_ca_file", "ssl_crl_file", "ssl_crl_dir", "ssl_dh_params_file", "stats_temp_directory", "log_directory", "krb_server_keyfile",
	"cluster_name", "synchronous_standby_names",
}

// generatedConf returns the configuration for nodes that copy the data, which they receive with it. This node keeps its
// own configuration, outside the data directory.
func generatedConf(settings []Setting, autoConf string) string {
	var b strings.Builder
	b.WriteString("# The group's settings, taken from the cluster that was adopted. The adopted node itself does not read this file.\n")
	for _, s := range settings {
		if s.File != autoConf && !s.Ours && !slices.Contains(nodeLocal, s.Name) {
			fmt.Fprintf(&b, "%s = %s\n", s.Name, quoteConf(s.Value))
		}
	}
	return b.String()
}

// agentSettings are the settings that the agent writes with ALTER SYSTEM in a running server. Undo gives them the
// values of before the adoption.
var agentSettings = []string{"synchronous_standby_names", "max_standby_streaming_delay", "max_standby_archive_delay"}

// Undo restores the cluster as it was before the adoption, wherever it differs. The server must be stopped. clean is
// the same function as for Take. Settings that the administrator made with ALTER SYSTEM in the meantime stay, except
// agentSettings; dropped slots do not come back.
func (a *Adopted) Undo(clean func() error) error {
	var errs []error
	step := func(what string, err error) {
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, fmt.Errorf("%s: %w", what, err))
		}
	}
	step("restore postgresql.auto.conf", a.restoreAutoConf(clean))
	if a.Generated {
		step("remove the generated configuration", os.Remove(filepath.Join(a.Data, "postgresql.conf")))
	}
	step("remove the members' slots", removeMemberSlots(a.Data))
	step("remove the copy's mark", os.Remove(filepath.Join(a.Data, "coterie.copy")))
	step("remove what its server's limits were", os.Remove(filepath.Join(a.Data, "coterie.limits")))
	if a.Start.Conf != "" && a.Start.Absent {
		step("restore start.conf", os.Remove(a.Start.Conf))
	} else if a.Start.Conf != "" {
		step("restore start.conf", writeInPlace(a.Start.Conf, a.Start.Content))
	}
	if len(errs) == 0 { // last: while standby.signal exists, an accidental start does no harm
		step("remove standby.signal", os.Remove(filepath.Join(a.Data, "standby.signal")))
		step("flush the data directory", durable.SyncDir(a.Data))
	}
	return errors.Join(errs...)
}

func (a *Adopted) restoreAutoConf(clean func() error) error {
	if err := clean(); err != nil {
		return err
	}
	b, err := os.ReadFile(a.autoConf())
	if err != nil {
		return err
	}
	var out strings.Builder
	for line := range strings.Lines(string(b)) {
		if name, _, ok := confLine(line); !ok || !slices.Contains(agentSettings, name) {
			out.WriteString(line)
		}
	}
	restored := slices.Clone(a.Removed)
	if a.Unlisted {
		restored = missing(a.AutoConf, string(b))
	}
	for line := range strings.Lines(a.AutoConf) {
		line = strings.TrimSuffix(line, "\n")
		if name, _, ok := confLine(line); ok && slices.Contains(agentSettings, name) && !slices.Contains(restored, line) {
			restored = append(restored, line)
		}
	}
	for _, line := range restored {
		out.WriteString(line + "\n")
	}
	return durable.Replace(a.autoConf(), []byte(out.String()), 0o600)
}

// removeMemberSlots removes the group's slots of a stopped server, because nothing would ever advance them again.
func removeMemberSlots(data string) error {
	dir := filepath.Join(data, "pg_replslot")
	slots, err := os.ReadDir(dir)
	for _, s := range slots {
		if strings.HasPrefix(s.Name(), "cot_") {
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, s.Name())))
		}
	}
	return err
}

// Releasable returns the reason why the cluster cannot be given back now, or nil.
func (a *Adopted) Releasable(state string) error {
	if pid, live := livePostmaster(a.Data); live {
		return refuse(fmt.Sprintf("the server is running, as process %d", pid), "stop the agent (SIGTERM) and wait for its end")
	}
	switch state {
	case "shut down":
		return nil
	case "shut down in recovery":
		return refuse("this copy was a secondary when it was stopped", "start the agent and make this node the primary: coterie failover --to its name; then stop it and release it")
	}
	return refuse(fmt.Sprintf("the server was not cleanly shut down (its state is %q)", state), "start the agent, wait until it is healthy, and stop it in order")
}

// writeInPlace writes a file without replacing it: it keeps the owner and the mode of a file in a directory that may
// belong to another user.
func writeInPlace(path, content string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644) //nolint:gosec // start.conf is read by everybody
	if err != nil {
		return err
	}
	_, err = f.WriteString(content)
	return errors.Join(err, f.Sync(), f.Close())
}
