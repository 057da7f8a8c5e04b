package boottime

import "time"

// origin is an hour back, so that no instant of Awake is near 0, which may mean never.
var origin = time.Now().Add(-time.Hour)

// Awake is a clock of this process that stands still while the machine is suspended. It costs no system call, which Now does: Go's
// runtime asks the kernel's shared page for its own clocks only. It is for deadlines of connections and for measuring what each message
// takes; no lease, no fence and nothing that another node decides by may be judged by it.
func Awake() time.Duration { return time.Since(origin) }
