package diagnose

import (
	"encoding/json"
	"regexp"
	"strings"
)

// A log has texts of clients in it: statements, names of databases and applications. None of them may pass for a report
// of the server itself, since the copy of a server that says that a write was lost is not used any more.

// logFile is a file that the server logs to.
type logFile struct {
	path   string
	report func(line string) (severity, message string) // what a line reports; "" for one that only goes on
}

// tag is what begins a message in a log of lines, behind the prefix that an administrator has chosen. A log may have
// the SQLSTATE between the two (log_error_verbosity).
var tag = regexp.MustCompile(`(DEBUG[1-5]?|LOG|INFO|NOTICE|WARNING|ERROR|FATAL|PANIC|DETAIL|HINT|QUERY|CONTEXT|LOCATION|STATEMENT|BACKTRACE):  (?:[0-9A-Z]{5}: )?`)

// inText reads a line of a log of lines. A further line of a statement begins with a tabulator. A line with two tags
// has one of them in a text of a client, or in what another server said.
func inText(line string) (severity, message string) {
	found := tag.FindAllStringSubmatchIndex(line, 2)
	if len(found) != 1 || strings.HasPrefix(line, "\t") {
		return "", ""
	}
	return line[found[0][2]:found[0][3]], line[found[0][1]:]
}

// csvReport is the severity, the SQLSTATE and the message in a record. Quotes in texts of clients are doubled, so that
// the message of such a text is empty.
var csvReport = regexp.MustCompile(`,"?(FATAL|PANIC)"?,"?[0-9A-Z]{5}"?,"((?:[^"]|"")*)"`)

// inCSV reads a line of a log in CSV.
func inCSV(line string) (severity, message string) {
	for _, m := range csvReport.FindAllStringSubmatch(line, -1) {
		if m[2] != "" {
			return m[1], strings.ReplaceAll(m[2], `""`, `"`)
		}
	}
	return "", ""
}

// inJSON reads a line of a log in JSON, which is one record.
func inJSON(line string) (severity, message string) {
	var r struct {
		Severity string `json:"error_severity"`
		Message  string `json:"message"`
	}
	if json.Unmarshal([]byte(line), &r) != nil {
		return "", ""
	}
	return r.Severity, r.Message
}
