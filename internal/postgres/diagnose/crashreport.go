package diagnose

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// CrashReport is why a server ended, as far as its log tells.
type CrashReport struct {
	Lost   string // a write was lost by the storage (an fsync failed): what is on the disk is not known
	NoRoom string // it found no room for its WAL
	Panic  string // the last PANIC, if neither
}

// maxLog bounds how much of the end of a log is read.
const maxLog = 512 << 10

// CrashReport reads what the server logged since its last start, to serverLog (where its standard error goes) or, where it has a log
// collector of its own, to the files that names. Only messages in English are understood; what the storage does is seen by probes as
// well.
func (k *Checks) CrashReport(ctx context.Context, serverLog string) (CrashReport, error) {
	var c CrashReport
	var errs []error
	for _, path := range append([]string{serverLog}, k.collectorLogs()...) {
		if ctx.Err() != nil {
			return c, ctx.Err()
		}
		tail, err := tailOf(path, k.logMark(path))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		c.read(tail)
	}
	if c == (CrashReport{}) {
		return c, errors.Join(errs...)
	}
	return c, nil
}

// collectorLogs are the files that the server's own log collector writes to.
func (k *Checks) collectorLogs() []string {
	b, err := os.ReadFile(k.path("current_logfiles"))
	if err != nil {
		return nil
	}
	var paths []string
	for line := range strings.Lines(string(b)) { // as in "stderr log/postgresql.log"
		_, path, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok {
			continue
		}
		if !filepath.IsAbs(path) {
			path = k.path(path)
		}
		paths = append(paths, path)
	}
	return paths
}

// MarkLogs notes how long the logs are: what a server that is started next writes comes after that.
func (k *Checks) MarkLogs(serverLog string) {
	marks := map[string]int64{}
	for _, path := range append([]string{serverLog}, k.collectorLogs()...) {
		if st, err := os.Stat(path); err == nil {
			marks[path] = st.Size()
		}
	}
	k.logMarks.Store(&marks)
}

func (k *Checks) logMark(path string) int64 {
	if m := k.logMarks.Load(); m != nil {
		return (*m)[path]
	}
	return 0
}

// tailOf reads a file from a position on, and no more than its last part.
func tailOf(path string, from int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	if from > end {
		from = 0 // it was begun anew
	}
	if _, err := f.Seek(max(from, end-maxLog), io.SeekStart); err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(f, maxLog))
}

// read takes the last start and what came after it.
func (c *CrashReport) read(log []byte) {
	if at := bytes.LastIndex(log, []byte("starting PostgreSQL")); at >= 0 {
		log = log[at:]
	}
	lines := bufio.NewScanner(bytes.NewReader(log))
	lines.Buffer(nil, maxLog+1)
	for lines.Scan() {
		l := lines.Text()
		fatal := strings.Contains(l, "PANIC") || strings.Contains(l, "FATAL")
		switch {
		// A sync that fails comes first, whatever its reason: thin volumes and network file systems say so of room, too, and the pages
		// that it was for may be gone from memory.
		case fatal && (strings.Contains(l, "could not fsync") || strings.Contains(l, "could not fdatasync") ||
			strings.Contains(l, "could not flush") || strings.Contains(l, "Input/output error") || strings.Contains(l, "Read-only file system")):
			c.Lost = clip(l)
		case fatal && strings.Contains(l, "No space left on device"), fatal && strings.Contains(l, "Disk quota exceeded"):
			c.NoRoom = clip(l)
		case strings.Contains(l, "PANIC"):
			c.Panic = clip(l)
		}
	}
}

// clip takes the message out of a line of the log.
func clip(l string) string {
	for _, severity := range []string{"PANIC", "FATAL"} {
		if _, msg, ok := strings.Cut(l, severity); ok {
			l = severity + msg
			break
		}
	}
	return strings.ToValidUTF8(l[:min(len(l), 300)], "?")
}
