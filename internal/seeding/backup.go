package seeding

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/coteriedb/coterie/internal/ag"
)

// source is what the server says of itself before the backup.
type source struct {
	systemID string
	timeline ag.Timeline
	logDir   string // relative to the data directory, or empty
}

// tablespace is one row of the backup's list; oid 0 is the data directory itself.
type tablespace struct {
	oid      uint32
	location string
	size     int64 // the source's estimate in bytes
}

var slotName = regexp.MustCompile(`^[a-z0-9_]{1,63}$`)

// identify learns the system identifier, the timeline and where the source keeps its log files.
func (s *session) identify() (source, error) {
	row, err := s.ask("IDENTIFY_SYSTEM", 3)
	if err != nil {
		return source{}, fmt.Errorf("identify system: %w", err)
	}
	src := source{systemID: string(row[0])}
	if _, err := strconv.ParseUint(src.systemID, 10, 64); err != nil {
		return source{}, fmt.Errorf("identify system: %q is no system identifier", src.systemID)
	}
	if src.timeline, err = parseTimeline(row[1]); err != nil {
		return source{}, fmt.Errorf("identify system: %w", err)
	}
	row, err = s.ask("SHOW log_directory", 1)
	if err != nil {
		return source{}, fmt.Errorf("ask for log_directory: %w", err)
	}
	src.logDir = string(row[0])
	return src, nil
}

// reserve creates the slot that keeps the source's WAL, or makes sure that an existing one does.
func (s *session) reserve(slot string) error {
	if !slotName.MatchString(slot) {
		return fmt.Errorf("%q is no name for a replication slot (lower case letters, digits and _, at most 63)", slot)
	}
	_, err := s.ask(fmt.Sprintf("CREATE_REPLICATION_SLOT %q PHYSICAL RESERVE_WAL", slot), 1)
	var se *SourceError
	if err == nil || !errors.As(err, &se) || se.Code != duplicateObject {
		return err
	}
	if s.major < 15 {
		return nil // no command tells; a slot that reserves nothing shows itself when the replica cannot stream
	}
	row, err := s.ask(fmt.Sprintf("READ_REPLICATION_SLOT %q", slot), 2)
	if err != nil {
		return err
	}
	if row[1] == nil {
		return fmt.Errorf("slot %s exists on the source but keeps no WAL (never reserved, or invalidated); drop it there: SELECT pg_drop_replication_slot('%s')", slot, slot)
	}
	return nil
}

// backup is a BASE_BACKUP under way.
type backup struct {
	s        *session
	start    ag.LSN
	timeline ag.Timeline
	spaces   []tablespace // in the source's order; the data directory is last
}

// begin starts the base backup and reads what precedes the archives. It returns once the source's checkpoint is done.
func (s *session) begin(fast bool) (*backup, error) {
	if err := s.send(backupCommand(s.major, fast), checkpointTimeout); err != nil {
		return nil, err
	}
	row, err := s.row(2)
	if err != nil {
		return nil, err
	}
	b := &backup{s: s}
	if b.start, b.timeline, err = parsePosition(row); err != nil {
		return nil, err
	}
	rows, err := s.rows()
	if err != nil {
		return nil, err
	}
	s.wire.idle = copyIdleTimeout
	b.spaces, err = parseTablespaces(rows)
	return b, err
}

// backupCommand spells BASE_BACKUP for the major version: options in parentheses came with 15.
func backupCommand(major int, fast bool) string {
	if major < 15 {
		cmd := "BASE_BACKUP LABEL 'coterie' PROGRESS "
		if fast {
			cmd += "FAST "
		}
		return cmd + "NOWAIT TABLESPACE_MAP MANIFEST 'yes' MANIFEST_CHECKSUMS 'SHA256'"
	}
	checkpoint := "spread"
	if fast {
		checkpoint = "fast"
	}
	return "BASE_BACKUP (LABEL 'coterie', PROGRESS true, CHECKPOINT '" + checkpoint + "', WAL false, WAIT false, " +
		"TABLESPACE_MAP true, MANIFEST 'yes', MANIFEST_CHECKSUMS 'SHA256')"
}

func parseTablespaces(rows [][][]byte) ([]tablespace, error) {
	var spaces []tablespace
	seen := map[uint32]bool{}
	for i, r := range rows {
		if len(r) < 3 {
			return nil, errors.New("the source's list of tablespaces has too few columns")
		}
		var t tablespace
		if r[0] != nil {
			oid, err := strconv.ParseUint(string(r[0]), 10, 32)
			if err != nil || oid == 0 {
				return nil, fmt.Errorf("the source's list of tablespaces has %q for an oid", r[0])
			}
			t.oid, t.location = uint32(oid), string(r[1])
		}
		if r[2] != nil {
			kb, err := strconv.ParseInt(string(r[2]), 10, 64)
			if err != nil || kb < 0 || kb > 1<<50 {
				return nil, fmt.Errorf("the source's list of tablespaces has %q for a size", r[2])
			}
			t.size = kb * 1024
		}
		if seen[t.oid] || (t.oid == 0) != (i == len(rows)-1) {
			return nil, errors.New("the source's list of tablespaces is not in order")
		}
		seen[t.oid] = true
		spaces = append(spaces, t)
	}
	if len(spaces) == 0 {
		return nil, errors.New("the source's list of tablespaces is empty")
	}
	return spaces, nil
}

func parseTimeline(b []byte) (ag.Timeline, error) {
	n, err := strconv.ParseUint(string(b), 10, 32)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%q is no timeline id", b)
	}
	return ag.Timeline(n), nil
}

func parsePosition(row [][]byte) (ag.LSN, ag.Timeline, error) {
	lsn, err := ag.ParseLSN(string(row[0]))
	if err != nil {
		return 0, 0, err
	}
	tli, err := parseTimeline(row[1])
	return lsn, tli, err
}

// end reads the closing result: where the copy becomes consistent. An error the source found on its way, as a failed page
// checksum, comes after it.
func (b *backup) end() (ag.LSN, error) {
	row, err := b.s.row(2)
	if err != nil {
		return 0, err
	}
	lsn, tli, err := parsePosition(row)
	if err != nil {
		return 0, err
	}
	if tli != b.timeline {
		return 0, fmt.Errorf("the source changed from timeline %d to %d during the backup", b.timeline, tli)
	}
	if lsn < b.start {
		return 0, fmt.Errorf("the backup ends at %s, before its start %s", lsn, b.start)
	}
	return lsn, b.s.ready()
}

// part is one archive of the backup, or its manifest.
type part struct {
	manifest bool
	space    tablespace
}

// parts reads the archives and the manifest one after the other. From 15 on they share one CopyOut whose messages are tagged;
// in 14 each has a CopyOut of its own, in the order of the list, the manifest last.
type parts struct {
	b      *backup
	tagged bool
	opened bool   // tagged: the one CopyOut has begun
	index  int    // untagged: CopyOuts begun
	next   *part  // tagged: announced while the part before it was read
	data   []byte // rest of the current message
	ended  bool   // the current part has no more data
}

func (b *backup) parts() *parts {
	return &parts{b: b, tagged: b.s.major >= 15, ended: true}
}

// advance skips what is left of the current part and goes to the next; it returns nil after the last.
func (p *parts) advance() (*part, error) {
	if _, err := io.Copy(io.Discard, p); err != nil {
		return nil, err
	}
	if !p.tagged {
		return p.advanceUntagged()
	}
	if !p.opened {
		if err := p.expectCopyOut(); err != nil {
			return nil, err
		}
		p.opened, p.ended = true, false
		// The first message announces the first part; anything before it is not data of ours.
		if n, err := io.Copy(io.Discard, p); err != nil {
			return nil, err
		} else if n > 0 {
			return nil, errors.New("the source sent archive data before it named the archive")
		}
	}
	if p.next == nil {
		return nil, nil
	}
	next := p.next
	p.next, p.ended = nil, false
	return next, nil
}

func (p *parts) advanceUntagged() (*part, error) {
	n := len(p.b.spaces)
	if p.index > n {
		return nil, nil
	}
	if err := p.expectCopyOut(); err != nil {
		return nil, err
	}
	p.index++
	p.ended = false
	if p.index > n {
		return &part{manifest: true}, nil
	}
	return &part{space: p.b.spaces[p.index-1]}, nil
}

func (p *parts) expectCopyOut() error {
	msg, err := p.b.s.read()
	if err != nil {
		return err
	}
	if _, ok := msg.(*pgproto3.CopyOutResponse); !ok {
		return fmt.Errorf("the source sent %T in place of an archive", msg)
	}
	return nil
}

// Read returns the data of the current part.
func (p *parts) Read(buf []byte) (int, error) {
	for len(p.data) == 0 {
		if p.ended {
			return 0, io.EOF
		}
		msg, err := p.b.s.read()
		if err != nil {
			return 0, err
		}
		switch m := msg.(type) {
		case *pgproto3.CopyData:
			err = p.take(m.Data)
		case *pgproto3.CopyDone:
			p.ended = true
		default:
			err = fmt.Errorf("the source sent %T inside an archive", m)
		}
		if err != nil {
			return 0, err
		}
	}
	n := copy(buf, p.data)
	p.data = p.data[n:]
	return n, nil
}

// take interprets one CopyData message.
func (p *parts) take(data []byte) error {
	if !p.tagged {
		p.data = data
		return nil
	}
	if len(data) == 0 {
		return errors.New("the source sent an empty message inside an archive")
	}
	switch data[0] {
	case 'd':
		p.data = data[1:]
	case 'p': // how much the source has sent; our own count is what we show
	case 'm':
		p.next, p.ended = &part{manifest: true}, true
	case 'n':
		space, err := p.archive(data[1:])
		if err != nil {
			return err
		}
		p.next, p.ended = &part{space: space}, true
	default:
		return fmt.Errorf("the source sent a message of unknown kind %q inside an archive", data[0])
	}
	return nil
}

// archive finds the tablespace that a new archive belongs to: base.tar or <oid>.tar.
func (p *parts) archive(data []byte) (tablespace, error) {
	name, _, ok := bytes.Cut(data, []byte{0})
	if ok {
		var oid uint64
		stem, isTar := strings.CutSuffix(string(name), ".tar")
		if stem != "base" {
			oid, _ = strconv.ParseUint(stem, 10, 32) // 0 is refused below
		}
		for _, t := range p.b.spaces {
			if isTar && uint64(t.oid) == oid && (oid != 0 || stem == "base") {
				return t, nil
			}
		}
	}
	return tablespace{}, fmt.Errorf("the source began an archive %q that is not in its list of tablespaces", name)
}
