package etcd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// mark is what is remembered about the member outside its directory (safety specification 4.2): a member that was started
// has voted, and must not come back under its id without its log.
type mark struct {
	MemberID uint64 `json:"member_id"`
	Started  bool   `json:"started"`
}

// readMark returns the zero mark when there is none.
func readMark(file string) (mark, error) {
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return mark{}, nil
	}
	if err != nil {
		return mark{}, err
	}
	var m mark
	if err := json.Unmarshal(b, &m); err != nil {
		return mark{}, fmt.Errorf("%s is unreadable: %w; if the directory of the quorum member is intact, remove the file", file, err)
	}
	return m, nil
}

// writeMark replaces the mark so that it survives a crash of the machine.
func writeMark(file string, m mark) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	tmp := file + ".new"
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(b, '\n'))
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(tmp, file); err != nil {
		return err
	}
	d, err := os.Open(filepath.Dir(file))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
