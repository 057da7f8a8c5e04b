package embedded

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.uber.org/zap"
)

// ErrCorrupt means that the member's files are damaged; it comes with ErrFailed. No later start can succeed: the node
// needs a member with another id.
var ErrCorrupt = errors.New("the files of the quorum member are damaged")

// lockWait bounds the wait for a file that another process holds. etcd itself waits for ever.
const lockWait = time.Second

// checkFiles reads the member's log and its database before etcd does. etcd reads the database in a goroutine of its
// own, which ends the whole process when a page is damaged. A file that cannot be read for another reason is no error
// here: etcd reports it.
func checkFiles(dir string) error {
	for _, f := range []struct {
		path  string
		check func(path string) error
	}{
		{filepath.Join(dir, "member", "wal"), checkLog},
		{filepath.Join(dir, "member", "snap", "db"), checkDatabase},
	} {
		if err := checkFile(f.path, f.check); err != nil {
			return fmt.Errorf("%w: %w: %s: %w", ErrFailed, ErrCorrupt, f.path, err)
		}
	}
	return nil
}

// checkFile turns a panic and a fault of the memory map into an error, and ignores what the operating system refuses.
func checkFile(path string, check func(string) error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%v", p)
		}
	}()
	err = check(path)
	var refused syscall.Errno
	if errors.As(err, &refused) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, bolterrors.ErrTimeout) {
		return nil
	}
	return err
}

func checkLog(dir string) error {
	if _, err := wal.ValidSnapshotEntries(zap.NewNop(), dir); err != nil { // a torn end is no error
		return err
	}
	segments, err := filepath.Glob(filepath.Join(dir, "*.wal"))
	if err != nil {
		return err
	}
	for _, path := range segments { // etcd allocates them before it gives them their names
		if st, err := os.Stat(path); err == nil && st.Size() == 0 {
			return fmt.Errorf("%s is empty", filepath.Base(path))
		}
	}
	return nil
}

// checkDatabase visits every page in use. An empty file is none of etcd's yet: etcd makes it again from the log.
func checkDatabase(path string) error {
	if st, err := os.Stat(path); err != nil || st.Size() == 0 {
		return err
	}
	db, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true, Timeout: lockWait})
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	return db.View(func(tx *bolt.Tx) error {
		return tx.ForEach(func(_ []byte, b *bolt.Bucket) error { return visit(b) })
	})
}

func visit(b *bolt.Bucket) error {
	return b.ForEach(func(k, v []byte) error {
		if v == nil {
			return visit(b.Bucket(k))
		}
		return nil
	})
}
