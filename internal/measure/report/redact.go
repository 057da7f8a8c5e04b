package report

import (
	"regexp"
	"strings"
)

var (
	uriPassword = regexp.MustCompile(`(?i)(postgres(?:ql)?://[^\s:/@]*:)[^\s@]*(@)`)
	keyword     = regexp.MustCompile(`(?i)((?:password|passfile|sslpassword|sslkey)\s*=\s*)('(?:\\.|[^'\\])*'|[^\s&'"]+)`)
	token       = regexp.MustCompile(`(?i)((?:--token|PGPASSWORD)[= ])(\S+)`)
)

// Redact takes passwords out of a text: those of connection strings, in either form, and of options.
func Redact(s string) string {
	s = uriPassword.ReplaceAllString(s, "${1}***${2}")
	s = keyword.ReplaceAllString(s, "${1}***")
	return token.ReplaceAllString(s, "${1}***")
}

// CommandLine joins arguments as they could be typed again, without secrets.
func CommandLine(args []string) string {
	quoted := make([]string, len(args))
	for i, a := range args {
		a = Redact(a)
		if a == "" || strings.ContainsAny(a, " \t\n'\"$&;|<>()*?#\\") {
			a = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
		quoted[i] = a
	}
	return strings.Join(quoted, " ")
}
