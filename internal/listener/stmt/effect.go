package stmt

import "bytes"

// Effect is what a failover could undo of a command.
type Effect int

// The effects that a statement may have had.
const (
	NoEffect Effect = iota // it commits nothing
	Reads                  // most probably it commits nothing, but a function may have written
	Writes
)

// CommandTag returns the tag of a CommandComplete message.
func CommandTag(body []byte) []byte {
	tag, _, _ := bytes.Cut(body, []byte{0})
	return tag
}

// EndsBlock reports whether the tag is of a statement that ends a transaction with its effects kept.
func EndsBlock(tag []byte) bool {
	return string(tag) == "COMMIT" || string(tag) == "PREPARE TRANSACTION"
}

// OnlyOnPrimary reports whether the tag is of a statement that a standby refuses, whatever its text.
func OnlyOnPrimary(tag []byte) bool {
	word, _, _ := bytes.Cut(tag, []byte{' '})
	switch string(word) {
	case "INSERT", "UPDATE", "DELETE", "MERGE", "TRUNCATE", "CREATE", "ALTER", "DROP", "VACUUM", "REINDEX", "GRANT", "REVOKE", "NOTIFY":
		return true
	}
	return string(tag) == "PREPARE TRANSACTION" || string(tag) == "COMMIT PREPARED"
}

// EffectOf returns what a statement with this tag may have committed.
func EffectOf(tag []byte) Effect {
	switch string(tag) {
	case "BEGIN", "START TRANSACTION", "ROLLBACK", "SAVEPOINT", "RELEASE", "SET", "SHOW", "RESET", "PREPARE", "DEALLOCATE",
		"DEALLOCATE ALL", "CLOSE CURSOR", "CLOSE CURSOR ALL", "LISTEN", "UNLISTEN":
		return NoEffect
	}
	if bytes.HasPrefix(tag, []byte("SELECT ")) || bytes.HasPrefix(tag, []byte("FETCH ")) { // also CREATE TABLE AS
		return Reads
	}
	return Writes
}

// equalFold compares with a name in lower case, as PostgreSQL compares the names of its settings: by ASCII letters.
func equalFold(text []byte, name string) bool {
	for i, c := range text {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c != name[i] {
			return false
		}
	}
	return true
}

// DoesNothing reports whether a command with that tag has read and written nothing, and has taken no snapshot.
func DoesNothing(tag []byte) bool {
	switch string(tag) {
	case "BEGIN", "START TRANSACTION", "SHOW", "SAVEPOINT", "RELEASE":
		return true
	}
	return false
}

// ChangedRows reports whether a command with that tag has changed rows, so that its transaction has a number.
func ChangedRows(tag []byte) bool {
	verb, rows, _ := bytes.Cut(tag, []byte{' '})
	if _, of, has := bytes.Cut(rows, []byte{' '}); has { // INSERT 0 1
		rows = of
	}
	switch string(verb) {
	case "INSERT", "UPDATE", "DELETE", "MERGE":
		return len(rows) > 0 && rows[0] != '0'
	}
	return false
}
