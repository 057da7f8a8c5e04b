package keeper

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/coteriedb/coterie/internal/lib/durable"
)

// putStandbySignal makes sure that standby.signal exists and will exist after a power loss. With it, a start that nobody
// planned comes up in recovery.
func putStandbySignal(pgdata string) error {
	f, err := os.OpenFile(filepath.Join(pgdata, "standby.signal"), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("create standby.signal: %w", err)
	}
	if err := errors.Join(f.Sync(), f.Close(), durable.SyncDir(pgdata)); err != nil {
		return fmt.Errorf("create standby.signal: %w", err)
	}
	return nil
}

func hasStandbySignal(pgdata string) bool {
	_, err := os.Lstat(filepath.Join(pgdata, "standby.signal"))
	return err == nil
}

func dropStandbySignal(pgdata string) error {
	if err := os.Remove(filepath.Join(pgdata, "standby.signal")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove standby.signal: %w", err)
	}
	return nil
}

// pidFile is what postmaster.pid says. Inode and time tell a file of this start from one that a crash left behind, even
// when both name the same pid, as happens in containers.
type pidFile struct {
	pid    int
	status string // "starting", "stopping", "ready" (a primary or a hot standby) or "standby"
	socket string // "": the server had none when it wrote the file last
	inode  uint64
	mtime  int64
}

func readPidFile(pgdata string) pidFile {
	f, err := os.Open(filepath.Join(pgdata, "postmaster.pid"))
	if err != nil {
		return pidFile{}
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return pidFile{}
	}
	b, err := io.ReadAll(io.LimitReader(f, 8192))
	if err != nil {
		return pidFile{}
	}
	p := pidFile{mtime: info.ModTime().UnixNano()}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		p.inode = st.Ino
	}
	lines := strings.Split(string(b), "\n")
	if p.pid, err = strconv.Atoi(strings.TrimSpace(lines[0])); err != nil || p.pid < 0 {
		p.pid = 0 // single-user servers write a negative number
	}
	if len(lines) >= 5 && filepath.IsAbs(lines[4]) {
		if port, err := strconv.ParseUint(lines[3], 10, 16); err == nil {
			p.socket = filepath.Join(lines[4], fmt.Sprintf(".s.PGSQL.%d", port))
		}
	}
	if len(lines) >= 8 {
		p.status = strings.TrimSpace(lines[7])
	}
	return p
}

// The values of DBState in pg_control that matter here; unchanged from PostgreSQL 9.0 to 18.
const (
	dbShutdown           = 1
	dbShutdownInRecovery = 2
	dbInArchiveRecovery  = 5
	dbInProduction       = 6
)

// acceptsWrites reports whether the server with that pid, before whose start postmaster.pid was as told, is a primary. A
// crashed primary leaves "in production" in pg_control, so that is believed only once postmaster.pid says that this server
// is ready: by then it has written there what it is itself.
func acceptsWrites(pgdata string, pid int, before pidFile) bool {
	p := readPidFile(pgdata)
	if p.pid != pid || p.status != "ready" || (p.inode == before.inode && p.mtime == before.mtime) {
		return false
	}
	state, err := controlState(pgdata)
	return err == nil && state == dbInProduction
}

// inRecovery reports whether the running server of pgdata is certainly still a standby: pg_control says so (PostgreSQL
// rewrites it under the same lock under which it opens itself for writes) and no promotion has been asked for.
func inRecovery(pgdata string) bool {
	if _, err := os.Lstat(filepath.Join(pgdata, "promote")); err == nil {
		return false
	}
	state, err := controlState(pgdata)
	return err == nil && (state == dbShutdownInRecovery || state == dbInArchiveRecovery)
}

// shutDown reports whether the last server of pgdata wrote its shutdown checkpoint. Its exit status does not tell: an
// immediate shutdown by somebody else's signal is 0 as well.
func shutDown(pgdata string) bool {
	state, err := controlState(pgdata)
	return err == nil && (state == dbShutdown || state == dbShutdownInRecovery)
}

func controlState(pgdata string) (uint32, error) {
	f, err := os.Open(filepath.Join(pgdata, "global", "pg_control"))
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	// system_identifier uint64, pg_control_version uint32, catalog_version_no uint32, state int32
	var b [20]byte
	if _, err := io.ReadFull(f, b[:]); err != nil {
		return 0, err
	}
	return binary.NativeEndian.Uint32(b[16:]), nil
}

// sealData puts standby.signal into a data directory that has been initialised. An empty one is left empty, for initdb.
func sealData(pgdata string) error {
	if pgdata == "" {
		return nil
	}
	if _, err := os.Lstat(filepath.Join(pgdata, "PG_VERSION")); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return putStandbySignal(pgdata)
}
