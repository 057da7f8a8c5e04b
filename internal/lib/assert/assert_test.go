package assert

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
)

// A violated assertion is an error that says what is wrong; another panic is not taken for one.
func TestGuard(t *testing.T) {
	err := Guard(func() error {
		That(true, "holds")
		That(1 > 2, "%d is not above %d", 1, 2)
		return nil
	})
	if !Violated(fmt.Errorf("wrapped: %w", err)) || !strings.Contains(err.Error(), "1 is not above 2") {
		t.Errorf("%v", err)
	}
	if err := Guard(func() error { return io.EOF }); !errors.Is(err, io.EOF) || Violated(err) {
		t.Errorf("%v", err)
	}
	defer func() {
		if recover() != "other" {
			t.Error("another panic was caught")
		}
	}()
	_ = Guard(func() error { panic("other") })
}
