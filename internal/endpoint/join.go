package endpoint

import (
	"context"
	"crypto/ecdsa"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/lib/admission"
	"github.com/coteriedb/coterie/internal/lib/boottime"
)

// Codes of a refused join, in a *RemoteError. Beside them CodeRefused, CodeMalformed and CodeInternal occur.
const (
	CodeTokenUnknown    = "token_unknown"
	CodeTokenUsed       = "token_used"
	CodeTokenExpired    = "token_expired"
	CodeGroupMismatch   = "group_mismatch"   // the node or its data belongs to another group
	CodeNameTaken       = "name_taken"       // a member of that name exists
	CodeVersionMismatch = "version_mismatch" // another PostgreSQL major version, or another version of Coterie
	CodeUnavailable     = "unavailable"      // this node cannot admit now: Join asks the next address
)

const (
	maxJoinRequest = 64 << 10
	maxJoinReply   = 1 << 20
	joinWork       = time.Minute      // for Config.Join
	joinTry        = 90 * time.Second // for one address, seen from the joiner
	joinDial       = 10 * time.Second
)

// ErrWrongGroup means that the node at a token's address does not belong to the token's group, as far as the token can
// tell.
var ErrWrongGroup = errors.New("the node there does not belong to the token's group, or the group's authority was rotated after the token was made")

// JoinRequest describes a node that wants to join.
type JoinRequest struct {
	ID       ag.ReplicaID `json:"id"`
	Kind     string       `json:"kind"`  // KindReplica or KindWitness; the token's role
	CSR      []byte       `json:"csr"`   // PKCS #10, DER; made by Join
	Hosts    []string     `json:"hosts"` // names and addresses of the node, for its certificate
	Endpoint string       `json:"endpoint"`
	Listener string       `json:"listener,omitempty"`
	ReadOnly string       `json:"read_only,omitempty"`
	HTTP     string       `json:"http,omitempty"`
	Major    int          `json:"major,omitempty"`             // PostgreSQL's, 0 for a witness
	SystemID string       `json:"system_identifier,omitempty"` // of data the node has already

	// Signs means that the node's program knows signed configurations.
	Signs bool `json:"signs,omitempty"`
	// SignsRecord means that it knows signed records, too.
	SignsRecord bool `json:"signs_record,omitempty"`

	Fence time.Duration `json:"fence,omitempty"` // how long the node's host takes to fence a server; 0: not measured
}

// JoinGrant is the group's answer to an admitted node.
type JoinGrant struct {
	certs.Grant
	Group ag.Group        `json:"group"`
	Extra json.RawMessage `json:"extra,omitempty"`
}

// joinMessage is the joiner's one message.
type joinMessage struct {
	TokenID string `json:"token_id"`
	Proof   []byte `json:"proof"`
	Request []byte `json:"request"` // a JoinRequest in JSON, as bytes, since the proof is over them
}

type joinReply struct {
	Grant *JoinGrant   `json:"grant,omitempty"`
	Error *RemoteError `json:"error,omitempty"`
}

// KeyPin returns the pin of the key that the request asks a certificate for.
func (r JoinRequest) KeyPin() (string, error) {
	_, pin, err := certs.CSRKey(r.CSR)
	return pin, err
}

// validate refuses what no honest joiner sends, before anything else looks at the request.
func (r JoinRequest) validate() error {
	if r.Kind != certs.KindReplica && r.Kind != certs.KindWitness {
		return fmt.Errorf("%q is not a kind of node: replica or witness", r.Kind)
	}
	if err := certs.ValidateID(r.ID); err != nil {
		return err
	}
	if err := validateAddress(r.Endpoint); err != nil {
		return fmt.Errorf("endpoint: %w", err)
	}
	for _, a := range []string{r.Listener, r.ReadOnly, r.HTTP} {
		if a == "" {
			continue
		}
		if err := validateAddress(a); err != nil {
			return err
		}
	}
	if err := certs.ValidateHosts(r.Hosts); err != nil {
		return err
	}
	_, _, err := certs.CSRKey(r.CSR)
	return err
}

// Admit makes the grant for a request whose token was checked and consumed. The caller adds Group and Extra.
func Admit(ca *certs.CA, req JoinRequest) (JoinGrant, error) {
	g, err := ca.Admit(certs.Identity{Group: ca.Group, Kind: req.Kind, ID: req.ID}, req.CSR, req.Hosts)
	return JoinGrant{Grant: g}, err
}

// proofOf returns a proof of the secret for a verifier that stores only its hash. It is of one request in one TLS
// session:
//
//	mask  = HMAC-SHA256(key = SHA-256(secret), label || TLS exporter || SHA-256(request))
//	proof = secret XOR mask
//
// The verifier makes the mask from the stored hash, gets the secret back and hashes it. The stored hash alone makes no
// proof, and a proof is noise in any other session, or for any other request.
func proofOf(secret [32]byte, exporter, request []byte) []byte {
	hash := sha256.Sum256(secret[:])
	proof := make([]byte, sha256.Size)
	subtle.XORBytes(proof, secret[:], joinMask(hash[:], exporter, request))
	return proof
}

func proofHolds(hash, proof, exporter, request []byte) bool {
	if len(proof) != sha256.Size || len(hash) != sha256.Size {
		return false
	}
	secret := make([]byte, sha256.Size)
	subtle.XORBytes(secret, proof, joinMask(hash, exporter, request))
	got := sha256.Sum256(secret)
	return subtle.ConstantTimeCompare(got[:], hash) == 1
}

func joinMask(hash, exporter, request []byte) []byte {
	digest := sha256.Sum256(request)
	mac := hmac.New(sha256.New, hash)
	mac.Write([]byte("coterie join 1"))
	mac.Write(exporter)
	mac.Write(digest[:])
	return mac.Sum(nil)
}

func joinExporter(cs tls.ConnectionState) ([]byte, error) {
	return cs.ExportKeyingMaterial("EXPORTER-coterie-join", nil, 32)
}

// Join asks the group of the token to admit this node, at each of the token's addresses until one decides. A refusal is
// a *RemoteError. Repeating it with the same key after a lost answer is safe: the token then still belongs to that key.
func Join(ctx context.Context, t Token, req JoinRequest, key *ecdsa.PrivateKey) (JoinGrant, error) {
	var err error
	if req.CSR, err = certs.NewCSR(key); err != nil {
		return JoinGrant{}, err
	}
	if err := req.validate(); err != nil {
		return JoinGrant{}, fmt.Errorf("join group %s: %w", t.Name, err)
	}
	var tried []error
	for _, addr := range t.Addresses {
		grant, err := joinAt(ctx, addr, t, req)
		if err == nil {
			if err := grant.verify(t, req, key); err != nil {
				return JoinGrant{}, fmt.Errorf("join group %s: the answer of %s is not usable: %w", t.Name, addr, err)
			}
			return grant, nil
		}
		var re *RemoteError
		if errors.As(err, &re) && re.Code != CodeUnavailable {
			return JoinGrant{}, fmt.Errorf("join group %s: %w", t.Name, err)
		}
		tried = append(tried, fmt.Errorf("%s: %w", addr, err))
		if ctx.Err() != nil {
			break
		}
	}
	return JoinGrant{}, fmt.Errorf("join group %s: no member of it admitted this node: %w", t.Name, errors.Join(tried...))
}

func joinAt(ctx context.Context, addr string, t Token, req JoinRequest) (JoinGrant, error) {
	ctx, cancel := context.WithTimeout(ctx, joinTry)
	defer cancel()
	request, err := json.Marshal(req)
	if err != nil {
		return JoinGrant{}, err
	}
	conn, err := joinConn(ctx, addr, t)
	if err != nil {
		return JoinGrant{}, err
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.NetConn().Close() })()
	exporter, err := joinExporter(conn.ConnectionState())
	if err != nil {
		return JoinGrant{}, err
	}
	msg := joinMessage{TokenID: t.ID, Proof: proofOf(t.Secret, exporter, request), Request: request}
	if err := writeFrame(conn, msg, maxJoinRequest); err != nil {
		return JoinGrant{}, fmt.Errorf("send the request: %w", err)
	}
	var rep joinReply
	if err := readFrame(conn, &rep, maxJoinReply); err != nil {
		return JoinGrant{}, fmt.Errorf("wait for the answer: %w", errors.Join(ctx.Err(), err))
	}
	switch {
	case rep.Error != nil:
		return JoinGrant{}, rep.Error
	case rep.Grant == nil:
		return JoinGrant{}, errors.New("the answer is empty")
	}
	return *rep.Grant, nil
}

// joinConn connects to a member and verifies it by the token's pin. The joiner has no certificate to show.
func joinConn(ctx context.Context, addr string, t Token) (*tls.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, joinDial)
	defer cancel()
	d := net.Dialer{KeepAliveConfig: keepAlive}
	raw, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	conn := tls.Client(raw, &tls.Config{
		MinVersion:         tls.VersionTLS13,
		NextProtos:         []string{ClassJoin.proto()},
		InsecureSkipVerify: true, //nolint:gosec // VerifyConnection below verifies the chain against the token's pin
		VerifyConnection:   func(cs tls.ConnectionState) error { return verifyPinned(cs, t) },
	})
	if err := errors.Join(tune(raw, ClassJoin), conn.HandshakeContext(ctx)); err != nil {
		_ = raw.Close()
		return nil, err
	}
	return conn, nil
}

// errNoReplica keeps a joiner from proving its token's secret to a witness. A witness reads the verifiers of all tokens
// in the quorum's store, and with a verifier a proof tells the secret: it could join as a replica by that.
var errNoReplica = errors.New("only replicas admit nodes, and a token is proved to nobody else")

// verifyPinned requires the authority with the token's pin in the chain, and a replica of the token's group signed by
// it.
func verifyPinned(cs tls.ConnectionState, t Token) error {
	id, err := certs.VerifyPinned(cs.PeerCertificates, t.CAPin, certForServer)
	if errors.Is(err, certs.ErrNotPinned) {
		return ErrWrongGroup
	}
	switch {
	case err != nil:
		return err
	case id.Group != t.Group:
		return ErrWrongGroup
	case id.Kind != certs.KindReplica:
		return fmt.Errorf("the node there is the witness %s: %w", id.ID, errNoReplica)
	}
	return nil
}

// verify checks that the grant is what was asked for, under the authority the token pinned.
func (g JoinGrant) verify(t Token, req JoinRequest, key *ecdsa.PrivateKey) error {
	n, err := g.Node(key)
	if err != nil {
		return err
	}
	if want := (certs.Identity{Group: t.Group, Kind: req.Kind, ID: req.ID}); n.Identity != want {
		return fmt.Errorf("the certificate is for %s, wanted was %s", n.Identity, want)
	}
	if n.Authority() != t.CAPin {
		return errors.New("the authority is not the one the token names")
	}
	if len(g.CAKeyPEM) > 0 {
		_, err = certs.ParseCA(g.CACertPEM, g.CAKeyPEM)
	}
	return err
}

// serveJoin answers one joiner.
func (e *Endpoint) serveJoin(ctx context.Context, c *Conn) {
	if err := e.track(c); err != nil {
		e.log.Debug("join refused", "remote", c.raw.RemoteAddr().String(), "reason", err)
		return
	}
	defer func() { _ = c.Close() }()
	var msg joinMessage
	if err := readFrame(c.Conn, &msg, maxJoinRequest); err != nil { // under the handshake's deadline
		e.log.Debug("join refused", "remote", c.raw.RemoteAddr().String(), "reason", err)
		return
	}
	if err := c.raw.SetDeadline(time.Now().Add(joinWork + bodyTimeout)); err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, joinWork)
	defer cancel()
	var rep joinReply
	grant, req, err := e.join(ctx, c, msg)
	if err == nil {
		rep.Grant = &grant
		e.log.Info("node admitted", "id", req.ID, "kind", req.Kind, "remote", c.raw.RemoteAddr().String())
	} else {
		rep.Error = remoteError(err)
		e.handshakes.logJoin(e.log, c.raw.RemoteAddr(), string(req.ID), err)
	}
	if err := writeFrame(c.Conn, rep, maxJoinReply); err != nil {
		e.log.Warn("the answer to a join could not be sent", "id", req.ID, "error", err)
	}
}

// maxLoggedID is how much of a stranger's name for its node is logged.
const maxLoggedID = 64

// logJoin warns of a refused join. Lines beyond the limit are counted in the next one.
func (h *handshakes) logJoin(log *slog.Logger, from net.Addr, id string, reason error) {
	if !h.joinLines.Spend(admission.Key(from), 1, boottime.Now()) {
		h.unlogged.Add(1)
		return
	}
	log.Warn("join refused", "id", id[:min(len(id), maxLoggedID)], "remote", from.String(), "code", remoteError(reason).Code, "reason", reason, "not_logged", h.unlogged.Swap(0))
}

func (e *Endpoint) join(ctx context.Context, c *Conn, msg joinMessage) (JoinGrant, JoinRequest, error) {
	var req JoinRequest
	if err := json.Unmarshal(msg.Request, &req); err != nil {
		return JoinGrant{}, JoinRequest{}, &RemoteError{CodeMalformed, "the request is not understood"}
	}
	if err := req.validate(); err != nil {
		return JoinGrant{}, JoinRequest{}, &RemoteError{CodeMalformed, err.Error()}
	}
	exporter, err := joinExporter(c.ConnectionState())
	if err != nil {
		return JoinGrant{}, req, err
	}
	proved := false
	verify := func(hash []byte) bool {
		proved = proofHolds(hash, msg.Proof, exporter, msg.Request)
		return proved
	}
	grant, err := e.cfg.Join(ctx, msg.TokenID, verify, req)
	if !proved {
		err = unproved(err)
	}
	if err != nil {
		return JoinGrant{}, req, err
	}
	return grant, req, nil
}

// unproved returns the only error that a stranger is sent, whatever Config.Join returned.
func unproved(err error) error {
	var re *RemoteError
	if errors.As(err, &re) && re.Code == CodeUnavailable {
		return &RemoteError{CodeUnavailable, "this node cannot admit anybody now"}
	}
	if err == nil {
		err = errors.New("a grant was made without checking the token")
	}
	return fmt.Errorf("%w: %w", errTokenUnknown, err) // the second is logged only
}

// writeFrame sends v as JSON behind its length.
func writeFrame(w io.Writer, v any, limit int) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(body) > limit {
		return fmt.Errorf("the message has %d bytes, at most %d are sent", len(body), limit)
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...))
	return err
}

// readFrame reads what writeFrame sent; a length above limit is refused before anything is allocated for it.
func readFrame(r io.Reader, v any, limit int) error {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > uint32(limit) {
		return fmt.Errorf("a message of %d bytes was announced, at most %d are taken", n, limit)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(r, body); err != nil {
		return err
	}
	return json.Unmarshal(body, v)
}
