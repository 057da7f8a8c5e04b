package boottime

import "time"

// origin is an hour ago, so that no instant of Awake is near 0, which can mean never.
var origin = time.Now().Add(-time.Hour)

// Awake returns the time of a clock of this process that stands still while the machine is suspended. Unlike Now it needs no system call:
// Go's runtime reads its own clocks from the vDSO. It is for deadlines of connections and for measuring messages. No lease, no fence and
// nothing that another node relies on may be judged by it.
func Awake() time.Duration { return time.Since(origin) }
