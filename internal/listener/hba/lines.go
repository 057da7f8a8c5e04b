package hba

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"

	"github.com/coteriedb/coterie/internal/lib/regular"
)

// readAll reads a file of rules or names.
func readAll(r io.Reader) (string, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxRules+1))
	if err != nil {
		return "", err
	}
	if len(text) > maxRules {
		return "", fmt.Errorf("more than %d bytes", maxRules)
	}
	return string(text), nil
}

// joined yields each line of a text with those that continue it, because each before them ends with a backslash, and
// the number of the first of them. As in PostgreSQL the last line may end with a backslash, too, a comment is continued
// like any line, and carriage returns at the end of a line belong to its end.
func joined(text string) iter.Seq2[int, string] {
	return func(yield func(int, string) bool) {
		var line []byte
		first, from := 1, 0 // the number of its first line, and where the present one begins
		number := 0
		for part := range strings.SplitSeq(text, "\n") {
			number++
			line = append(line, part...)
			for len(line) > 0 && line[len(line)-1] == '\r' {
				line = line[:len(line)-1]
			}
			if last := len(line) - 1; last >= from && line[last] == '\\' {
				line, from = line[:last], last
				continue
			}
			if !yield(first, string(line)) {
				return
			}
			line, first, from = line[:0], number+1, 0
		}
		if len(line) > 0 {
			yield(first, string(line))
		}
	}
}

// splitFields splits a line into fields, and a field at its commas. Quotes keep white space, commas and # literal. A
// comma separates two names of a field only where it is the end of the first.
func splitFields(line string) ([][]Name, error) {
	if strings.Contains(line, "\x00") {
		return nil, errors.New("a NUL byte") // PostgreSQL reads on behind the next end of a line
	}
	var fields [][]Name
	var list []Name
	for i := 0; i < len(line); {
		name, next, err := hbaToken(line, i)
		if err != nil {
			return nil, err
		}
		i = next
		comma := false
		if name != nil {
			list = append(list, *name)
			if comma = i < len(line) && line[i] == ','; comma {
				i++
			}
		}
		if !comma && list != nil {
			fields = append(fields, list)
			list = nil
		}
	}
	if list != nil {
		fields = append(fields, list)
	}
	return fields, nil
}

const blanks = " \t\r"

// hbaToken reads the token behind i, and returns where it ends: at white space, a comma or the end of what is no
// comment. White space and commas before it mean nothing. The token is nil if there is none.
func hbaToken(line string, i int) (*Name, int, error) {
	for i < len(line) && strings.IndexByte(blanks+",", line[i]) >= 0 {
		i++
	}
	var text []byte
	start, inside := i, false
	for i < len(line) && (inside || strings.IndexByte(blanks+",#", line[i]) < 0) {
		switch {
		case line[i] != '"':
			text = append(text, line[i])
		case inside && i+1 < len(line) && line[i+1] == '"':
			text = append(text, '"')
			i++
		default:
			inside = !inside
		}
		i++
	}
	if inside {
		return nil, i, errors.New("a quote is not closed")
	}
	end := i
	if i < len(line) && line[i] == '#' {
		i = len(line)
	}
	if end == start {
		return nil, i, nil
	}
	return &Name{Text: string(text), Quoted: line[start] == '"'}, i, nil
}

// isInclude reports whether PostgreSQL replaces the line by a file, from 16 on.
func isInclude(fields [][]Name) bool {
	return len(fields) == 2 && slices.Contains([]string{"include", "include_if_exists", "include_dir"}, fields[0][0].Text)
}

// listFile reads names from a file, separated by white space, lines or commas. As in PostgreSQL a missing file is an
// error. One without names is, too: PostgreSQL reads the line as if the field was not there.
func listFile(path string) ([]Name, error) {
	f, err := regular.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	text, err := readAll(f)
	if err != nil {
		return nil, err
	}
	var names []Name
	for _, line := range joined(text) {
		fields, err := splitFields(line)
		if err != nil {
			return nil, err
		}
		if isInclude(fields) {
			return nil, fmt.Errorf("%s is not supported: put the names of that file here", fields[0][0].Text)
		}
		for _, f := range fields {
			names = append(names, f...)
		}
	}
	if len(names) == 0 {
		return nil, errors.New("the list is empty")
	}
	return names, nil
}
