package datadir

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

// PutStandbySignal makes sure that standby.signal exists, and still exists after a power loss. With it, an unplanned
// start comes up in recovery.
func PutStandbySignal(pgdata string) error {
	f, err := os.OpenFile(filepath.Join(pgdata, "standby.signal"), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("create standby.signal: %w", err)
	}
	if err := errors.Join(f.Sync(), f.Close(), durable.SyncDir(pgdata)); err != nil {
		return fmt.Errorf("create standby.signal: %w", err)
	}
	return nil
}

// HasStandbySignal reports whether standby.signal exists.
func HasStandbySignal(pgdata string) bool {
	_, err := os.Lstat(filepath.Join(pgdata, "standby.signal"))
	return err == nil
}

// DropStandbySignal removes standby.signal, if it exists.
func DropStandbySignal(pgdata string) error {
	if err := os.Remove(filepath.Join(pgdata, "standby.signal")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove standby.signal: %w", err)
	}
	return nil
}

// PIDFile is the contents of postmaster.pid. Inode and time distinguish a file of this start from one that a crash left
// behind, even when both name the same pid, as happens in containers.
type PIDFile struct {
	PID    int
	status string // "starting", "stopping", "ready" (a primary or a hot standby) or "standby"
	Socket string // "": the server had none when it wrote the file last
	inode  uint64
	mtime  int64
}

// ReadPIDFile reads postmaster.pid. It returns the zero value if the file cannot be read.
func ReadPIDFile(pgdata string) PIDFile {
	f, err := os.Open(filepath.Join(pgdata, "postmaster.pid"))
	if err != nil {
		return PIDFile{}
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return PIDFile{}
	}
	b, err := io.ReadAll(io.LimitReader(f, 8192))
	if err != nil {
		return PIDFile{}
	}
	p := PIDFile{mtime: info.ModTime().UnixNano()}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		p.inode = st.Ino
	}
	lines := strings.Split(string(b), "\n")
	if p.PID, err = strconv.Atoi(strings.TrimSpace(lines[0])); err != nil {
		p.PID = 0
	}
	p.PID = max(p.PID, -p.PID) // a single-user server writes it negative, and PostgreSQL heeds that file as any other
	if len(lines) >= 5 && filepath.IsAbs(lines[4]) {
		if port, err := strconv.ParseUint(lines[3], 10, 16); err == nil {
			p.Socket = filepath.Join(lines[4], fmt.Sprintf(".s.PGSQL.%d", port))
		}
	}
	if len(lines) >= 8 {
		p.status = strings.TrimSpace(lines[7])
	}
	return p
}

// The values of DBState in pg_control that matter here. They have not changed from PostgreSQL 9.0 to 18.
const (
	dbShutdown           = 1
	dbShutdownInRecovery = 2
	dbInArchiveRecovery  = 5
	dbInProduction       = 6
)

// AcceptsWrites reports whether the server with that pid is a primary. before is the contents of postmaster.pid before
// the server was started. A crashed primary leaves "in production" in pg_control. That state therefore counts only once
// postmaster.pid reports this server as ready: by then the server has written its own state there.
func AcceptsWrites(pgdata string, pid int, before PIDFile) bool {
	p := ReadPIDFile(pgdata)
	if p.PID != pid || p.status != "ready" || (p.inode == before.inode && p.mtime == before.mtime) {
		return false
	}
	state, err := controlState(pgdata)
	return err == nil && state == dbInProduction
}

// InRecovery reports whether the running server of pgdata is certainly still a standby. This holds if pg_control has
// that state and no promotion has been requested. PostgreSQL rewrites pg_control under the same lock under which it
// opens itself for writes.
func InRecovery(pgdata string) bool {
	if _, err := os.Lstat(filepath.Join(pgdata, "promote")); err == nil {
		return false
	}
	state, err := controlState(pgdata)
	return err == nil && (state == dbShutdownInRecovery || state == dbInArchiveRecovery)
}

// ShutDown reports whether the last server of pgdata wrote its shutdown checkpoint. The exit status is no evidence: it
// is also 0 after an immediate shutdown by a foreign signal.
func ShutDown(pgdata string) bool {
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

// Seal puts standby.signal into an initialised data directory. An empty directory is left empty, for initdb.
func Seal(pgdata string) error {
	if pgdata == "" {
		return nil
	}
	if _, err := os.Lstat(filepath.Join(pgdata, "PG_VERSION")); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return PutStandbySignal(pgdata)
}
