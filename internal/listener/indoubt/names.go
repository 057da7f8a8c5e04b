package indoubt

import "github.com/coteriedb/coterie/internal/listener/stmt"

// Names are the names of the prepared statements of a session that are a COMMIT, without AND CHAIN.
type Names []string

// Committing returns those of the statements, which are texts by names.
func Committing(statements map[string]string) (n Names) {
	for name, text := range statements {
		if commits, chains := stmt.Commits([]byte(text)); commits && !chains {
			n = append(n, name)
		}
	}
	return n
}

// Has reports whether a statement with that name is a COMMIT.
func (n Names) Has(name []byte) bool {
	for _, c := range n {
		if c == string(name) {
			return true
		}
	}
	return false
}
