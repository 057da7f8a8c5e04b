package listener

import (
	"errors"
	"fmt"
)

// SQLSTATEs that the listener itself sends.
const (
	stateProtocolViolation = "08P01"
	stateUnknownOutcome    = "08007"
	stateSerialization     = "40001"
	stateInvalidAuth       = "28000"
	stateInvalidPassword   = "28P01"
	stateAdminShutdown     = "57P01"
	stateCannotConnect     = "57P03"
	stateTooMany           = "53300"
	stateNotSupported      = "0A000"
	stateSyntax            = "42601"
	stateUndefinedObject   = "42704"
	stateInvalidValue      = "22023"
	stateEncoding          = "22021"
)

// pgError is a fatal error as the client is told of it. reason is the name under which it is counted.
type pgError struct {
	reason, code, message, detail, hint string
}

func (e *pgError) Error() string { return fmt.Sprintf("%s (SQLSTATE %s)", e.message, e.code) }

func fatal(reason, code, format string, args ...any) *pgError {
	return &pgError{reason: reason, code: code, message: fmt.Sprintf(format, args...)}
}

// outOfFiles is what a client hears where its session would take more descriptors than there are.
func outOfFiles() *pgError {
	e := fatal("descriptors", stateTooMany, "the listener has no file descriptor left for one more session")
	e.hint = "Raise the agent's limit of open files (LimitNOFILE of its unit)."
	return e
}

// encode returns the error as an ErrorResponse.
func (e *pgError) encode() []byte {
	b := appendCString(nil, "SFATAL")
	b = appendCString(b, "VFATAL")
	b = appendCString(b, "C"+e.code)
	b = appendCString(b, "M"+e.message)
	if e.detail != "" {
		b = appendCString(b, "D"+e.detail)
	}
	if e.hint != "" {
		b = appendCString(b, "H"+e.hint)
	}
	return appendMessage(nil, 'E', append(b, 0))
}

// asFatal returns the pgError inside err, if there is one.
func asFatal(err error) (*pgError, bool) {
	var e *pgError
	ok := errors.As(err, &e)
	return e, ok
}

// errorField returns a field of an ErrorResponse body. It accepts any bytes: a truncated or malformed body has no field.
func errorField(body []byte, field byte) string {
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
