package etcd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// mark is what is remembered about the member outside its directory (docs/internals/safety.md, "Quorum store"): a
// member that was started has voted, and must not come back under its id without its log.
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
