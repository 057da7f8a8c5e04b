package buildinfo

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// asking is how long a program may take to say its version.
const asking = 10 * time.Second

// banner begins what coterie --version says.
const banner = "coterie version "

// told is the last answer of Installed, and of which file it is.
var told struct {
	sync.Mutex // held while the program is asked
	file       fs.FileInfo
	version    string
}

// Installed returns the version, as String has it, of the program that is at the path of this process's own program
// now: the one that a restart in place begins. A program that was replaced is run to say it, once.
func Installed(ctx context.Context) (string, error) {
	path, err := os.Executable()
	if err != nil {
		return "", err
	}
	return installed(ctx, path, "/proc/self/exe")
}

// installed is Installed for a process whose program is at path, and whose running program is the file running.
func installed(ctx context.Context, path, running string) (string, error) {
	now, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("there is no program at %s any more", path)
	}
	if err != nil {
		return "", err
	}
	if own, err := os.Stat(running); err == nil && os.SameFile(own, now) {
		return String(), nil
	}
	told.Lock()
	defer told.Unlock()
	if same(told.file, now) {
		return told.version, nil
	}
	version, err := versionOf(ctx, path)
	if err != nil {
		return "", err
	}
	told.file, told.version = now, version
	return version, nil
}

// same reports whether a file was not replaced or written since.
func same(was, now fs.FileInfo) bool {
	return was != nil && os.SameFile(was, now) && was.ModTime().Equal(now.ModTime()) && was.Size() == now.Size()
}

// versionOf runs a program to say its version.
func versionOf(ctx context.Context, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, asking)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "--version")
	cmd.Dir, cmd.WaitDelay = "/", time.Second
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s --version: %w", path, err)
	}
	version, ok := strings.CutPrefix(strings.TrimSpace(string(out)), banner)
	const most = 200
	if !ok || version == "" || len(version) > most || strings.ContainsAny(version, "\r\n\t") {
		return "", fmt.Errorf("%s is not a program of Coterie: it does not say its version", path)
	}
	return version, nil
}
