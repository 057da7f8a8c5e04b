package boottime

import "time"

// origin is at least an hour before the start of the process, so that Awake never returns a value near 0, which can
// mean never. Until the machine is suspended, the whole seconds of Awake are those of Now.
var origin = time.Now().Add(-time.Hour - Now()%time.Hour)

// Awake returns the time of a clock of this process that stops while the machine is suspended. Unlike Now it needs no
// system call: Go's runtime reads its own clocks from the vDSO. Use it only for deadlines of connections and for
// measuring messages. Leases, fences and all times on which another node relies need Now.
func Awake() time.Duration { return time.Since(origin) }
