package startup

import (
	"strings"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
)

// splitOptions splits an options string into words: white space separates, and a backslash takes the next byte
// literally.
func splitOptions(options string) []string {
	const space = " \t\n\v\f\r"
	var words []string
	for i := 0; i < len(options); {
		if strings.IndexByte(space, options[i]) >= 0 {
			i++
			continue
		}
		var word []byte
		for i < len(options) && strings.IndexByte(space, options[i]) < 0 {
			if options[i] == '\\' {
				i++
				if i == len(options) {
					break
				}
			}
			word = append(word, options[i])
			i++
		}
		words = append(words, string(word))
	}
	return words
}

// parseOptions reads the options parameter: -c name=value, -cname=value and --name=value. The server's other switches
// are refused, because a bundle of them can hide a setting from a reader that is less careful than getopt.
func parseOptions(options string) ([]pgwire.Parameter, *pgwire.Error) {
	var out []pgwire.Parameter
	words := splitOptions(options)
	for i := 0; i < len(words); i++ {
		word := words[i]
		var assignment string
		switch {
		case word == "-c":
			i++
			if i == len(words) {
				return nil, pgwire.Fatal("options", pgwire.StateSyntax, "options: -c requires a value")
			}
			assignment = words[i]
		case strings.HasPrefix(word, "-c"):
			assignment = word[2:]
		case strings.HasPrefix(word, "--"):
			assignment = word[2:]
		default:
			bad := pgwire.Fatal("options", pgwire.StateNotSupported, "options: %q is not supported", pgwire.Clip(word))
			bad.Hint = "Use -c name=value or --name=value."
			return nil, bad
		}
		name, value, found := strings.Cut(assignment, "=")
		if !found {
			return nil, pgwire.Fatal("options", pgwire.StateSyntax, "options: %q requires a value", pgwire.Clip(word))
		}
		name = strings.ReplaceAll(name, "-", "_")
		if name == "" {
			return nil, pgwire.Fatal("options", pgwire.StateSyntax, "options: a setting without a name")
		}
		if reserved(name) {
			return nil, pgwire.Fatal("options", pgwire.StateUndefinedObject, "unrecognized configuration parameter %q", pgwire.Clip(name))
		}
		out = append(out, pgwire.Parameter{Name: name, Value: value})
	}
	return out, nil
}

// reserved reports whether the name, in any case of letters, means something else in a startup packet than it would
// as a setting.
func reserved(name string) bool {
	name = strings.ToLower(name)
	switch name {
	case "user", "database", "options", "replication":
		return true
	}
	return strings.HasPrefix(name, "_pq_.")
}
