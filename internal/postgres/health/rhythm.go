package health

import "time"

// timesUsual is how many times the longest attempt of the last day another one takes until that is unusual.
const timesUsual = 3

// UnusualFloor is the least time after which a hang is unusual, whatever is known. blindFloor is that of a disk without
// counters, such as a file system of a network: nothing tells there whether it is slow or dead.
const (
	UnusualFloor = 2 * time.Second
	blindFloor   = 5 * time.Second
)

// learned is after how many attempts it is known what is usual.
const learned = 6

// rhythm knows how long attempts take: for each hour of the last day the longest. A checkpoint or a backup of last
// night is usual today.
type rhythm struct {
	hours [24]time.Duration
	last  int64 // number of the hour of the last attempt
	count int   // attempts so far, up to learned
}

// took notes an attempt that has succeeded.
func (r *rhythm) took(now, d time.Duration) {
	r.turn(now)
	r.count = min(r.count+1, learned)
	if h := &r.hours[r.last%int64(len(r.hours))]; d > *h {
		*h = d
	}
}

// longest returns the longest attempt of the last day. known reports whether there were enough.
func (r *rhythm) longest(now time.Duration) (d time.Duration, known bool) {
	r.turn(now)
	for _, h := range r.hours {
		d = max(d, h)
	}
	return d, r.count >= learned
}

// turn forgets the hours that are over a day old.
func (r *rhythm) turn(now time.Duration) {
	hour := int64(now / time.Hour)
	for n := min(hour-r.last, int64(len(r.hours))); n > 0; n-- {
		r.hours[(hour-n+1)%int64(len(r.hours))] = 0
	}
	r.last = hour
}
