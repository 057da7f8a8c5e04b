package clientport

import (
	"errors"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/listener"
)

// A role that logs in to the console is the leader's to judge, and that of a copy only where the copy is known to be young.
func TestBelievedRole(t *testing.T) {
	type answers map[ag.ReplicaID]any // time.Duration: the copy's age; error
	dead := errors.New("dead")
	for name, c := range map[string]struct {
		leader ag.ReplicaID
		said   answers
		from   string // "": nobody
	}{
		"the leader answers":      {"n2", answers{"n2": listener.UnknownAge, "n1": time.Duration(0)}, "n2"},
		"a young copy":            {"n2", answers{"n2": dead, "n1": 59 * time.Second}, "n1"},
		"an old copy":             {"n2", answers{"n2": dead, "n1": 61 * time.Second}, ""},
		"the old one is not last": {"n2", answers{"n2": dead, "n1": listener.UnknownAge, "n3": time.Second}, "n3"},
		"no leader is known":      {"", answers{"n2": listener.UnknownAge, "n1": listener.UnknownAge}, ""},
	} {
		role, err := firstCurrent([]ag.ReplicaID{"n2", "n1", "n3"}, c.leader, time.Minute, func(id ag.ReplicaID) (listener.Role, error) {
			switch x := c.said[id].(type) {
			case time.Duration:
				return listener.Role{Found: true, Password: string(id), Age: x}, nil
			case error:
				return listener.Role{}, x
			}
			return listener.Role{}, dead
		})
		if role.Password != c.from || (err == nil) != (c.from != "") {
			t.Errorf("%s: %q, %v", name, role.Password, err)
		}
	}
}
