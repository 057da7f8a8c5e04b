package postgres

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/lib/durable"
	"github.com/coteriedb/coterie/internal/lib/fault"
	"github.com/coteriedb/coterie/internal/postgres/parameters"
	"github.com/coteriedb/coterie/internal/postgres/pgfiles"
	"github.com/coteriedb/coterie/internal/postgres/programs"
	"github.com/coteriedb/coterie/internal/postgres/session"
	"github.com/coteriedb/coterie/internal/postgres/settings"
)

// minWalKeepMB is a little WAL for a copy that has no slot yet. More would only lengthen rewinds, which copy all WAL
// that is kept. The WAL that members need is kept by their slots (EnsureSlots). The other floors of Args are
// parameters.Least.
const minWalKeepMB = 64

// Args returns the arguments, without the program's name (see Binary), with which the server must be started as a
// standby. They take precedence over every file and over ALTER SYSTEM (docs/internals/postgresql.md, "Command line"),
// so they contain only what must never differ. Limits are raised to what the group needs, and never lowered below the
// values in the instance's own files.
//
// synchronous_standby_names and max_standby_*_delay are absent on purpose: the agent changes them in a running server.
// hot_standby_feedback is the administrator's.
func (i *Instance) Args() []string {
	args, _ := i.args(false)
	return args
}

// StartArgs returns the arguments for a start that follows at once: as Args, or for a server that leads on. Only the
// latter lowers a limit below what pg_control says (docs/internals/postgresql.md, "Command line"). The limits are on
// the disk before the server can replay anything with them.
func (i *Instance) StartArgs(primary bool) ([]string, error) {
	args, limits := i.args(primary)
	if err := i.rememberLimits(limits); err != nil {
		return nil, fmt.Errorf("start PostgreSQL: remember its limits: %w", err)
	}
	return args, nil
}

func (i *Instance) args(primary bool) (args []string, limits map[string]int) {
	set := maps.Clone(i.Config().Extra)
	if set == nil {
		set = map[string]string{}
	}
	limits = i.raise(set, primary)
	maps.Copy(set, i.constants())
	args = []string{"-D", i.Config().PGData}
	for _, name := range slices.Sorted(maps.Keys(set)) {
		args = append(args, "-c", name+"="+set[name])
	}
	return args, limits
}

func (i *Instance) constants() map[string]string {
	c := map[string]string{
		"data_directory":          i.Config().PGData,
		"config_file":             i.configFile(),
		"hba_file":                i.Config().HBAFile,
		"ident_file":              i.identFile(),
		"listen_addresses":        "",
		"port":                    strconv.Itoa(session.Port),
		"unix_socket_directories": settings.QuoteList(i.Config().SocketDir),
		"unix_socket_permissions": "0700",
		"unix_socket_group":       "",

		"primary_conninfo":              i.primaryConninfo(),
		"primary_slot_name":             i.Config().Slot,
		"wal_retrieve_retry_interval":   "100ms", // the default costs seconds from the second reconnect on (docs/internals/postgresql.md, "Command line")
		"restore_command":               "",      // an archive would bring WAL past the seal (docs/internals/safety.md, "Seal")
		"archive_cleanup_command":       "",
		"recovery_end_command":          "",
		"recovery_min_apply_delay":      "0",
		"recovery_target":               "",
		"recovery_target_lsn":           "",
		"recovery_target_name":          "",
		"recovery_target_time":          "",
		"recovery_target_xid":           "",
		"recovery_target_timeline":      "latest",
		"restart_after_crash":           "off", // only the keeper starts servers (docs/internals/safety.md, "Keeper")
		"hot_standby":                   "on",
		"full_page_writes":              "on",
		"fsync":                         "on",
		"data_sync_retry":               "off",
		"ignore_invalid_pages":          "off",
		"zero_damaged_pages":            "off",
		"idle_replication_slot_timeout": "0",
		"promote_trigger_file":          "",
	}
	if i.Config().Install.Major >= 16 {
		delete(c, "promote_trigger_file")
	}
	if i.Config().Install.Major < 18 {
		delete(c, "idle_replication_slot_timeout")
	}
	if runtime.GOOS == "linux" {
		c["client_connection_check_interval"] = "1s" // a backend whose listener died must stop computing
	}
	return c
}

// raise adds the settings that have a floor, if the instance's own value is lower. It returns what the limits are then.
func (i *Instance) raise(set map[string]string, primary bool) (limits map[string]int) {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	floors := map[string]int{"wal_keep_size": minWalKeepMB}
	maps.Copy(floors, parameters.Least)
	for _, name := range parameters.Limits {
		floors[name] = max(floors[name], 0)
	}
	if c, err := i.Control(ctx); err == nil {
		for name, n := range i.limitFloors(ctx, c, primary) {
			floors[name] = max(floors[name], n)
		}
		if !c.DataChecksums {
			set["wal_log_hints"] = "on" // else this copy could never be rewound
		}
	} else {
		i.log.Warn("pg_control not readable, limits are not compared with it", "error", err)
	}
	i.boundRetention(ctx, set, floors)
	limits = map[string]int{}
	for name, floor := range floors {
		own, err := i.fileSetting(ctx, name)
		n, nerr := strconv.Atoi(own)
		if slices.Contains(parameters.Limits, name) {
			limits[name] = max(n, floor)
		}
		if floor == 0 { // as it is in the files
			continue
		}
		if err != nil || nerr != nil || n < floor {
			set[name] = strconv.Itoa(max(n, floor))
			if name == "wal_keep_size" {
				set[name] += "MB"
			}
		}
	}
	if level, err := i.fileSetting(ctx, "wal_level"); err == nil && level == "minimal" {
		set["wal_level"] = "replica"
	}
	if i.hasReturnSlots() {
		set["wal_level"] = "logical"
	}
	return limits
}

// limitFloors returns below which values the limits of the server must not be at this start. A standby must have what
// its primary had (pg_control), and what the WAL needs that it replays first: pg_control tells the newest values, and
// WAL behind the last restartpoint may be of a primary that had more. A primary that was stopped in order has no WAL
// to replay, so only its prepared transactions need what it had.
func (i *Instance) limitFloors(ctx context.Context, c pgfiles.Control, primary bool) map[string]int {
	if primary && c.State == "shut down" && !i.hasPrepared() {
		return nil
	}
	floors := maps.Clone(c.Settings)
	before := i.rememberedLimits()
	less := func(name string) bool { return floors[name] < before[name] }
	if slices.ContainsFunc(parameters.Limits, less) && i.limitsChange(ctx, c) {
		return larger(floors, before)
	}
	return floors
}

// formerLimits returns the limits that the WAL of the stopped server may need: those that pg_control tells, and those
// that the server had last.
func (i *Instance) formerLimits(c pgfiles.Control) map[string]int {
	return larger(c.Settings, i.rememberedLimits())
}

// limitArgs returns arguments with those limits, for a server in single-user mode: the files may say less by now.
func limitArgs(limits map[string]int) (args []string) {
	for _, name := range slices.Sorted(maps.Keys(limits)) {
		if n := limits[name]; n > 0 {
			args = append(args, "-c", fmt.Sprintf("%s=%d", name, n))
		}
	}
	return args
}

// larger returns the larger one of each limit.
func larger(a, b map[string]int) map[string]int {
	out := map[string]int{}
	for _, m := range []map[string]int{a, b} {
		for name, n := range m {
			out[name] = max(out[name], n)
		}
	}
	return out
}

// hasPrepared reports whether a server that was stopped in order has prepared transactions.
func (i *Instance) hasPrepared() bool {
	entries, err := os.ReadDir(i.path("pg_twophase"))
	return err != nil || len(entries) > 0
}

// limitsScan bounds the look through the WAL that a start replays. Values that are not known by then count as changed.
const limitsScan = 5 * time.Second

// limitsChange reports whether the limits of the primary change in the WAL that the stopped server replays first, as
// far as it is here.
func (i *Instance) limitsChange(ctx context.Context, c pgfiles.Control) bool {
	ctx, cancel := context.WithTimeout(ctx, limitsScan)
	defer cancel()
	if exists(i.path("backup_label")) { // the replay begins where it says
		return true
	}
	tips, err := i.tips(ctx, c)
	if err != nil {
		return true
	}
	for _, l := range tips {
		w := pgfiles.OpenWAL(i.path("pg_wal"), c, l)
		changes, err := pgfiles.SettingsChange(ctx, w, c.Redo)
		w.Close()
		if changes || err != nil {
			return true
		}
	}
	return false
}

// limitsFile has the limits with which the server was started last. It is in the data directory: a copy gets
// those of the server from which its WAL is. A rewound one has the larger ones of that server and its own.
func (i *Instance) limitsFile() string { return i.path("coterie.limits") }

func (i *Instance) rememberedLimits() map[string]int {
	var m map[string]int
	content, err := os.ReadFile(i.limitsFile())
	if err != nil || json.Unmarshal(content, &m) != nil {
		return nil
	}
	return m
}

func (i *Instance) rememberLimits(m map[string]int) error {
	if maps.Equal(m, i.rememberedLimits()) {
		return nil
	}
	content, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if err := durable.Replace(i.limitsFile(), content, 0o600); err != nil {
		return err
	}
	fault.Point("limits.noted") // the limits are on the disk; no server has had them
	return nil
}

// short returns which settings of the server in recovery are below those of its primary, which pg_control has as soon
// as their record is replayed; "": none is known to be. PostgreSQL pauses replay for it, and ends where that goes on.
// A server that is started again has as much (raise).
func (i *Instance) short(ctx context.Context) string {
	c, err := i.Control(ctx)
	if err != nil {
		return ""
	}
	var out []string
	err = i.main.Do(ctx, func(conn *pgx.Conn) error {
		out = nil
		for _, name := range slices.Sorted(maps.Keys(c.Settings)) {
			var has int
			if err := conn.QueryRow(ctx, "SELECT setting::int FROM pg_settings WHERE name = $1", name).Scan(&has); err != nil {
				return err
			}
			if has < c.Settings[name] {
				out = append(out, fmt.Sprintf("%s is %d here and %d on the primary", name, has, c.Settings[name]))
			}
		}
		return nil
	})
	if err != nil {
		return ""
	}
	return strings.Join(out, ", ")
}

// hasReturnSlots reports whether the copy has slots by which an old cluster follows (internal/postgres/bluegreen). With
// another wal_level than logical a server with one does not start.
func (i *Instance) hasReturnSlots() bool {
	slots, err := filepath.Glob(filepath.Join(i.Config().PGData, "pg_replslot", "coterie_blue_*"))
	return err == nil && len(slots) > 0
}

// fileSetting returns the value a setting would have from the instance's files and Extra, in the setting's base unit.
func (i *Instance) fileSetting(ctx context.Context, name string) (string, error) {
	args := []string{"-C", name, "-D", i.Config().PGData, "-c", "config_file=" + i.configFile(), "-c", "data_directory=" + i.Config().PGData}
	for extra, value := range i.Config().Extra {
		args = append(args, "-c", extra+"="+value)
	}
	cmd := exec.CommandContext(ctx, i.Binary(), args...)
	cmd.Env = programs.ToolEnv()
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("read setting %s: %w", name, programs.WithStderr(err))
	}
	return strings.TrimSpace(string(out)), nil
}

func (i *Instance) configFile() string {
	return cmp.Or(i.Config().ConfigFile, i.path("postgresql.conf"))
}

func (i *Instance) identFile() string {
	return filepath.Join(filepath.Dir(i.Config().HBAFile), "pg_ident.conf")
}

// primaryConninfo is constant for the life of the node. The agent serves the socket and chooses the source of the
// stream, so a new primary does not change the setting. The primary's agent puts the member's name into the walsender's
// startup packet (docs/internals/safety.md, "Streams").
func (i *Instance) primaryConninfo() string {
	return fmt.Sprintf("host=%s port=%d user=%s application_name=coterie",
		settings.QuoteConninfo(i.Config().UpstreamDir), session.Port, settings.QuoteConninfo(i.Config().Superuser))
}

// WriteHBA writes the private pg_hba.conf and pg_ident.conf. Only the server's own user can enter the socket directory,
// so every connection there is the agent's. The agent logs in as the role that it has authenticated
// (docs/internals/postgresql.md, "Private socket").
func (i *Instance) WriteHBA() error {
	hba, ident := "local all all trust\nlocal replication all trust\n", ""
	if i.Config().Install.Major >= 16 { // "all" as a name in a map exists from 16 on
		name, err := i.osUser()
		if err != nil {
			return fmt.Errorf("write pg_ident.conf: %w", err)
		}
		hba = "local all all peer map=coterie\nlocal replication all peer map=coterie\n"
		ident = fmt.Sprintf("coterie %s all\n", settings.QuoteList(name))
	}
	const header = "# Written by coterie at every start. The listener's rules decide who may connect, not this file.\n"
	if err := durable.Replace(i.Config().HBAFile, []byte(header+hba), 0o600); err != nil {
		return fmt.Errorf("write pg_hba.conf: %w", err)
	}
	if err := durable.Replace(i.identFile(), []byte(header+ident), 0o600); err != nil {
		return fmt.Errorf("write pg_ident.conf: %w", err)
	}
	return nil
}

func (i *Instance) osUser() (string, error) {
	if i.Config().OSUser != "" {
		return i.Config().OSUser, nil
	}
	u, err := user.LookupId(strconv.Itoa(os.Geteuid()))
	if err != nil {
		return "", err
	}
	return u.Username, nil
}

// The bounds of the WAL that is kept for other nodes, by the size of the file system.
const (
	slotKeepShare = 4        // a slot may hold a quarter of it,
	slotKeepMost  = 64 << 10 // MB, at most
	slotKeepLeast = 64       // MB
	walKeepShare  = 8        // the WAL kept without a slot: an eighth of it, at most minWalKeepMB
)

// walFileSystem returns the size of the file system that pg_wal is on, in MB.
func (i *Instance) walFileSystem() (mb int, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(i.path("pg_wal"), &st); err != nil {
		return 0, fmt.Errorf("look at the file system of pg_wal: %w", err)
	}
	return int(st.Blocks * uint64(st.Bsize) >> 20), nil
}

// slotKeep returns the max_slot_wal_keep_size for a file system: an absent member must not fill the disk of a serving
// one. The absent member then needs a new copy.
func slotKeep(fsMB int) int {
	return max(slotKeepLeast, min(fsMB/slotKeepShare, slotKeepMost))
}

// boundRetention adds the limits of the WAL kept for other nodes, unless the instance's own files set them.
func (i *Instance) boundRetention(ctx context.Context, set map[string]string, floors map[string]int) {
	mb, err := i.walFileSystem()
	if err != nil {
		i.log.Warn("what slots may keep is not limited", "error", err)
		return
	}
	floors["wal_keep_size"] = min(minWalKeepMB, max(mb/walKeepShare, 16))
	if own, err := i.fileSetting(ctx, "max_slot_wal_keep_size"); err == nil && own == "-1" {
		set["max_slot_wal_keep_size"] = fmt.Sprintf("%dMB", slotKeep(mb))
	}
}

// Parameters returns the server as the holder of the group's settings.
func (i *Instance) Parameters() parameters.Server {
	return parameters.Server{
		PGData: i.Config().PGData, ConfigFile: i.configFile(), Install: i.Config().Install,
		Fixed: func(name string) bool { _, is := i.constants()[name]; return is },
		Held: func() []string {
			if exists(i.conflictsFile()) {
				return conflictSettings
			}
			return nil
		},
		Exec: func(ctx context.Context, sql string) error {
			return i.server.Fresh(ctx, func(c *pgx.Conn) error {
				_, err := c.Exec(ctx, sql)
				return err
			})
		},
		Text: func(ctx context.Context, sql string) (text string, err error) {
			err = i.server.Fresh(ctx, func(c *pgx.Conn) error { return c.QueryRow(ctx, sql).Scan(&text) })
			return text, err
		},
	}
}

// CheckParameter returns an error if the server could not have that setting, and whether it takes effect only at the
// server's next start.
func (i *Instance) CheckParameter(ctx context.Context, name, value string) (restart bool, err error) {
	p := i.Parameters()
	if err := p.Check(ctx, name, value); err != nil {
		return false, err
	}
	return p.NeedsRestart(ctx, name)
}

// CheckRoom returns an error if a change of settings would leave the server too little room for sessions. A setting
// without a value is taken back.
func (i *Instance) CheckRoom(ctx context.Context, change map[string]*string) error {
	return i.Parameters().CheckRoom(ctx, change)
}

// Weigh returns the memory of this host, and the arithmetic if the server may take more than that with the settings. It
// returns an error if the server would not start.
func (i *Instance) Weigh(ctx context.Context, values map[string]string) (host uint64, warning string, err error) {
	if !parameters.InDemand(values) {
		return 0, "", nil
	}
	d, err := i.Parameters().Demand(ctx, values)
	if err != nil {
		return 0, "", err
	}
	return d.Host, d.Warning(), d.Refused()
}
