package embedded

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// identity is what is kept about the member outside its directory (docs/internals/safety.md, "Quorum store"): a member
// that was started has voted, and must not come back under its id without its log.
type identity struct {
	MemberID uint64 `json:"member_id"`
	Started  bool   `json:"started"`
}

// readIdentity returns the zero identity if the file does not exist.
func readIdentity(file string) (identity, error) {
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return identity{}, nil
	}
	if err != nil {
		return identity{}, err
	}
	var m identity
	if err := json.Unmarshal(b, &m); err != nil {
		return identity{}, fmt.Errorf("%s is unreadable: %w; if the directory of the quorum member is intact, remove the file", file, err)
	}
	return m, nil
}
