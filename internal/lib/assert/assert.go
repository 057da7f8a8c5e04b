package assert

import (
	"errors"
	"fmt"
)

// ViolationError is the error of an assertion that does not hold.
type ViolationError struct{ What string }

// Error returns what was violated.
func (x ViolationError) Error() string { return "a state that cannot be: " + x.What }

// That panics with a ViolationError unless the condition holds. A goroutine that calls it has a caller that runs Guard,
// or that recovers and ends its work.
func That(holds bool, format string, args ...any) {
	if !holds {
		panic(ViolationError{fmt.Sprintf(format, args...)})
	}
}

// Guard runs f and returns its error, or the ViolationError of an assertion in it. Any other panic passes through.
func Guard(f func() error) (err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case ViolationError:
			err = r
		default:
			panic(r)
		}
	}()
	return f()
}

// Violated reports whether an error is, or wraps, that of a violated assertion.
func Violated(err error) bool {
	var x ViolationError
	return errors.As(err, &x)
}
