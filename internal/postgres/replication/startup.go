package replication

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
)

// maxStartup is MAX_STARTUP_PACKET_LENGTH of src/include/libpq/pqcomm.h.
const maxStartup = 10000

// errCancel is a first packet that asks to cancel a query: there is none here, and no answer is expected.
var errCancel = errors.New("cancel request")

// startup is what the first packet of a local connection says. It decides the kind of the stream, and nothing else: the
// primary's agent builds its own packet.
type startup struct {
	minor  uint16
	params map[string]string // canonical: of a duplicate the last one
}

// readStartup reads the first packet, declining encryption on the way. It never reads past the packet, so that bytes
// sent before an answer cannot be mistaken for part of what follows.
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
		case code == pgwire.CancelRequest:
			return startup{}, errCancel
		case (code == pgwire.SSLRequest || code == pgwire.GSSENCRequest) && length == 8:
			if _, err := rw.Write([]byte{'N'}); err != nil {
				return startup{}, err
			}
		case code>>16 == pgwire.Protocol3>>16:
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

// Walreceiver is the application_name in the primary_conninfo of each member. A program that streams under another
// name is not the walreceiver of this node's server, and would acknowledge commits in its place.
const Walreceiver = "coterie"

// kind tells a walreceiver, an ordinary session and a base backup apart. replication=database is taken as a backup,
// since a walreceiver never requests it and tools that copy a cluster do. pg_basebackup is known by its
// application_name.
func (s startup) kind() (string, error) {
	value, ok := s.params["replication"]
	if !ok {
		return KindQuery, nil
	}
	if value == "database" {
		return KindBackup, nil
	}
	replication, ok := pgwire.ParseBool(value)
	switch {
	case !ok:
		return "", fmt.Errorf("invalid value for parameter \"replication\": %q", value)
	case !replication:
		return KindQuery, nil
	case s.params["application_name"] == "pg_basebackup":
		return KindBackup, nil
	case s.params["application_name"] == Walreceiver:
		return KindWAL, nil
	}
	return "", fmt.Errorf("only this node's own walreceiver streams from here, and %q is another program", s.params["application_name"])
}

// negotiation returns the message that tells a client of a newer protocol that it gets version 3.0 without extensions,
// or nil if it asked for nothing more. The real server cannot say so: it only sees the packet of the other agent.
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
	return pgwire.NegotiateVersion(0, extensions)
}

// startupPacket builds the packet that the primary's agent sends to its server for a stream: nothing of it comes from
// the peer. The name of a WAL stream carries the epoch, so that a walsender of an older epoch satisfies no commit of
// this one.
func startupPacket(h Hello, user string) []byte {
	params := []pgwire.Parameter{{Name: "user", Value: user}}
	add := func(name, value string) { params = append(params, pgwire.Parameter{Name: name, Value: value}) }
	switch h.Kind {
	case KindWAL:
		add("replication", "true")
		add("application_name", fmt.Sprintf("cot_%s_%d", h.Member, h.Epoch))
	case KindBackup:
		add("replication", "true")
		add("application_name", "cot_seed_"+string(h.Member))
	default:
		add("database", "postgres")
		add("application_name", "cot_query_"+string(h.Member))
	}
	return pgwire.StartupMessage(params...)
}

// fatalMessage builds the ErrorResponse that ends a connection.
func fatalMessage(sqlstate, message, hint string) []byte {
	return (&pgwire.Error{Code: sqlstate, Message: message, Hint: hint}).Encode()
}
