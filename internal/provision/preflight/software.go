package preflight

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/coteriedb/coterie/internal/check"
	"github.com/coteriedb/coterie/internal/postgres/programs"
)

// maxSoftware is the maximum number of names in each list of a host.
const maxSoftware = 1200

// software is the software that must be equal on the hosts of a group, so that a copy from one host works on another.
type software struct {
	Arch      string   `json:"arch"`
	Majors    []int    `json:"majors"`
	Libc      string   `json:"libc"`      // indexes on text depend on its collation versions
	Locales   []string `json:"locales"`   // as locale -a lists them
	Libraries []string `json:"libraries"` // libraries that servers of the newest major version can load
}

// describeSoftware describes this host. Unknown values stay empty and are not compared.
func describeSoftware(ctx context.Context, found []programs.Install) software {
	s := software{Arch: runtime.GOARCH}
	for _, in := range found {
		s.Majors = append(s.Majors, in.Major)
	}
	if out, err := exec.CommandContext(ctx, "getconf", "GNU_LIBC_VERSION").Output(); err == nil {
		s.Libc = strings.TrimSpace(string(out))
	}
	if out, err := exec.CommandContext(ctx, "locale", "-a").Output(); err == nil {
		s.Locales = bounded(strings.Fields(string(out)))
	}
	if len(found) == 0 {
		return s
	}
	out, err := exec.CommandContext(ctx, filepath.Join(found[0].BinDir, "pg_config"), "--pkglibdir").Output()
	if err != nil {
		return s
	}
	files, _ := filepath.Glob(filepath.Join(strings.TrimSpace(string(out)), "*.so")) // the pattern is well-formed
	for _, f := range files {
		s.Libraries = append(s.Libraries, strings.TrimSuffix(filepath.Base(f), ".so"))
	}
	s.Libraries = bounded(s.Libraries)
	return s
}

func bounded(list []string) []string { return list[:min(len(list), maxSoftware)] }

// compare returns a finding for each difference between this host and the host of there.
func (s software) compare(there software) []check.Finding {
	var out []check.Finding
	find := func(level check.Level, why, run, format string, args ...any) {
		out = append(out, check.Finding{Level: level, What: fmt.Sprintf(format, args...), Why: why, Run: run})
	}
	if there.Arch != s.Arch && there.Arch != "" {
		find(check.Problem, "the files of a copy are those of one architecture", "use machines of one architecture", "%s there, %s here", there.Arch, s.Arch)
	}
	if len(there.Majors) > 0 && !slices.ContainsFunc(there.Majors, func(v int) bool { return slices.Contains(s.Majors, v) }) {
		find(check.Problem, "all replicas have one major version", "install the same there", "PostgreSQL %v there, %v here", there.Majors, s.Majors)
	}
	if there.Libc != s.Libc && there.Libc != "" && s.Libc != "" {
		find(check.Problem, "text sorts differently: indexes on text of a copy would be wrong on the other", "use the same release of the system, or ICU or C collations throughout",
			"%s there, %s here", there.Libc, s.Libc)
	}
	if lack := missingFrom(s.Locales, there.Locales); lack != "" {
		find(check.Warning, "a database with such a locale cannot be opened there", "there: locale-gen, or apt-get install locales-all", "locales of this host are not there: %s", lack)
	}
	if lack := missingFrom(s.Libraries, there.Libraries); lack != "" {
		find(check.Warning, "what databases use of them fails once that replica leads, and a server that is to preload one does not start", "install the same packages there",
			"libraries of extensions are here and not there: %s", lack)
	}
	return out
}

// missingFrom names the first few values that here has and there lacks; "" if there are none, or if a list is unknown.
func missingFrom(here, there []string) string {
	const few = 5
	if len(there) == 0 {
		return ""
	}
	var lack []string
	for _, x := range here {
		if !slices.Contains(there, x) {
			lack = append(lack, x)
		}
	}
	if more := len(lack) - few; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(lack[:few], ", "), more)
	}
	return strings.Join(lack, ", ")
}
