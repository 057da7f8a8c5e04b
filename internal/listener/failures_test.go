package listener

import (
	"fmt"
	"testing"
	"time"
)

func TestFailureDelayGrowsAndIsForgotten(t *testing.T) {
	var f failures
	now := time.Unix(1000, 0)
	var got []time.Duration
	for range 7 {
		got = append(got, f.next("1.2.3.4", now, time.Millisecond))
	}
	if got[0] != time.Millisecond || got[1] != 2*time.Millisecond || got[6] != 32*time.Millisecond {
		t.Errorf("delays %v", got)
	}
	if d := f.next("5.6.7.8", now, time.Millisecond); d != time.Millisecond {
		t.Errorf("another address waits %v", d)
	}
	if d := f.next("1.2.3.4", now.Add(2*forgetFailure), time.Millisecond); d != time.Millisecond {
		t.Errorf("after a while %v", d)
	}
	for i := range 2 * maxAddresses {
		f.next(fmt.Sprint(i), now, time.Millisecond)
	}
	if len(f.seen) > maxAddresses {
		t.Errorf("%d addresses remembered", len(f.seen))
	}
}
