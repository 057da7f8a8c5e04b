package liveness

import (
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/lib/boottime"
)

func TestMemberThatAnswersHeartbeatsNeedNotBePinged(t *testing.T) {
	a := newAnswered()
	if a.lately("b", time.Hour) {
		t.Fatal("nobody has answered yet")
	}
	a.note("b", boottime.Now()-time.Minute)
	if a.lately("b", time.Second) || !a.lately("b", time.Hour) {
		t.Fatal("what counts is when the answered heartbeat was sent")
	}
	a.note("b", boottime.Now())
	a.over("b")
	if a.lately("b", time.Hour) {
		t.Fatal("a stream that ended says nothing of the member any more")
	}
	select {
	case <-a.ended:
	default:
		t.Fatal("the end of a stream asks for a ping")
	}
}
