package asyncwriter

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestQueueDropsWhatDoesNotFit holds that a job which hangs delays no caller, and that the queued ones are run once it
// returns.
func TestQueueDropsWhatDoesNotFit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(2)
		q.Start()
		hang, ran := make(chan struct{}), 0
		if !q.Do(func() { <-hang }) {
			t.Error("the first job was dropped")
		}
		synctest.Wait() // it has been taken
		for i, want := range []bool{true, true, false} {
			if got := q.Do(func() { ran++ }); got != want {
				t.Errorf("job %d was taken: %v", i, got)
			}
		}
		close(hang)
		q.Close()
		if ran != 2 {
			t.Errorf("%d jobs were run", ran)
		}
		if q.Do(func() {}) {
			t.Error("a closed queue took a job")
		}
		q.Close() // again
	})
}

// TestCloseDoesNotHang holds that a job which never returns keeps Close for a second only.
func TestCloseDoesNotHang(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(2)
		q.Start()
		hang := make(chan struct{})
		q.Do(func() { <-hang })
		start := time.Now()
		q.Close()
		if took := time.Since(start); took != closeLimit {
			t.Errorf("Close took %v", took)
		}
		close(hang)
	})
}

// slowDisk hangs until it is healed.
type slowDisk struct {
	healed chan struct{}
	text   bytes.Buffer
}

func (d *slowDisk) Write(b []byte) (int, error) {
	<-d.healed
	return d.text.Write(b)
}

// TestWriterCountsLostLines holds that the number of dropped lines is reported in their place, as soon as the queue has
// room.
func TestWriterCountsLostLines(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &slowDisk{healed: make(chan struct{})}
		w := NewWriter(d, 4, func(n int) string { return fmt.Sprintf("%d lines are missing", n) })
		line := []byte("0\n")
		write := func() {
			if n, err := w.Write(line); n != 2 || err != nil {
				t.Errorf("Write returns %d, %v", n, err)
			}
			line[0]++ // the writer has a copy
		}
		write()
		synctest.Wait() // the disk has it
		for range 6 {
			write()
		}
		close(d.healed)
		synctest.Wait()
		write()
		w.Close()
		write()
		const want = "0 1 2 3 4 2 lines are missing 7"
		if got := strings.Join(strings.Split(strings.TrimSpace(d.text.String()), "\n"), " "); got != want {
			t.Errorf("the log has %q, want %q", got, want)
		}
	})
}
