package listener

import "strings"

// splitOptions takes the words of an options string apart: white space separates, a backslash takes the next byte literally.
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

// parseOptions reads the options parameter: -c name=value, -cname=value and --name=value. The server's other switches are
// refused, because a bundle of them can hide a setting from whoever reads less carefully than getopt does.
func parseOptions(options string) ([]setting, *pgError) {
	var out []setting
	words := splitOptions(options)
	for i := 0; i < len(words); i++ {
		word := words[i]
		var assignment string
		switch {
		case word == "-c":
			i++
			if i == len(words) {
				return nil, fatal("options", stateSyntax, "options: -c requires a value")
			}
			assignment = words[i]
		case strings.HasPrefix(word, "-c"):
			assignment = word[2:]
		case strings.HasPrefix(word, "--"):
			assignment = word[2:]
		default:
			bad := fatal("options", stateNotSupported, "options: %q is not supported", clip(word))
			bad.hint = "Use -c name=value or --name=value."
			return nil, bad
		}
		name, value, found := strings.Cut(assignment, "=")
		if !found {
			return nil, fatal("options", stateSyntax, "options: %q requires a value", clip(word))
		}
		name = strings.ReplaceAll(name, "-", "_")
		if name == "" {
			return nil, fatal("options", stateSyntax, "options: a setting without a name")
		}
		if reserved(name) {
			return nil, fatal("options", stateUndefinedObject, "unrecognized configuration parameter %q", clip(name))
		}
		out = append(out, setting{name, value})
	}
	return out, nil
}

// reserved says that the name, in some spelling, means something else in a startup packet than it would as a setting.
func reserved(name string) bool {
	name = strings.ToLower(name)
	switch name {
	case "user", "database", "options", "replication":
		return true
	}
	return strings.HasPrefix(name, "_pq_.")
}

// clip shortens a client's text for a message.
func clip(s string) string {
	if len(s) <= maxName {
		return s
	}
	return cutName(s) + "…"
}
