package stmt

import (
	"bytes"
	"strings"
)

// maxTag is how many words of a statement a tag has.
const maxTag = 5

// Tag returns the keywords with which a text begins, in upper case; "" if its first word is not one that begins a
// statement. It has nothing else of the text: no name, no literal and no comment, which may be secret.
func Tag(text []byte) string {
	var words []string
	for len(words) < maxTag {
		text = pastComments(text)
		n := 0
		for n < len(text) && wordByte(text[n]) {
			n++
		}
		w := string(bytes.ToLower(text[:min(n, maxWord)]))
		_, first := classes[w]
		if first = first || begins[w]; len(words) == 0 && !first || len(words) > 0 && !goesOn[w] {
			break
		}
		words, text = append(words, strings.ToUpper(w)), text[n:]
	}
	return strings.Join(words, " ")
}

// TagOf returns the keywords of a message, or of its beginning.
func TagOf(typ byte, body []byte) string {
	switch typ {
	case 'Q':
		return Tag(body)
	case 'P':
		name, text, _ := bytes.Cut(body, []byte{0})
		if tag := Tag(text); len(name) == 0 || tag == "" {
			return tag
		}
		return "PREPARE AS " + Tag(text)
	case 'B':
		return "EXECUTE"
	case 'C':
		return "DEALLOCATE"
	case 'd', 'c', 'f':
		return "COPY"
	}
	return ""
}

// Leaves returns the keywords of a Query or a Parse whose text begins with a statement that may leave something in its
// session that no other server can have: a temporary object, a cursor or a channel; "" for any other.
func Leaves(typ byte, body []byte) string {
	if typ == 'P' {
		_, body, _ = bytes.Cut(body, []byte{0})
	}
	body = bytes.TrimLeft(body, " \t\r\n")
	for _, word := range leaving {
		if len(body) > len(word) && body[0]|0x20 == word[0] && bytes.EqualFold(body[:len(word)], word) {
			if tag := Tag(body); word[0] != 'c' || strings.Contains(tag, "TEMP") {
				return tag
			}
		}
	}
	return ""
}

var leaving = [][]byte{[]byte("create"), []byte("declare"), []byte("listen")}

// maxWord is more than the length of the longest keyword of a tag.
const maxWord = 24

// begins are words that begin a statement, beside those of classes.
var begins = setOf("commit end prepare import load reassign security")

// goesOn are keywords that tell more of a statement.
var goesOn = setOf(`or replace temp temporary global local unlogged materialized recursive foreign table view index sequence function
	procedure schema type role user database extension publication subscription session authorization transaction time zone
	all prepared work plans sequences default`)

// pastComments returns the text without space and comments at its beginning; nothing if one of them does not end.
func pastComments(text []byte) []byte {
	for {
		text = bytes.TrimLeft(text, " \t\r\n\f\v")
		end := 0
		switch {
		case bytes.HasPrefix(text, []byte("--")):
			end = bytes.IndexAny(text, "\r\n")
		case bytes.HasPrefix(text, []byte("/*")):
			q := queries{rest: text}
			if end = -1; q.comment() {
				end = len(text) - len(q.rest)
			}
		}
		if end < 0 {
			return nil
		}
		if end == 0 {
			return text
		}
		text = text[end:]
	}
}
