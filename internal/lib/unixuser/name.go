package unixuser

import (
	"os/user"
	"strconv"
)

// Name returns the name of a user; of one that has none, its number.
func Name(uid int) string {
	text := strconv.Itoa(uid)
	if u, err := user.LookupId(text); err == nil {
		return u.Username
	}
	return text
}
