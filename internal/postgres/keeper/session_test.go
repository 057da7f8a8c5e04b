package keeper

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestDisarmGivesWayToArm holds that a DISARM which waits for the disk does not end what was armed or extended
// meanwhile.
func TestDisarmGivesWayToArm(t *testing.T) {
	t.Parallel()
	for what, order := range map[string]func(*keeper, *conn) error{
		"armed for another epoch": func(k *keeper, c *conn) error {
			return k.arm(c, request{Op: opArm, Epoch: 6, Deadline: in(15 * time.Second)})
		},
		"extended": func(k *keeper, c *conn) error {
			return k.extend(c, request{Op: opExtend, Epoch: 5, Deadline: in(15 * time.Second)})
		},
		"": func(*keeper, *conn) error { return nil },
	} {
		k, pgdata, work := loopHere(t)
		must(t, os.Mkdir(filepath.Join(pgdata, "global"), 0o700))
		must(t, os.WriteFile(filepath.Join(pgdata, "global", "pg_control"), append(make([]byte, 16), 5, 0, 0, 0), 0o600))
		k.server.pid, k.armed, k.epoch, k.deadline = 1, true, 5, in(10*time.Second)
		var answer error
		k.disarm(request{Op: opDisarm, Epoch: 5}, func(err error) { answer = err })
		must(t, order(k, &conn{}))
		work()
		if kept := what != ""; k.armed != kept || (answer != nil) != kept {
			t.Errorf("%q: armed %t, DISARM: %v", what, k.armed, answer)
		}
	}
}
