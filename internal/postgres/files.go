package postgres

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// writeDurably replaces the file by one of that content, so that after a power loss there is either the old or the new one.
func writeDurably(path string, content []byte, mode os.FileMode) error {
	tmp := path + ".coterie-tmp"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		_ = os.Remove(tmp)
		return err
	}
	return syncPath(filepath.Dir(path))
}

// syncPath flushes a file or a directory.
func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		return fmt.Errorf("flush %s: %w", path, err)
	}
	return nil
}

// removeDurably removes a file that may be absent, and flushes its directory.
func removeDurably(path string) error {
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return err
	}
	return syncPath(filepath.Dir(path))
}

// copyDurably copies one file and flushes the copy; the caller flushes the directory.
func copyDurably(from, to string) (n int64, err error) {
	in, err := os.Open(from)
	if err != nil {
		return 0, err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return 0, err
	}
	n, err = io.Copy(out, in)
	if err == nil {
		err = out.Sync()
	}
	if cerr := out.Close(); err == nil {
		err = cerr
	}
	return n, err
}

func (i *Instance) createStandbySignal() error {
	if err := writeDurably(i.path("standby.signal"), nil, 0o600); err != nil {
		return fmt.Errorf("create standby.signal: %w", err)
	}
	return nil
}
