package patroni

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"time"
)

// Programs holds the paths of the programs, and their versions.
type Programs struct {
	Patroni, Etcd, HAProxy string
	Versions               map[string]string // by program
}

// Find returns the installed programs. Its error names the missing packages.
func Find(ctx context.Context) (Programs, error) {
	p := Programs{Versions: map[string]string{}}
	var missing []string
	for _, one := range []struct {
		into          *string
		name, pkg, as string
	}{
		{&p.Patroni, "patroni", "patroni", "--version"},
		{&p.Etcd, "etcd", "etcd-server", "--version"},
		{&p.HAProxy, "haproxy", "haproxy", "-v"},
	} {
		path, err := lookup(one.name)
		if err != nil {
			missing = append(missing, one.pkg)
			continue
		}
		*one.into = path
		if p.Versions[one.name], err = version(ctx, path, one.as); err != nil {
			return p, err
		}
	}
	if len(missing) > 0 {
		return p, errors.New("not installed: the packages " + strings.Join(missing, ", "))
	}
	return p, nil
}

func lookup(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	return exec.LookPath("/usr/sbin/" + name)
}

var number = regexp.MustCompile(`\d+\.\d+[^\s,]*`)

func version(ctx context.Context, path, option string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, option).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("ask %s for its version: %w", path, err)
	}
	return number.FindString(string(out)), nil
}
