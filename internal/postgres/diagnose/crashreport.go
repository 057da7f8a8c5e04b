package diagnose

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// CrashReport is why a server ended, as far as its log tells.
type CrashReport struct {
	Lost   string // the storage lost a write (an fsync failed): the contents of the disk are unknown
	NoRoom string // the server found no room for its WAL
	Panic  string // the last PANIC, if neither
}

// maxLog bounds how much of the end of a log is read.
const maxLog = 512 << 10

// CrashReport reads the log since the server's last start: serverLog, to which its standard error goes, and the files
// of its log collector if it has one. Only messages in English are understood; probes detect failures of the storage as
// well.
func (k *Checks) CrashReport(ctx context.Context, serverLog string) (CrashReport, error) {
	var c CrashReport
	var errs []error
	for _, l := range k.logs(serverLog) {
		if ctx.Err() != nil {
			return c, ctx.Err()
		}
		tail, err := sinceMark(l.path, k.logMark(l.path))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		c.read(tail, l.report)
	}
	if c == (CrashReport{}) {
		return c, errors.Join(errs...)
	}
	return c, nil
}

// logs are the files that the server writes to: serverLog, and those of its own log collector.
func (k *Checks) logs(serverLog string) []logFile {
	all := []logFile{{serverLog, inText}}
	b, err := os.ReadFile(k.path("current_logfiles"))
	if err != nil {
		return all
	}
	for line := range strings.Lines(string(b)) { // as in "stderr log/postgresql.log"
		format, path, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok {
			continue
		}
		if !filepath.IsAbs(path) {
			path = k.path(path)
		}
		report := inText
		switch format {
		case "csvlog":
			report = inCSV
		case "jsonlog":
			report = inJSON
		}
		all = append(all, logFile{path, report})
	}
	return all
}

// MarkLogs records the lengths of the logs, so that CrashReport skips what was logged before the next start.
func (k *Checks) MarkLogs(serverLog string) {
	marks := map[string]logMark{}
	for _, l := range k.logs(serverLog) {
		if st, err := os.Stat(l.path); err == nil {
			marks[l.path] = logMark{st.Size(), st}
		}
	}
	k.logMarks.Store(&marks)
}

// logMark is the end of a log when a server was started.
type logMark struct {
	size int64
	file os.FileInfo
}

func (k *Checks) logMark(path string) logMark {
	if m := k.logMarks.Load(); m != nil {
		return (*m)[path]
	}
	return logMark{}
}

// sinceMark reads a log from a mark on, and at most its last maxLog bytes. If the log was rotated since, the end of the
// old file comes first: why a server ended may be in there.
func sinceMark(path string, m logMark) ([]byte, error) {
	st, err := os.Stat(path)
	gone := errors.Is(err, os.ErrNotExist) // for a moment, while it is rotated
	if m.file == nil || err != nil && !gone || err == nil && os.SameFile(st, m.file) {
		return tailOf(path, m.size)
	}
	var before []byte
	if old, err := os.Stat(path + ".1"); err == nil {
		from := int64(0)
		if os.SameFile(old, m.file) {
			from = m.size
		}
		if before, err = tailOf(path+".1", from); err != nil {
			return nil, err
		}
	}
	now, err := tailOf(path, 0)
	if errors.Is(err, os.ErrNotExist) && before != nil {
		err = nil
	}
	all := slices.Concat(before, now)
	return all[max(0, len(all)-maxLog):], err
}

// tailOf reads a file from a position on, and at most its last maxLog bytes.
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
		from = 0 // the file was replaced
	}
	if _, err := f.Seek(max(from, end-maxLog), io.SeekStart); err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(f, maxLog))
}

// read evaluates the log from the last start on. report reads its lines.
func (c *CrashReport) read(log []byte, report func(line string) (severity, message string)) {
	if at := bytes.LastIndex(log, []byte("starting PostgreSQL")); at >= 0 {
		log = log[at:]
	}
	lines := bufio.NewScanner(bytes.NewReader(log))
	lines.Buffer(nil, maxLog+1)
	for lines.Scan() {
		severity, message := report(lines.Text())
		if severity != "PANIC" && severity != "FATAL" {
			continue
		}
		switch said := clip(severity + ":  " + message); {
		// A failed sync takes precedence, whatever its reason: thin volumes and network file systems also report a lack
		// of room by it, and the pages may be gone from memory.
		case isLostWrite(message):
			c.Lost = said
		case strings.HasSuffix(message, ": No space left on device"), strings.HasSuffix(message, ": Disk quota exceeded"):
			c.NoRoom = said
		case severity == "PANIC":
			c.Panic = said
		}
	}
}

// isLostWrite reports whether a message of a server that ends means that the storage lost a write. Such a message says
// first what could not be done, and last why: names that clients choose are in between.
func isLostWrite(message string) bool {
	for _, sync := range []string{"could not fsync", "could not fdatasync", "could not flush"} {
		if strings.HasPrefix(message, sync) {
			return true
		}
	}
	return strings.HasPrefix(message, "could not ") && (strings.HasSuffix(message, ": Input/output error") || strings.HasSuffix(message, ": Read-only file system"))
}

// clip shortens a message.
func clip(l string) string { return strings.ToValidUTF8(l[:min(len(l), 300)], "?") }
