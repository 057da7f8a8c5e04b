package pgupgrade

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/postgres/pgfiles"
	"github.com/coteriedb/coterie/internal/postgres/programs"
)

// Cluster is what an upgrade has to know of the running server.
type Cluster struct {
	Initdb     []string // the arguments of initdb for a cluster that is like it
	Size       int64    // of its databases, in bytes
	Extensions []string // in any database
	Libraries  []string // that its servers load at their start
	Owners     []string // other roles than superusers with functions or domains, which the new cluster's superuser may run
	Obstacles  []string // what cannot go along
	Archive    Archive
}

// Archive is how a server archives its WAL.
type Archive struct {
	Mode    string // archive_mode
	Command string // archive_command, or archive_library where there is one
	Pending bool   // another value of one of them waits for a restart
}

// Describe looks at a running primary. open opens a session of the superuser in a database; "" for one that always
// exists. The caller's context bounds it.
func Describe(ctx context.Context, open func(ctx context.Context, database string) (*pgx.Conn, error), ctl pgfiles.Control, to int) (c Cluster, err error) {
	conn, err := open(ctx, "")
	if err != nil {
		return c, err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if c.Initdb, err = initdb(ctx, conn, ctl, to); err != nil {
		return c, err
	}
	var databases []string
	var libraries string
	err = conn.QueryRow(ctx, `SELECT coalesce(sum(pg_database_size(oid)), 0)::bigint, array_agg(datname::text) FILTER (WHERE datallowconn), current_setting('shared_preload_libraries')
		FROM pg_database`).Scan(&c.Size, &databases, &libraries)
	if err != nil {
		return c, fmt.Errorf("look at the databases: %w", err)
	}
	for l := range strings.SplitSeq(libraries, ",") {
		if l = strings.Trim(strings.TrimSpace(l), `"`); l != "" {
			c.Libraries = append(c.Libraries, l)
		}
	}
	if c.Obstacles, err = obstacles(ctx, conn); err != nil {
		return c, err
	}
	err = conn.QueryRow(ctx, `SELECT current_setting('archive_mode'), coalesce(nullif(current_setting('archive_library', true), ''), current_setting('archive_command')),
		EXISTS (SELECT FROM pg_settings WHERE name IN ('archive_mode', 'archive_library') AND pending_restart)`).Scan(&c.Archive.Mode, &c.Archive.Command, &c.Archive.Pending)
	if err != nil {
		return c, fmt.Errorf("look at the archive: %w", err)
	}
	for _, d := range databases {
		if err := c.lookInto(ctx, open, d); err != nil {
			return c, err
		}
	}
	for _, list := range []*[]string{&c.Extensions, &c.Owners} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
	return c, nil
}

// initdb returns the arguments with which a new cluster can take the old one over.
func initdb(ctx context.Context, conn *pgx.Conn, ctl pgfiles.Control, to int) ([]string, error) {
	var encoding, collate, ctype, provider, locale string
	var version int
	if err := conn.QueryRow(ctx, "SELECT current_setting('server_version_num')::int").Scan(&version); err != nil {
		return nil, fmt.Errorf("look at the locale: %w", err)
	}
	columns := "'c', ''"
	switch {
	case version >= 170000:
		columns = "datlocprovider::text, coalesce(datlocale, '')"
	case version >= 150000:
		columns = "datlocprovider::text, coalesce(daticulocale, '')"
	}
	err := conn.QueryRow(ctx, "SELECT pg_encoding_to_char(encoding), datcollate::text, datctype::text, "+columns+" FROM pg_database WHERE datname = 'template0'").
		Scan(&encoding, &collate, &ctype, &provider, &locale)
	if err != nil {
		return nil, fmt.Errorf("look at the locale: %w", err)
	}
	args := []string{"--encoding=" + encoding, "--lc-collate=" + collate, "--lc-ctype=" + ctype, fmt.Sprintf("--wal-segsize=%d", ctl.WalSegmentSize>>20)}
	switch provider {
	case "i":
		args = append(args, "--locale-provider=icu", "--icu-locale="+locale)
	case "b":
		args = append(args, "--locale-provider=builtin", "--builtin-locale="+locale)
	default:
		if to >= 15 {
			args = append(args, "--locale-provider=libc")
		}
	}
	switch {
	case ctl.DataChecksums:
		args = append(args, "--data-checksums")
	case to >= 18:
		args = append(args, "--no-data-checksums")
	}
	return args, nil
}

// obstacles lists what a new cluster cannot have, in the order in which it is to be seen to.
func obstacles(ctx context.Context, conn *pgx.Conn) (list []string, err error) {
	for _, q := range []struct{ sql, says string }{
		{"SELECT string_agg(gid, ', ') FROM pg_prepared_xacts", "prepared transactions, which pg_upgrade refuses: %s; COMMIT PREPARED or ROLLBACK PREPARED them"},
		{"SELECT string_agg(slot_name::text, ', ') FROM pg_replication_slots WHERE slot_type = 'logical'", "logical replication slots, which would be lost: %s; drop them, and make their subscriptions anew afterwards"},
		{"SELECT string_agg(subname::text, ', ') FROM pg_subscription", "subscriptions, whose state would be lost: %s; drop them, and make them anew afterwards"},
		{"SELECT string_agg(spcname::text, ', ') FROM pg_tablespace WHERE spcname NOT IN ('pg_default', 'pg_global')", "tablespaces, which this command does not take along: %s; upgrade by a second group"},
	} {
		var found *string
		if err := conn.QueryRow(ctx, q.sql).Scan(&found); err != nil {
			return nil, fmt.Errorf("look for what cannot go along: %w", err)
		}
		if found != nil {
			list = append(list, fmt.Sprintf(q.says, *found))
		}
	}
	return list, nil
}

// maxSlot bounds what is read of a replication slot's file, and slotDatabase is where the id of its database is: behind
// the magic number, checksum, version, length and name, as in every supported version.
const (
	maxSlot      = 4 << 10
	slotDatabase = 16 + 64
)

// late refuses a stopped cluster with a tablespace or a logical slot: it was made after the last look at the server.
// pg_upgrade would lose the slot, and put files beside the data directory that nobody removes.
func late(data string) error {
	spaces, err := os.ReadDir(filepath.Join(data, "pg_tblspc"))
	if err != nil {
		return fmt.Errorf("look for tablespaces: %w", err)
	}
	if len(spaces) > 0 {
		return fmt.Errorf("a tablespace was made since the cluster was looked at (pg_tblspc/%s)", spaces[0].Name())
	}
	slots, err := os.ReadDir(filepath.Join(data, "pg_replslot"))
	if err != nil {
		return fmt.Errorf("look for logical slots: %w", err)
	}
	for _, s := range slots {
		b, err := readStart(filepath.Join(data, "pg_replslot", s.Name(), "state"), maxSlot)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it was being made or dropped, and the next start of a server removes it
		}
		if err != nil {
			return fmt.Errorf("look for logical slots: %w", err)
		}
		if len(b) >= slotDatabase+4 && binary.NativeEndian.Uint32(b[slotDatabase:]) != 0 {
			return fmt.Errorf("the logical replication slot %s was made since the cluster was looked at", s.Name())
		}
	}
	return nil
}

// readStart reads the first bytes of a file.
func readStart(path string, most int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return io.ReadAll(io.LimitReader(f, most))
}

// lookInto adds what one database has.
func (c *Cluster) lookInto(ctx context.Context, open func(ctx context.Context, database string) (*pgx.Conn, error), database string) error {
	conn, err := open(ctx, database)
	if err != nil {
		return fmt.Errorf("look into database %s: %w", database, err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	for _, q := range []struct {
		sql string
		to  *[]string
	}{{"SELECT extname::text FROM pg_extension WHERE extname <> 'plpgsql'", &c.Extensions}, {owners, &c.Owners}} {
		rows, err := conn.Query(ctx, q.sql)
		if err != nil {
			return fmt.Errorf("look into database %s: %w", database, err)
		}
		names, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return fmt.Errorf("look into database %s: %w", database, err)
		}
		*q.to = append(*q.to, names...)
	}
	return nil
}

// owners are the roles whose functions and checks of domains the superuser may run who restores the definitions of a
// database. PostgreSQL evaluates what is constant in a check, a generated column, a bound of a partition or the initial
// value of an aggregate while it takes that over, as the user who says so. An extension may have been given members.
const owners = `SELECT DISTINCT r.rolname::text FROM (SELECT proowner FROM pg_proc UNION SELECT typowner FROM pg_type WHERE typtype = 'd') x (owner) JOIN pg_roles r ON r.oid = x.owner WHERE NOT r.rolsuper`

// Lacks lists the extensions and libraries that an installation does not have. known is false where the installation
// has no pg_config to say where they would be.
func Lacks(ctx context.Context, in programs.Install, extensions, libraries []string) (names []string, known bool) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	ask := func(what string) (string, bool) {
		out, err := exec.CommandContext(ctx, filepath.Join(in.BinDir, "pg_config"), what).Output()
		return strings.TrimSpace(string(out)), err == nil
	}
	share, ok1 := ask("--sharedir")
	lib, ok2 := ask("--pkglibdir")
	if !ok1 || !ok2 {
		return nil, false
	}
	if _, err := os.Stat(filepath.Join(share, "extension")); err != nil {
		return nil, false // an installation that was moved: it says where it was built for
	}
	for _, e := range extensions {
		if !there(filepath.Join(share, "extension", e+".control")) {
			names = append(names, "extension "+e)
		}
	}
	for _, l := range libraries {
		if !strings.Contains(l, "/") && !there(filepath.Join(lib, l+".so")) {
			names = append(names, "library "+l)
		}
	}
	return names, true
}
