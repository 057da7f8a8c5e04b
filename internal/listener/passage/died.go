package passage

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"

	"github.com/coteriedb/coterie/internal/listener/underway"
)

// A backend whose postmaster has died tells its client so and ends. The client of a session that may outlive that must
// get nothing of it, so its beginning is held until it is known to be another message.

// maxLast bounds the length of such an error as its header has it, in bytes. A longer one is taken for another error.
// The context of the statement is the only part of it without a bound of its own.
const maxLast = 8 << 10

// ofDeath returns the values of which a field of such an error has one; nil: it may have any. The function that reports
// it is the same in every language of messages. Another FATAL with the same code is of an administrator who ends the
// session.
func ofDeath(field byte) []string {
	switch field {
	case 'V':
		return []string{"FATAL"}
	case 'C':
		return []string{"57P01"}
	case 'R':
		return []string{"secure_read", "secure_write"}
	}
	return nil
}

// fieldsOfDeath is for how many fields ofDeath has values.
const fieldsOfDeath = 3

// postmasterDied reports whether a message is the last of a backend whose postmaster has died, on a session that may
// outlive that.
func postmasterDied(w *underway.Work, typ byte, message []byte) bool {
	if typ != 'E' || !mayBeOfDeath(w, message) {
		return false
	}
	_, all := comparesToDeath(message[headerLength:])
	return all
}

// mayBeOfDeath reports whether a message with that beginning may be such an error.
func mayBeOfDeath(w *underway.Work, part []byte) bool {
	if part[0] != 'E' || !w.Known.Follows {
		return false
	}
	if len(part) < headerLength {
		return true
	}
	if binary.BigEndian.Uint32(part[1:]) > maxLast {
		return false
	}
	may, _ := comparesToDeath(part[headerLength:])
	return may
}

// comparesToDeath compares the beginning of an error's body with such an error. may is whether no field differs, all
// whether each that is compared is there.
func comparesToDeath(body []byte) (may, all bool) {
	found := 0
	for len(body) > 0 && body[0] != 0 {
		value, rest, whole := bytes.Cut(body[1:], []byte{0})
		wants := ofDeath(body[0])
		fits := func(want string) bool {
			return whole && string(value) == want || !whole && strings.HasPrefix(want, string(value))
		}
		if wants != nil && !slices.ContainsFunc(wants, fits) {
			return false, false
		}
		if !whole {
			return true, false
		}
		if wants != nil {
			found++
		}
		body = rest
	}
	all = found == fieldsOfDeath
	return all || len(body) == 0, all
}
