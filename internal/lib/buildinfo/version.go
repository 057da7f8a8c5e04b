package buildinfo

import (
	"runtime/debug"
	"sync"
)

// The build sets these with -ldflags -X. Version is that of the release, without the commit. Commit and Date are those
// of the source; if they are empty, the Go command has recorded them.
var (
	Version = "0.1.0-dev"
	Commit  = ""
	Date    = ""
)

// recorded returns the commit and its date as the Go command recorded them; empty if it did not.
var recorded = sync.OnceValues(func() (commit, date string) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "", ""
	}
	dirty := ""
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			const short = 12
			commit = s.Value[:min(short, len(s.Value))]
		case "vcs.time":
			date = s.Value
		case "vcs.modified":
			if s.Value == "true" {
				dirty = "-dirty"
			}
		}
	}
	if commit != "" {
		commit += dirty
	}
	return commit, date
})

// Source returns the commit and the date of the source, as far as they are known; "unknown" otherwise.
func Source() (commit, date string) {
	commit, date = Commit, Date
	if commit == "" {
		commit, date = recorded()
	}
	if commit == "" {
		commit = "unknown"
	}
	if date == "" {
		date = "unknown"
	}
	return commit, date
}

// Describe returns version and commit as one word, such as 0.1.0-dev+3d5a986.
func Describe() string {
	commit, _ := Source()
	return Version + "+" + commit
}

// String returns version, commit and date for people.
func String() string {
	commit, date := Source()
	return Version + " (commit " + commit + ", " + date + ")"
}
