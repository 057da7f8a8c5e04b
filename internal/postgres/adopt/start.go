package adopt

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// Start describes what starts the cluster at boot.
type Start struct {
	Conf    string `json:"conf,omitempty"`    // Debian's start.conf
	Content string `json:"content,omitempty"` // its contents before the adoption
	Absent  bool   `json:"absent,omitempty"`  // it did not exist
	Value   string `json:"value,omitempty"`   // auto, manual or disabled
	Unit    string `json:"unit,omitempty"`    // the systemd unit
	Systemd bool   `json:"systemd,omitempty"` // systemd runs here
	Masked  bool   `json:"masked,omitempty"`  // by the adoption
}

func (x *inspection) checkStart() {
	x.Start = FindStart(x.Cluster)
	s := x.Start
	if s.Conf == "" {
		return
	}
	target := s.Conf
	if s.Absent {
		target = filepath.Dir(s.Conf)
	}
	if syscall.Access(target, 2) != nil {
		x.refuse(fmt.Sprintf("%s cannot be written, so the distribution would start the cluster behind the agent's back", target),
			"let its owner be the owner of the cluster: chown %d %s", os.Geteuid(), target)
	}
}

// FindStart finds what starts the cluster.
func FindStart(c Cluster) Start {
	var s Start
	if c.Name != "" {
		s.Conf = filepath.Join(filepath.Dir(c.ConfigFile), "start.conf")
		b, err := os.ReadFile(s.Conf)
		s.Content, s.Absent, s.Value = string(b), errors.Is(err, fs.ErrNotExist), "auto"
		for line := range strings.Lines(s.Content) {
			if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
				s.Value = line
			}
		}
	}
	_, err := os.Stat(filepath.Join(c.Root, "/run/systemd/system"))
	s.Systemd = err == nil
	s.Unit = findUnit(c)
	return s
}

// unitDirs are the directories of systemd's units, those of the administrator first.
var unitDirs = []string{"/etc/systemd/system", "/lib/systemd/system", "/usr/lib/systemd/system"}

// findUnit returns systemd's unit of the cluster: an instance of Debian's template, or the one that names the data
// directory.
func findUnit(c Cluster) string {
	for _, dir := range unitDirs {
		dir = filepath.Join(c.Root, dir)
		if c.Name != "" && exists(filepath.Join(dir, "postgresql@.service")) {
			return "postgresql@" + strings.Replace(c.Name, "/", "-", 1) + ".service"
		}
		units, _ := filepath.Glob(filepath.Join(dir, "postgres*.service"))
		for _, u := range units {
			if namesDirectory(unitText(c.Root, u), c.Data) {
				return filepath.Base(u)
			}
		}
	}
	return ""
}

// unitText returns the text of a unit with what systemctl edit, and packages, add to it.
func unitText(root, unit string) string {
	files := []string{unit}
	for _, dir := range unitDirs {
		more, _ := filepath.Glob(filepath.Join(root, dir, filepath.Base(unit)+".d", "*.conf"))
		files = append(files, more...)
	}
	var text strings.Builder
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil {
			text.Write(append(b, '\n'))
		}
	}
	return text.String()
}

// dataVariable is an assignment of the variable with the data directory. The last one is in force.
var dataVariable = regexp.MustCompile(`PGDATA=["']?([^\s"']*)`)

// namesDirectory reports whether a unit runs on the data directory, a path without links.
func namesDirectory(unit, data string) bool {
	words := strings.FieldsFunc(dataVariable.ReplaceAllString(unit, ""), func(r rune) bool { return strings.ContainsRune(" \t\n=\"'", r) })
	if set := dataVariable.FindAllStringSubmatch(unit, -1); len(set) > 0 {
		words = append(words, set[len(set)-1][1])
	}
	for _, w := range words {
		if !filepath.IsAbs(w) {
			continue
		}
		if real, err := filepath.EvalSymlinks(w); err == nil && real == data || filepath.Clean(w) == data {
			return true
		}
	}
	return false
}

// disabledConf returns start.conf with its value replaced and its comments kept.
func disabledConf(content string) string {
	var b strings.Builder
	for line := range strings.Lines(content) {
		if t := strings.TrimSpace(line); t == "" || t[0] == '#' {
			b.WriteString(line)
		}
	}
	return b.String() + "disabled\n"
}

// unitName is the form of the units that findUnit returns.
var unitName = regexp.MustCompile(`^postgres[A-Za-z0-9_.@-]*\.service$`)

// MaskedUnit returns the unit that the adoption masked, "" if it masked none. Root unmasks it, and the record that says
// so may be written by the server's user. So the unit is found anew, and another one in the record is an error.
func (a *Adopted) MaskedUnit() (string, error) {
	if !a.Start.Masked {
		return "", nil
	}
	unit := ""
	if debianName.MatchString(a.Name) {
		unit = "postgresql@" + strings.Replace(a.Name, "/", "-", 1) + ".service"
	} else {
		unit = findUnit(Cluster{Data: a.Data})
	}
	if unit != a.Start.Unit || !unitName.MatchString(unit) {
		return "", fmt.Errorf("%s says that the unit %q was masked, but %q is that of the cluster; no unit was unmasked: look at systemctl list-unit-files --state=masked, and run systemctl unmask with the right one", RecordFile, a.Start.Unit, unit)
	}
	return unit, nil
}

// Mask keeps systemd from starting the unit. It needs root.
func Mask(ctx context.Context, unit string) error { return systemctl(ctx, "mask", unit) }

// Unmask undoes Mask.
func Unmask(ctx context.Context, unit string) error { return systemctl(ctx, "unmask", unit) }

func systemctl(ctx context.Context, verb, unit string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if out, err := exec.CommandContext(ctx, "systemctl", verb, "--", unit).CombinedOutput(); err != nil {
		return fmt.Errorf("systemctl %s %s: %w: %s", verb, unit, err, strings.TrimSpace(string(out)))
	}
	return nil
}
