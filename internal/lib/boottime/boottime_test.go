package boottime_test

import (
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/lib/boottime"
)

// TestClocks checks that both clocks advance at the same rate while the machine is awake, and that neither is near 0.
func TestClocks(t *testing.T) {
	t.Parallel()
	boot, awake := boottime.Now(), boottime.Awake()
	time.Sleep(2 * time.Millisecond)
	byAwake := boottime.Awake() - awake
	byBoot := boottime.Now() - boot // the other clock was read in between
	if boot <= 0 || awake < time.Hour || byAwake < 2*time.Millisecond || byBoot < byAwake {
		t.Errorf("%v and %v later %v and %v", boot, awake, byBoot, byAwake)
	}
}

func BenchmarkNow(b *testing.B) {
	for b.Loop() {
		boottime.Now()
	}
}

func BenchmarkAwake(b *testing.B) {
	for b.Loop() {
		boottime.Awake()
	}
}
