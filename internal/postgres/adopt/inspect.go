package adopt

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Options are the inputs of an inspection from the rest of the program.
type Options struct {
	BinDir       string
	NodeDir      string
	DropStandbys bool // drop physical slots rather than refuse the cluster
	// Superuser is the bootstrap superuser by the administrator's word; "": it is read from the catalogs.
	Superuser string
	// JudgeRules returns the rules in the text of pg_hba.conf, with the reasons for which the listener cannot honour
	// some.
	JudgeRules func(text string) []Rule
	// CheckCRL returns the reason why the listener cannot use the revocation lists at a path, or nil.
	CheckCRL func(path string) error
	// Overrides are the settings that will be on the server's command line.
	Overrides func() map[string]string
}

// Report is the result of an inspection. Nothing was changed to make it.
type Report struct {
	Cluster
	Version, SystemID, State, WALLevel string
	Checksums                          bool
	HBAFile, IdentFile                 string
	ClientCA                           string // ssl_ca_file; "": none
	ClientCRL                          string // ssl_crl_file or ssl_crl_dir; "": none
	Port                               string
	Addresses                          string   // listen_addresses
	Sockets                            []string // unix_socket_directories
	Settings                           []Setting
	Rules                              []Rule
	Roles                              Roles
	RolesUnknown                       string // why they could not be read
	Tablespaces                        []string
	Slots                              []Slot
	ArchiveCommand, ArchiveMode        string
	SyncNames                          string
	Start                              Start
	Refusals                           []RefusedError
}

// Slot is a replication slot of the stopped cluster.
type Slot struct {
	Name     string
	Physical bool
}

// inspection is a Report in the making.
type inspection struct {
	Report
	opt     Options
	control map[string]string
}

// Inspect examines a stopped cluster and changes nothing. It returns an error if the inspection was impossible; reasons
// against the adoption are in the report.
func Inspect(ctx context.Context, c Cluster, opt Options) (*Report, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	x := &inspection{Report: Report{Cluster: c}, opt: opt}
	if err := x.readControl(ctx); err != nil {
		return nil, err
	}
	x.checkStopped()
	x.checkPlace()
	if !x.checkSettings(ctx) {
		return &x.Report, nil // return &x.Report, nil // the configuration is unreadable, and the remaining checks need it
	}
	x.checkRules()
	x.listTablespaces()
	x.checkSlots()
	x.checkStart()
	if len(x.Refusals) == 0 {
		x.checkRoles(ctx)
	}
	return &x.Report, nil
}

func (x *inspection) refuse(reason, fix string, a ...any) {
	x.Refusals = append(x.Refusals, refuse(reason, fix, a...))
}

func (x *inspection) readControl(ctx context.Context) error {
	out, err := x.run(ctx, "pg_controldata", "-D", x.Data)
	if err != nil {
		return fmt.Errorf("read pg_control: %w", err)
	}
	x.control = map[string]string{}
	for line := range strings.Lines(out) {
		if k, v, ok := strings.Cut(line, ":"); ok {
			x.control[strings.TrimSpace(k)] = strings.TrimSpace(v)
		}
	}
	x.SystemID, x.State = x.control["Database system identifier"], x.control["Database cluster state"]
	x.WALLevel = x.control["wal_level setting"]
	x.Checksums = x.control["Data page checksum version"] != "0"
	if x.SystemID == "" || strings.Contains(out, "WARNING") {
		x.refuse("pg_control is damaged or was written by another version", "restore a backup of the cluster")
	}
	return nil
}

// run executes one of PostgreSQL's programs, with messages in English and none of the caller's PG* variables.
func (x *inspection) run(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(x.opt.BinDir, name), args...)
	cmd.Env = toolEnv()
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = errors.New(strings.TrimSpace(string(exit.Stderr)))
	}
	return string(out), err
}

func toolEnv() []string {
	env := []string{"LC_ALL=C", "LANGUAGE="}
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "PG") && !strings.HasPrefix(e, "LC_") && !strings.HasPrefix(e, "LANG") {
			env = append(env, e)
		}
	}
	return env
}

// checkStopped refuses a cluster that is running, has crashed, or was not a primary.
func (x *inspection) checkStopped() {
	if pid, live := livePostmaster(x.Data); live {
		x.refuse(fmt.Sprintf("the cluster is running: postmaster.pid names process %d", pid), "stop it: %s", x.StopCommand(x.opt.BinDir))
	} else if x.State == "shut down in recovery" {
		x.refuse("the cluster was a standby when it was stopped", "adopt its primary; this machine then joins with coterie join")
	} else if x.State != "shut down" {
		x.refuse(fmt.Sprintf("the cluster was not cleanly shut down (its state is %q)", x.State), "start it as usual, look into its log, and stop it in order: %s", x.StopCommand(x.opt.BinDir))
	}
	for _, f := range []string{"standby.signal", "recovery.signal"} {
		if exists(filepath.Join(x.Data, f)) {
			x.refuse("there is "+f+": the cluster is a standby or a restored backup", "adopt the primary; to adopt a restored backup, let its recovery end and stop it in order")
		}
	}
	for _, f := range []string{"backup_label", "tablespace_map"} {
		if exists(filepath.Join(x.Data, f)) {
			x.refuse("there is "+f+": the directory is a backup that was never started", "start it as usual, let its recovery end, and stop it in order")
		}
	}
	if x.WALLevel == "minimal" {
		x.refuse("the cluster ran with wal_level=minimal, whose WAL no replica can replay", "set wal_level = replica, start the cluster once and stop it in order")
	}
}

// checkPlace refuses a cluster, a port or a directory that a group already uses, this one included.
func (x *inspection) checkPlace() {
	if exists(filepath.Join(x.Data, "coterie.copy")) {
		x.refuse("there is coterie.copy: the data directory already belongs to a group", "start that group's agent, or give the cluster back with coterie release")
	}
	inside := func(parent, child string) bool {
		rel, err := filepath.Rel(parent, child)
		return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
	}
	if inside(x.Data, x.opt.NodeDir) || inside(x.opt.NodeDir, x.Data) {
		x.refuse(fmt.Sprintf("the node directory %s and the data directory are inside one another", x.opt.NodeDir), "choose another --node directory")
	}
	if entries, err := os.ReadDir(x.opt.NodeDir); err == nil && len(entries) > 0 {
		x.refuse(fmt.Sprintf("the node directory %s is not empty", x.opt.NodeDir), "choose another --node directory, or start what is there with coterie agent")
	}
}

func livePostmaster(data string) (pid int, live bool) {
	b, err := os.ReadFile(filepath.Join(data, "postmaster.pid"))
	if err != nil {
		return 0, false
	}
	first, _, _ := strings.Cut(string(b), "\n")
	if pid, err = strconv.Atoi(strings.TrimPrefix(strings.TrimSpace(first), "-")); err != nil || pid <= 0 { // a single-user server writes it negative
		return 0, false
	}
	err = syscall.Kill(pid, 0)
	return pid, err == nil || errors.Is(err, syscall.EPERM)
}

// effective asks the server's own program for the effective value of a setting.
func (x *inspection) effective(ctx context.Context, name string) (string, error) {
	out, err := x.run(ctx, "postgres", "-D", x.Data, "-c", "config_file="+x.ConfigFile, "-C", name)
	return strings.TrimSuffix(out, "\n"), err
}

// checkSettings fills in the configuration's settings. It reports whether the configuration is readable at all.
func (x *inspection) checkSettings(ctx context.Context) bool {
	set, err := x.settings()
	if err == nil {
		_, err = x.effective(ctx, "data_directory")
	}
	if err != nil {
		x.refuse(fmt.Sprintf("the configuration cannot be read: %v", err), "correct %s, so that the cluster starts with it", x.ConfigFile)
		return false
	}
	x.Version, _ = x.run(ctx, "postgres", "-V")
	x.Version = strings.TrimSpace(strings.TrimPrefix(x.Version, "postgres (PostgreSQL) "))
	over := x.opt.Overrides()
	value := map[string]string{}
	get := func(name string) string {
		if _, ok := value[name]; !ok {
			if value[name], err = x.effective(ctx, name); err != nil {
				value[name] = "" // unknown in this version
			}
		}
		return value[name]
	}
	for _, s := range set {
		if v, err := x.effective(ctx, s.Name); err == nil {
			s.Value, value[s.Name] = v, v
		}
		s.Beats, s.Ours = over[s.Name]
		s.Ours = s.Ours && s.Beats != s.Value
		x.Settings = append(x.Settings, s)
	}
	if data, err := filepath.EvalSymlinks(get("data_directory")); err != nil || data != x.Data {
		x.refuse(fmt.Sprintf("%s is the configuration of %s, not of %s", x.ConfigFile, get("data_directory"), x.Data), "name the right file with --config-file")
	}
	x.checkDangerous(get)
	x.HBAFile, x.IdentFile = get("hba_file"), get("ident_file")
	x.checkClientCertificates(get)
	x.Port, x.Addresses = get("port"), get("listen_addresses")
	for d := range strings.SplitSeq(get("unix_socket_directories"), ",") {
		if d = strings.Trim(strings.TrimSpace(d), `"`); filepath.IsAbs(d) {
			x.Sockets = append(x.Sockets, d)
		}
	}
	x.checkSockets(get("unix_socket_permissions"))
	x.ArchiveMode, x.ArchiveCommand, x.SyncNames = get("archive_mode"), get("archive_command"), get("synchronous_standby_names")
	return true
}

// checkSockets refuses sockets whose mode keeps users of the machine away: on those of the listener the rules alone
// decide who may log in, and a rule like "local all all trust" may rest on the mode.
func (x *inspection) checkSockets(permissions string) {
	mode, err := strconv.ParseUint(permissions, 0, 32) // in decimal digits, or in octal ones behind a 0
	if len(x.Sockets) == 0 || err == nil && mode&0o002 != 0 {
		return
	}
	x.refuse(fmt.Sprintf("unix_socket_permissions = %04o keeps users of this machine from the cluster's sockets, and every user may connect to those of the listener, where the rules decide", mode),
		"have the rules of type local in pg_hba.conf ask every user for a proof, as peer and scram-sha-256 do and trust does not, and set unix_socket_permissions = 0777; or set unix_socket_directories = '' if no client uses a socket")
}

// checkClientCertificates finds the authorities of client certificates and their revocation lists. It refuses lists
// that the listener could not use, since what they revoke would be good again.
func (x *inspection) checkClientCertificates(get func(string) string) {
	path := func(name string) string {
		p := get(name)
		if p != "" && !filepath.IsAbs(p) {
			p = filepath.Join(x.Data, p)
		}
		return p
	}
	if x.ClientCA = path("ssl_ca_file"); x.ClientCA == "" {
		return // no client is asked for a certificate
	}
	file, dir := path("ssl_crl_file"), path("ssl_crl_dir")
	if file != "" && dir != "" {
		x.refuse("both ssl_crl_file and ssl_crl_dir are set; the listener reads revocation lists from one place", "put %s into %s, run openssl rehash %s, and remove ssl_crl_file from the configuration", file, dir, dir)
		return
	}
	if x.ClientCRL = cmp.Or(file, dir); x.ClientCRL == "" {
		return
	}
	if err := x.opt.CheckCRL(x.ClientCRL); err != nil {
		x.refuse(fmt.Sprintf("the listener cannot use the revocation lists of client certificates: %v", err), "put the whole list of each authority in PEM into %s, or remove ssl_crl_file and ssl_crl_dir from the configuration if no certificate is revoked", x.ClientCRL)
	}
}

func (x *inspection) checkDangerous(get func(string) string) {
	if get("fsync") == "off" {
		x.refuse("fsync=off: a crash may have damaged the data unnoticed", "set fsync = on, start the cluster, check it with pg_amcheck --all, and stop it in order")
	}
	if x.WALLevel != "minimal" && get("wal_level") == "minimal" {
		x.refuse("the configuration says wal_level=minimal, whose WAL no replica can replay", "set wal_level = replica")
	}
	for _, name := range []string{"recovery_target", "recovery_target_lsn", "recovery_target_name", "recovery_target_time", "recovery_target_xid"} {
		if get(name) != "" {
			x.refuse("a recovery target is set: "+name, "remove %s from the configuration", name)
		}
	}
}

func (x *inspection) listTablespaces() {
	entries, _ := os.ReadDir(filepath.Join(x.Data, "pg_tblspc"))
	for _, e := range entries {
		if to, err := os.Readlink(filepath.Join(x.Data, "pg_tblspc", e.Name())); err == nil {
			x.Tablespaces = append(x.Tablespaces, to)
		}
	}
}

// The place of a slot's database in pg_replslot/NAME/state: magic, checksum, version and length, then the name
// (NAMEDATALEN).
const slotDatabase = 16 + 64

func (x *inspection) checkSlots() {
	entries, _ := os.ReadDir(filepath.Join(x.Data, "pg_replslot"))
	var physical []string
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(x.Data, "pg_replslot", e.Name(), "state"))
		if err != nil || len(b) < slotDatabase+4 {
			continue
		}
		s := Slot{Name: e.Name(), Physical: binary.NativeEndian.Uint32(b[slotDatabase:]) == 0}
		if s.Physical {
			physical = append(physical, s.Name)
		}
		x.Slots = append(x.Slots, s)
	}
	if len(physical) > 0 && !x.opt.DropStandbys {
		x.refuse("there are physical replication slots, so standbys or backup tools stream from this cluster: "+strings.Join(physical, ", "),
			"drop them before stopping it with SELECT pg_drop_replication_slot(name), or give --drop-standbys: those standbys are cut off, and join the group as replicas later")
	}
}

func (x *inspection) checkRoles(ctx context.Context) {
	r, err := x.readRoles(ctx)
	if err != nil {
		x.RolesUnknown = err.Error()
		if x.opt.Superuser == "" { // with another one's name the agent could not log in, nor the cluster be released
			x.refuse(fmt.Sprintf("which role is the bootstrap superuser could not be read: %v", err), "name the role that initdb made, which is postgres as a rule: --superuser NAME")
		}
		return
	}
	x.Roles = r
	if slices.Contains(r.Databases, "coterie") {
		x.refuse("there is a database named coterie, which is reserved", "start the cluster and rename it: ALTER DATABASE coterie RENAME TO other_name")
	}
}

// StopCommand returns the command with which a person stops the cluster.
func (c Cluster) StopCommand(binDir string) string {
	if v, n, ok := strings.Cut(c.Name, "/"); ok {
		return fmt.Sprintf("pg_ctlcluster %s %s stop", v, n)
	}
	return fmt.Sprintf("%s stop -m fast -D %s", filepath.Join(binDir, "pg_ctl"), c.Data)
}

// StartCommand returns the command with which a person starts the cluster after its release.
func (c Cluster) StartCommand(binDir string) string {
	if v, n, ok := strings.Cut(c.Name, "/"); ok {
		return fmt.Sprintf("pg_ctlcluster %s %s start", v, n)
	}
	command := fmt.Sprintf("%s start -D %s", filepath.Join(binDir, "pg_ctl"), c.Data)
	if c.Apart() {
		command += fmt.Sprintf(" -o '-c config_file=%s'", c.ConfigFile)
	}
	return command
}
