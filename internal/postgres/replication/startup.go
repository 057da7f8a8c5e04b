package replication

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
)

// PostgreSQL's numbers in the first packet of a connection (src/include/libpq/pqcomm.h).
const (
	protocol3     = 3 << 16
	sslRequest    = 1234<<16 | 5679
	gssRequest    = 1234<<16 | 5680
	cancelRequest = 1234<<16 | 5678

	maxStartup = 10000 // MAX_STARTUP_PACKET_LENGTH
)

// errCancel is a first packet that asks to cancel a query: there is none here, and no answer is expected.
var errCancel = errors.New("cancel request")

// startup is what the first packet of a local connection says. It decides the kind of the stream, and nothing else: the
// primary's agent builds its own packet.
type startup struct {
	minor  uint16
	params map[string]string // canonical: of a duplicate the last one
}

// readStartup reads the first packet, declining encryption on the way. It never reads past the packet, so that bytes sent
// before an answer cannot be mistaken for part of what follows.
func readStartup(rw io.ReadWriter) (startup, error) {
	for range 3 { // one SSLRequest, one GSSENCRequest, one startup packet
		var head [8]byte
		if _, err := io.ReadFull(rw, head[:]); err != nil {
			return startup{}, err
		}
		length, code := binary.BigEndian.Uint32(head[:4]), binary.BigEndian.Uint32(head[4:])
		if length < 8 || length > maxStartup {
			return startup{}, fmt.Errorf("startup packet of %d bytes", length)
		}
		body := make([]byte, length-8)
		if _, err := io.ReadFull(rw, body); err != nil {
			return startup{}, err
		}
		switch {
		case code == cancelRequest:
			return startup{}, errCancel
		case (code == sslRequest || code == gssRequest) && length == 8:
			if _, err := rw.Write([]byte{'N'}); err != nil {
				return startup{}, err
			}
		case code>>16 == protocol3>>16:
			params, err := parseParams(body)
			return startup{minor: uint16(code), params: params}, err
		default:
			return startup{}, fmt.Errorf("unknown protocol %d.%d", code>>16, code&0xffff)
		}
	}
	return startup{}, errors.New("encryption asked for again and again")
}

// parseParams reads the NUL-terminated pairs of a startup packet, which end with an empty name.
func parseParams(b []byte) (map[string]string, error) {
	params := make(map[string]string)
	next := func() (string, bool) {
		s, rest, ok := bytes.Cut(b, []byte{0})
		b = rest
		return string(s), ok
	}
	for {
		name, ok := next()
		if !ok {
			return nil, errors.New("startup packet without terminator")
		}
		if name == "" {
			if len(b) > 0 {
				return nil, errors.New("startup packet with bytes behind its terminator")
			}
			return params, nil
		}
		if params[name], ok = next(); !ok {
			return nil, fmt.Errorf("startup parameter %q without value", name)
		}
	}
}

// kind tells a walreceiver, an ordinary session and a base backup apart. replication=database is taken as a backup, since
// a walreceiver never asks for it and tools that copy a cluster do; pg_basebackup is known by the name it gives itself.
func (s startup) kind() (string, error) {
	value, ok := s.params["replication"]
	if !ok {
		return KindQuery, nil
	}
	if value == "database" {
		return KindBackup, nil
	}
	replication, ok := parseBool(value)
	switch {
	case !ok:
		return "", fmt.Errorf("invalid value for parameter \"replication\": %q", value)
	case !replication:
		return KindQuery, nil
	case s.params["application_name"] == "pg_basebackup":
		return KindBackup, nil
	}
	return KindWAL, nil
}

// parseBool reads PostgreSQL's spellings of a boolean: unique prefixes of true, false, yes, no, on, off in any case, 1, 0.
func parseBool(s string) (value, ok bool) {
	s = strings.ToLower(s)
	prefix := func(word string, least int) bool { return len(s) >= least && strings.HasPrefix(word, s) }
	switch {
	case prefix("true", 1), prefix("yes", 1), s == "on", s == "1":
		return true, true
	case prefix("false", 1), prefix("no", 1), prefix("off", 2), s == "0":
		return false, true
	}
	return false, false
}

// negotiation returns the message that tells a client of a newer protocol that it gets version 3.0 without extensions, or
// nil if it asked for nothing more. The real server cannot say so: it only sees the packet of the other agent.
func (s startup) negotiation() []byte {
	var extensions []string
	for name := range s.params {
		if strings.HasPrefix(name, "_pq_.") {
			extensions = append(extensions, name)
		}
	}
	if s.minor == 0 && len(extensions) == 0 {
		return nil
	}
	b := binary.BigEndian.AppendUint32([]byte{'v', 0, 0, 0, 0}, protocol3)
	b = binary.BigEndian.AppendUint32(b, uint32(len(extensions)))
	for _, name := range extensions {
		b = append(append(b, name...), 0)
	}
	binary.BigEndian.PutUint32(b[1:], uint32(len(b)-1))
	return b
}

// startupPacket builds the packet that the primary's agent sends to its server for a stream: nothing of it is the peer's
// wish. The name of a WAL stream carries the epoch, so that a walsender of an older epoch satisfies no commit of this one.
func startupPacket(h Hello, user string) []byte {
	pairs := []string{"user", user}
	switch h.Kind {
	case KindWAL:
		pairs = append(pairs, "replication", "true", "application_name", fmt.Sprintf("cot_%s_%d", h.Member, h.Epoch))
	case KindBackup:
		pairs = append(pairs, "replication", "true", "application_name", "cot_seed_"+string(h.Member))
	default:
		pairs = append(pairs, "database", "postgres", "application_name", "cot_query_"+string(h.Member))
	}
	b := binary.BigEndian.AppendUint32(make([]byte, 4), protocol3)
	for _, s := range pairs {
		b = append(append(b, s...), 0)
	}
	b = append(b, 0)
	binary.BigEndian.PutUint32(b, uint32(len(b)))
	return b
}

// fatalMessage builds the ErrorResponse that ends a connection.
func fatalMessage(sqlstate, message, hint string) []byte {
	b := []byte{'E', 0, 0, 0, 0}
	for _, f := range []struct{ code, text string }{
		{"S", "FATAL"}, {"V", "FATAL"}, {"C", sqlstate}, {"M", message}, {"H", hint},
	} {
		if f.text != "" {
			b = append(append(append(b, f.code...), f.text...), 0)
		}
	}
	b = append(b, 0)
	binary.BigEndian.PutUint32(b[1:], uint32(len(b)-1))
	return b
}
