package boottime

import (
	"sync/atomic"
	"time"
)

// replaced is nil outside tests.
var replaced atomic.Pointer[func() time.Duration]

// SetForTest makes Now read another clock until restore is called. It is for tests alone: in a testing/synctest bubble
// CLOCK_BOOTTIME is real time, which does not agree with the bubble's.
func SetForTest(now func() time.Duration) (restore func()) {
	old := replaced.Swap(&now)
	return func() { replaced.Store(old) }
}
