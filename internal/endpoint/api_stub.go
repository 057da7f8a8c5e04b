package endpoint

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

var errStub = errors.New("not built yet")

// Token is a parsed join token.
type Token struct {
	Group     ag.GroupID
	Name      string
	CAPin     string
	ID        string
	Secret    [32]byte
	Addresses []string
	Role      string
	Expires   time.Time
}

// StoredToken is what the group keeps of a token.
type StoredToken struct {
	ID         string    `json:"id"`
	SecretHash []byte    `json:"secret_hash"`
	Role       string    `json:"role"`
	Expires    time.Time `json:"expires"`
	UsedBy     string    `json:"used_by,omitempty"`
}

// NewToken makes a token and what the group stores of it.
func NewToken(ca *CA, role string, addresses []string, ttl time.Duration) (string, StoredToken, error) {
	return "", StoredToken{}, errStub
}

// Check decides whether the token admits a joiner of that role and key.
func (s StoredToken) Check(verify func(secretHash []byte) bool, role, keyPin string, now time.Time) error {
	return errStub
}

// ParseToken reads the text form of a token.
func ParseToken(text string) (Token, error) { return Token{}, errStub }

// JoinRequest is what a node that wants to join says about itself.
type JoinRequest struct {
	ID       ag.ReplicaID `json:"id"`
	Kind     string       `json:"kind"`
	CSR      []byte       `json:"csr"`
	Hosts    []string     `json:"hosts"`
	Endpoint string       `json:"endpoint"`
	Listener string       `json:"listener,omitempty"`
	ReadOnly string       `json:"read_only,omitempty"`
	HTTP     string       `json:"http,omitempty"`
	Major    int          `json:"major,omitempty"`
	SystemID string       `json:"system_identifier,omitempty"`
}

// JoinGrant is the group's answer to an admitted node.
type JoinGrant struct {
	CertPEM   []byte          `json:"cert"`
	CACertPEM []byte          `json:"ca_cert"`
	CAKeyPEM  []byte          `json:"ca_key,omitempty"`
	Group     ag.Group        `json:"group"`
	Extra     json.RawMessage `json:"extra,omitempty"`
}

// Join asks the group of the token for admission.
func Join(ctx context.Context, t Token, req JoinRequest, key *ecdsa.PrivateKey) (JoinGrant, error) {
	return JoinGrant{}, errStub
}

// CSRKey checks a certificate request and returns the public key it asks for.
func CSRKey(der []byte) (crypto.PublicKey, error) { return nil, errStub }

// NewKey makes a node's private key.
func NewKey() (*ecdsa.PrivateKey, error) { return nil, errStub }

// Class is a kind of stream.
type Class string

// The classes.
const (
	ClassControl  Class = "control"
	ClassWAL      Class = "wal"
	ClassSeed     Class = "seed"
	ClassSQL      Class = "sql"
	ClassQuorum   Class = "quorum"
	ClassJoin     Class = "join"
	ClassEtcdPeer Class = "etcd-peer"
)

// Handler serves one accepted stream; the endpoint closes conn when it returns.
type Handler func(ctx context.Context, peer Identity, conn net.Conn)

// Config is what an endpoint needs.
type Config struct {
	Node      *Node
	Listen    string
	Authorize func(peer Identity, pin string, class Class) error
	Trust     func(peer Identity, pin string) error
	Handlers  map[Class]Handler
	Join      func(ctx context.Context, tokenID string, verify func(secretHash []byte) bool, req JoinRequest) (JoinGrant, error)
	Logger    *slog.Logger

	MaxHandshakes    int
	HandshakeTimeout time.Duration
	MaxConns         map[Class]int
}

// Endpoint is a node's port towards the other nodes.
type Endpoint struct{}

// New makes an endpoint.
func New(c Config) *Endpoint { return &Endpoint{} }

// Listen binds the port.
func (e *Endpoint) Listen() error { return errStub }

// Serve accepts until ctx is done.
func (e *Endpoint) Serve(ctx context.Context) error { return errStub }

// Addr is the bound address.
func (e *Endpoint) Addr() net.Addr { return nil }

// Dial opens a stream.
func (e *Endpoint) Dial(ctx context.Context, addr string, class Class, want ag.ReplicaID) (net.Conn, error) {
	return nil, errStub
}

// Peer is one live connection.
type Peer struct {
	Identity Identity
	Pin      string
	Class    Class
	Inbound  bool
	Remote   string
	Since    time.Time
}

// Peers lists the live connections.
func (e *Endpoint) Peers() []Peer { return nil }

// CloseUnauthorised closes every connection that would be refused now.
func (e *Endpoint) CloseUnauthorised() int { return 0 }

// ClosePeer closes every connection with that replica.
func (e *Endpoint) ClosePeer(id ag.ReplicaID) int { return 0 }

// Relay copies bytes both ways.
func Relay(a, b net.Conn) {}

// RelayTo is a handler that relays to a unix socket.
func RelayTo(socket string, logger *slog.Logger) Handler { return nil }

// RemoteError is an error that the other node answered.
type RemoteError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// Error prints it.
func (e *RemoteError) Error() string { return e.Message }

// Control is remote calls.
type Control struct{}

// NewControl makes it, before Serve.
func NewControl(e *Endpoint) *Control { return &Control{} }

// Handle registers a method, before Serve.
func (c *Control) Handle(method string, f func(ctx context.Context, peer Identity, body json.RawMessage) (any, error)) {
}

// Call calls.
func (c *Control) Call(ctx context.Context, addr string, want ag.ReplicaID, method string, in, out any) error {
	return errStub
}

// Close closes the idle connections of Call.
func (c *Control) Close() {}

// CA is the group's certificate authority.
type CA struct {
	CertPEM []byte
	Group   ag.GroupID
	Name    string
}

// NewCA makes the authority of a new group.
func NewCA(group ag.GroupID, name string) (*CA, error) { return nil, errStub }

// LoadCA reads ca.crt and ca.key.
func LoadCA(dir string) (*CA, error) { return nil, errStub }

// ParseCA reads an authority from its two PEM texts.
func ParseCA(certPEM, keyPEM []byte) (*CA, error) { return nil, errStub }

// Save writes ca.crt and ca.key.
func (ca *CA) Save(dir string) error { return errStub }

// KeyPEM is the private key.
func (ca *CA) KeyPEM() ([]byte, error) { return nil, errStub }

// Pin is the pin of the authority's key.
func (ca *CA) Pin() string { return "" }

// IssueNode signs a node certificate: the node's, then the authority's, in PEM.
func (ca *CA) IssueNode(id Identity, pub crypto.PublicKey, hosts []string) ([]byte, error) {
	return nil, errStub
}

// IssueListener makes the listener's key and certificate.
func (ca *CA) IssueListener(hosts []string) (certPEM, keyPEM []byte, err error) {
	return nil, nil, errStub
}

// Identity is who a node is.
type Identity struct {
	Group ag.GroupID
	Kind  string
	ID    ag.ReplicaID
}

// Node is this node's identity with its key.
type Node struct {
	Identity Identity
	Pin      string
}

// CreateNode makes this node's key and certificate in pkiDir.
func CreateNode(pkiDir string, ca *CA, id Identity, hosts []string) (*Node, error) {
	return nil, errStub
}

// InstallNode writes what a join granted into pkiDir.
func InstallNode(pkiDir string, grant JoinGrant, key *ecdsa.PrivateKey) (*Node, error) {
	return nil, errStub
}

// LoadNode reads this node's identity from pkiDir.
func LoadNode(pkiDir string) (*Node, error) { return nil, errStub }

// SaveListener writes listener.crt and listener.key.
func SaveListener(pkiDir string, certPEM, keyPEM []byte) error { return errStub }

// TLSFiles names the files of pkiDir as etcd's PeerTLSInfo wants them.
func TLSFiles(pkiDir string) (cert, key, ca string) { return "", "", "" }
