package browser

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// axeVersion is the axe-core that judges pages. It is fetched from npm for a test, under the MPL 2.0, and is part of
// nothing.
const axeVersion = "axe-core@4.10.3"

// axe is what was fetched, once for all tests of a program.
var axe struct {
	once sync.Once
	text string
	err  error
}

// Violations returns what axe-core finds wrong with what is open: names, roles, contrast. Where axe-core cannot be
// fetched it says so, and finds nothing.
func (p *Page) Violations() (found []string) {
	t := p.b.t
	t.Helper()
	axe.once.Do(func() { axe.text, axe.err = fetchAxe(t) })
	if axe.err != nil {
		t.Logf("NOT RUN: axe-core cannot be fetched, so it has not judged this page: %v", axe.err)
		return nil
	}
	p.Eval("if (!window.axe) { "+axe.text+" }", nil)
	p.Eval(`axe.run(document, { runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa'] }).then(r => r.violations.map(v => v.id + ': ' + v.help + ': ' + v.nodes.slice(0, 3).map(n => n.html.slice(0, 160) + ' ' + (n.any[0]?.message ?? '')).join(' | ')))`, &found)
	return found
}

// fetchAxe fetches axe-core by npm.
func fetchAxe(t *testing.T) (string, error) {
	t.Helper()
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, "npm", "pack", "--silent", axeVersion)
	c.Dir, c.WaitDelay = dir, time.Second
	c.Env = append(os.Environ(), "npm_config_cache="+filepath.Join(dir, "cache"), "npm_config_update_notifier=false")
	if out, err := c.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %.200s", err, out)
	}
	f, err := os.Open(filepath.Join(dir, strings.ReplaceAll(axeVersion, "@", "-")+".tgz"))
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	z, err := gzip.NewReader(f)
	if err != nil {
		return "", err
	}
	for in := tar.NewReader(z); ; {
		h, err := in.Next()
		if err != nil {
			return "", errors.Join(err, errors.New("it has no axe.min.js"))
		}
		if h.Name == "package/axe.min.js" {
			text, err := io.ReadAll(io.LimitReader(in, 4<<20))
			return string(text), err
		}
	}
}
