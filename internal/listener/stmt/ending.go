package stmt

import (
	"bytes"
	"strings"
)

// Ending is how a text that is one statement ends a transaction block.
type Ending int

// The endings. EndsNothing is also that of a text that is not understood.
const (
	EndsNothing    Ending = iota
	EndsByCommit          // COMMIT, END, PREPARE TRANSACTION: an error of it ends the block, too
	EndsByRollback        // ROLLBACK, ABORT, without AND CHAIN
)

// EndingOf returns how a text ends a transaction block. A block that AND CHAIN of a ROLLBACK begins has the properties
// of the one before it, so that counts as no ending.
func EndingOf(text []byte) Ending {
	text, _, _ = bytes.Cut(text, []byte{0})
	words, ok := plainWords(text)
	if !ok || len(words) == 0 {
		return EndsNothing
	}
	verb, rest := words[0], words[1:]
	if verb == "prepare" {
		if len(rest) == 2 && rest[0] == "transaction" && rest[1] == "'" {
			return EndsByCommit
		}
		return EndsNothing
	}
	if len(rest) > 0 && (rest[0] == "work" || rest[0] == "transaction") {
		rest = rest[1:]
	}
	options := strings.Join(rest, " ")
	switch verb {
	case "commit", "end":
		if options == "" || options == "and chain" || options == "and no chain" {
			return EndsByCommit
		}
	case "rollback", "abort":
		if options == "" || options == "and no chain" {
			return EndsByRollback
		}
	}
	return EndsNothing
}

// Commits reports whether a text is one COMMIT or END and nothing else. chains means that it has AND CHAIN, so that a
// transaction with the same characteristics begins.
func Commits(text []byte) (commits, chains bool) {
	text, _, _ = bytes.Cut(text, []byte{0})
	switch word := firstWord(bytes.TrimLeft(text, " \t\r\n\f")); string(word) {
	case "commit", "end", "": // "": it begins with a comment
	default: // nearly all statements of a block
		return false, false
	}
	if words, _ := plainWords(text); EndingOf(text) == EndsByCommit && words[0] != "prepare" {
		return true, strings.HasSuffix(strings.Join(words, " "), "and chain")
	}
	return false, false
}

// plainWords returns the words of one statement in lower case, a literal as its quote. It reports false for a text with
// anything else, but space, comments and semicolons at its end.
func plainWords(text []byte) (words []string, ok bool) {
	over := false
	for len(text) > 0 {
		c := text[0]
		switch {
		case strings.IndexByte(" \t\r\n\f", c) >= 0:
			text = text[1:]
			continue
		case bytes.HasPrefix(text, []byte("--")) || bytes.HasPrefix(text, []byte("/*")):
			q := queries{rest: text}
			if !q.token() {
				return nil, false
			}
			text = q.rest
			continue
		case c == ';':
			text, over = text[1:], true
			continue
		}
		n := 0
		for n < len(text) && text[n]|0x20 >= 'a' && text[n]|0x20 <= 'z' {
			n++
		}
		switch {
		case over:
			return nil, false
		case n > 0 && (n == len(text) || !wordByte(text[n]) && text[n] != '\''):
			words, text = append(words, string(bytes.ToLower(text[:n]))), text[n:]
		case c == '\'':
			end := bytes.IndexByte(text[1:], '\'')
			if end < 0 || bytes.IndexByte(text[1:end+1], '\\') >= 0 {
				return nil, false
			}
			words, text = append(words, "'"), text[end+2:]
		default:
			return nil, false
		}
	}
	return words, true
}
