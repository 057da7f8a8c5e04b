package pgwire

import (
	"errors"
	"fmt"
)

// SQLSTATEs of the errors that Coterie reports itself.
const (
	StateProtocolViolation = "08P01"
	StateUnknownOutcome    = "08007"
	StateSerialization     = "40001"
	StateInvalidAuth       = "28000"
	StateInvalidPassword   = "28P01"
	StateAdminShutdown     = "57P01"
	StateCannotConnect     = "57P03"
	StateTooMany           = "53300"
	StateLimit             = "54000"
	StateNotSupported      = "0A000"
	StateSyntax            = "42601"
	StateUndefinedObject   = "42704"
	StateInvalidValue      = "22023"
	StateEncoding          = "22021"
)

// Error is a fatal error as the client receives it. Reason is the name under which it is counted, and is not sent.
type Error struct {
	Reason, Code, Message, Detail, Hint string
}

// Error returns the message with its SQLSTATE.
func (e *Error) Error() string { return fmt.Sprintf("%s (SQLSTATE %s)", e.Message, e.Code) }

// Fatal returns an Error with a formatted message.
func Fatal(reason, code, format string, args ...any) *Error {
	return &Error{Reason: reason, Code: code, Message: fmt.Sprintf(format, args...)}
}

// Encode returns the error as an ErrorResponse of severity FATAL, which ends the session. Empty fields are left out.
func (e *Error) Encode() []byte { return e.encode("FATAL") }

// EncodeError returns it with severity ERROR: the session goes on.
func (e *Error) EncodeError() []byte { return e.encode("ERROR") }

func (e *Error) encode(severity string) []byte {
	b := AppendCString(nil, "S"+severity)
	b = AppendCString(b, "V"+severity)
	b = AppendCString(b, "C"+e.Code)
	b = AppendCString(b, "M"+e.Message)
	if e.Detail != "" {
		b = AppendCString(b, "D"+e.Detail)
	}
	if e.Hint != "" {
		b = AppendCString(b, "H"+e.Hint)
	}
	return AppendMessage(nil, 'E', append(b, 0))
}

// AsError returns the Error that err wraps, if it wraps one.
func AsError(err error) (*Error, bool) {
	var e *Error
	ok := errors.As(err, &e)
	return e, ok
}

// ErrorField returns a field of an ErrorResponse body. A field is empty if it is missing; truncated or malformed bodies
// are accepted.
func ErrorField(body []byte, field byte) string {
	for len(body) > 0 && body[0] != 0 {
		code, rest := body[0], body[1:]
		end := 0
		for end < len(rest) && rest[end] != 0 {
			end++
		}
		if code == field {
			return string(rest[:end])
		}
		if end == len(rest) {
			return ""
		}
		body = rest[end+1:]
	}
	return ""
}
