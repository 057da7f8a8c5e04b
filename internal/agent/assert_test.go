package agent

import (
	"errors"
	"strings"
	"testing"
)

// A failed assertion ends the loop with an error that says what is wrong; another panic is not taken for one.
func TestAssertionEndsTheLoop(t *testing.T) {
	err := orImpossible(func() error {
		assert(true, "holds")
		assert(1 > 2, "%d is not above %d", 1, 2)
		return nil
	})
	if x := (impossible{}); !errors.As(err, &x) || !strings.Contains(err.Error(), "1 is not above 2") {
		t.Errorf("%v", err)
	}
	if err := orImpossible(func() error { return ErrRestart }); !errors.Is(err, ErrRestart) {
		t.Errorf("%v", err)
	}
	defer func() {
		if recover() != "other" {
			t.Error("another panic was caught")
		}
	}()
	_ = orImpossible(func() error { panic("other") })
}

// An action of the worker that ends without having begun is such a state.
func TestEndOfAnActionThatNeverBegan(t *testing.T) {
	a := &Agent{}
	if err := orImpossible(func() error { a.taskEnded(taskResult{name: "sync"}); return nil }); err == nil {
		t.Error("it was ignored")
	}
}
