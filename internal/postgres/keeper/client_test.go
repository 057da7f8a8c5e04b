package keeper

import (
	"context"
	"errors"
	"testing"
	"time"
)

// A caller whose time is over before it asks says nothing about the keeper: the connection, and with it a primary,
// lives on.
func TestLateCallerKeepsTheConnection(t *testing.T) {
	n := newNode(t)
	n.spawn()
	c, _ := n.dial("a-1")
	for range 20 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
		_, err := c.Status(ctx)
		cancel()
		if err == nil || errors.Is(err, ErrClosed) {
			t.Fatalf("a late caller was told %v", err)
		}
	}
	if _, err := c.Status(t.Context()); err != nil {
		t.Error(err)
	}
}
