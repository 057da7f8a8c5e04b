package endpoint

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
)

const (
	tokenPrefix  = "coterie1."
	maxAddresses = 16
	maxToken     = 8 << 10
	tokenSum     = 4 // bytes of SHA-256 that show a cut or mistyped token
)

// Errors of ParseToken.
var (
	ErrTokenMalformed = errors.New("this is not a whole join token")
	ErrTokenExpired   = errors.New("the join token has expired")
)

var errTokenUnknown = &RemoteError{CodeTokenUnknown, "the group does not know this token: make a new one"}

// Token lets one node join a group once. Its text is a secret: possession suffices.
type Token struct {
	Group     ag.GroupID
	Name      string // of the group
	CAPin     string // of the group's authority: how the joiner knows the group
	ID        string
	Secret    [32]byte // how the group knows the joiner
	Addresses []string // endpoints of members that can admit
	Role      string   // KindReplica or KindWitness
	Member    string   // the name under which the node joins: that of a member which it replaces; "": the node's own
	Expires   time.Time
	Quorum    TokenQuorum // of a group with an external quorum
}

// TokenQuorum describes an external quorum to a joiner: its endpoints, and the files in which the maker of the token
// has its authority, certificate and key. Administrators tend to keep these at the same path on every node. It holds no
// secret. The zero value means that the quorum is embedded.
type TokenQuorum struct {
	Endpoints     []string
	CA, Cert, Key string // paths; "": none
}

// parts returns the strings that a token carries, in their order.
func (q TokenQuorum) parts() []string { return append([]string{q.CA, q.Cert, q.Key}, q.Endpoints...) }

// StoredToken is the part of a token that the group keeps. The hash alone admits no node: see proofOf.
type StoredToken struct {
	ID         string    `json:"id"`
	SecretHash []byte    `json:"secret_hash"`
	Role       string    `json:"role"`
	Member     string    `json:"member,omitempty"` // as Token.Member
	Expires    time.Time `json:"expires"`
	UsedBy     string    `json:"used_by,omitempty"`   // pin of the key that was admitted
	Signature  []byte    `json:"signature,omitempty"` // of the replica that made the token: see Endorsed
}

// endorsedToken is the purpose of a token's signature.
const endorsedToken = "join token"

// signed is the part of the token that is signed.
func (s StoredToken) signed() ([]byte, error) {
	s.UsedBy, s.Signature = "", nil
	return json.Marshal(s)
}

// Endorsed returns an error unless a replica of the group made the token. Every member of the quorum's store can write
// one, a witness too. pkiDir is the admitting node's.
func (s StoredToken) Endorsed(pkiDir string) error {
	value, err := s.signed()
	if err != nil {
		return err
	}
	return certs.Endorsed(pkiDir, endorsedToken, value, s.Signature)
}

// TokenOptions describe the node that a new token admits, and how it reaches the group.
type TokenOptions struct {
	Role      string      // certs.KindReplica or certs.KindWitness
	Member    string      // as Token.Member
	Addresses []string    // endpoints of members that can admit
	Quorum    TokenQuorum // of a group with an external quorum
}

// NewToken makes a token that expires after ttl. It returns the token's text and what the group stores of it.
func NewToken(ca *certs.CA, o TokenOptions, ttl time.Duration) (string, StoredToken, error) {
	t := Token{
		Group: ca.Group, Name: ca.Name(), CAPin: ca.Pin(), Role: o.Role, Member: o.Member, Addresses: o.Addresses, Quorum: o.Quorum,
		Expires: time.Now().Add(ttl).UTC().Truncate(time.Second),
	}
	var id [8]byte
	if _, err := rand.Read(id[:]); err != nil {
		return "", StoredToken{}, fmt.Errorf("make a token: %w", err)
	}
	t.ID = hex.EncodeToString(id[:])
	if _, err := rand.Read(t.Secret[:]); err != nil {
		return "", StoredToken{}, fmt.Errorf("make a token: %w", err)
	}
	text, err := t.encode()
	if err != nil {
		return "", StoredToken{}, fmt.Errorf("make a token: %w", err)
	}
	hash := sha256.Sum256(t.Secret[:])
	stored := StoredToken{ID: t.ID, SecretHash: hash[:], Role: o.Role, Member: o.Member, Expires: t.Expires}
	value, err := stored.signed()
	if err == nil {
		stored.Signature, err = ca.Endorse(endorsedToken, value)
	}
	if err != nil {
		return "", StoredToken{}, fmt.Errorf("sign a token: %w", err)
	}
	return text, stored, nil
}

// Check decides whether the token admits a joiner of that role and key; verify is the one given to Config.Join. Until
// the secret is proved every refusal is token_unknown. A token already used by the same key is good: its first answer
// got lost. The caller then consumes the token by storing it, by compare-and-swap, with UsedBy set to keyPin.
func (s StoredToken) Check(verify func(secretHash []byte) bool, role, keyPin string, now time.Time) error {
	switch {
	case len(s.SecretHash) != sha256.Size || !verify(s.SecretHash):
		return errTokenUnknown
	case s.UsedBy != "" && s.UsedBy != keyPin:
		return &RemoteError{CodeTokenUsed, "the token was used already: each admits one node, make a new one"}
	case s.Role != role:
		return &RemoteError{CodeRefused, fmt.Sprintf("the token admits a %s, not a %s", s.Role, role)}
	case s.UsedBy == "" && now.After(s.Expires):
		return &RemoteError{CodeTokenExpired, fmt.Sprintf("the token expired at %s: make a new one", s.Expires.UTC().Format(time.RFC3339))}
	}
	return nil
}

// Names refuses a joiner by another name than the one that the token was made for. A token without a name admits any.
func (s StoredToken) Names(id ag.ReplicaID) error {
	if s.Member == "" || s.Member == string(id) {
		return nil
	}
	return &RemoteError{CodeRefused, fmt.Sprintf("the token is for the node that takes the place of %s, and admits it by that name only; for another node: coterie member add-token", s.Member)}
}

// ParseToken reads a token's text; it may have been wrapped into several lines. After ErrTokenExpired, which goes by
// this machine's clock, the token is returned as well.
func ParseToken(text string) (Token, error) {
	if len(text) > maxToken {
		return Token{}, fmt.Errorf("%w: it is too long", ErrTokenMalformed)
	}
	body, ok := strings.CutPrefix(strings.Join(strings.Fields(text), ""), tokenPrefix)
	if !ok {
		return Token{}, fmt.Errorf("%w: it does not begin with %q", ErrTokenMalformed, tokenPrefix)
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(body)
	if err != nil {
		return Token{}, fmt.Errorf("%w: it holds a character that no token has, or lost its end", ErrTokenMalformed)
	}
	n := len(raw) - tokenSum
	if n < 0 || string(checksum(raw[:n])) != string(raw[n:]) {
		return Token{}, fmt.Errorf("%w: it was cut or mistyped", ErrTokenMalformed)
	}
	t, err := decodeToken(raw[:n])
	if err != nil {
		return Token{}, fmt.Errorf("%w: %w", ErrTokenMalformed, err)
	}
	if now := time.Now(); now.After(t.Expires) {
		return t, fmt.Errorf("%w: it was good until %s, this machine's clock says %s; make a new one on a node of the group",
			ErrTokenExpired, t.Expires.Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	}
	return t, nil
}

// String hides the secret, in case a token is printed.
func (t Token) String() string { return fmt.Sprintf("token %s of group %s", t.ID, t.Name) }

// GoString hides the secret as well.
func (t Token) GoString() string { return t.String() }

func checksum(b []byte) []byte {
	sum := sha256.Sum256(b)
	return sum[:tokenSum]
}

// memberMark separates the kind of node in a token from the name under which it joins.
const memberMark = ":"

// encode writes group, pin, id, secret, expiry, role, name, addresses and, where it is external, the quorum; strings
// carry their length in one byte.
func (t Token) encode() (string, error) {
	if err := t.validate(); err != nil {
		return "", err
	}
	group, err1 := hex.DecodeString(strings.ReplaceAll(string(t.Group), "-", ""))
	pin, err2 := hex.DecodeString(t.CAPin)
	id, err3 := hex.DecodeString(t.ID)
	if err := errors.Join(err1, err2, err3); err != nil {
		return "", err
	}
	var b []byte
	for _, part := range [][]byte{group, pin, id, t.Secret[:]} {
		b = append(b, part...)
	}
	b = binary.BigEndian.AppendUint64(b, uint64(t.Expires.Unix()))
	role := t.Role
	if t.Member != "" { // a program that does not know this refuses the kind of node
		role += memberMark + t.Member
	}
	b = appendString(b, role)
	b = appendString(b, t.Name)
	b = append(b, byte(len(t.Addresses)))
	for _, a := range t.Addresses {
		b = appendString(b, a)
	}
	if len(t.Quorum.Endpoints) > 0 {
		for _, s := range t.Quorum.parts() {
			b = appendString(b, s)
		}
	}
	text := tokenPrefix + base64.RawURLEncoding.EncodeToString(append(b, checksum(b)...))
	if len(text) > maxToken {
		return "", fmt.Errorf("a token with these addresses has %d characters; the limit is %d", len(text), maxToken)
	}
	return text, nil
}

func appendString(b []byte, s string) []byte { return append(append(b, byte(len(s))), s...) }

func (t Token) validate() error {
	switch {
	case !certs.ValidGroup(t.Group):
		return fmt.Errorf("%q is not a group id", t.Group)
	case t.Role != certs.KindReplica && t.Role != certs.KindWitness:
		return fmt.Errorf("%q is not a kind of node: replica or witness", t.Role)
	case len(t.Name) == 0 || len(t.Name) > 255:
		return errors.New("the group's name is empty or too long")
	case len(t.Addresses) == 0 || len(t.Addresses) > maxAddresses:
		return fmt.Errorf("a token names 1 to %d addresses, not %d", maxAddresses, len(t.Addresses))
	}
	if t.Member != "" {
		if err := config.CheckName(t.Member); err != nil {
			return err
		}
	}
	for _, a := range t.Addresses {
		if err := validateAddress(a); err != nil {
			return err
		}
	}
	if len(t.Quorum.Endpoints) > maxAddresses {
		return fmt.Errorf("a token names at most %d endpoints of the quorum, not %d", maxAddresses, len(t.Quorum.Endpoints))
	}
	for _, s := range t.Quorum.parts() {
		if len(s) > 255 {
			return fmt.Errorf("%q is too long for a token", s)
		}
	}
	if slices.Contains(t.Quorum.Endpoints, "") {
		return errors.New("an endpoint of the quorum is empty")
	}
	return nil
}

// validateAddress wants host:port as net.Dial takes it.
func validateAddress(addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || host == "" || port == "" || len(addr) > 255 {
		return fmt.Errorf("%q is not an address such as 10.0.0.1:5022", addr)
	}
	return certs.ValidateHosts([]string{host})
}

func decodeToken(b []byte) (Token, error) {
	const fixed = 16 + 32 + 8 + 32 + 8
	if len(b) < fixed {
		return Token{}, errors.New("it is too short")
	}
	var t Token
	g := hex.EncodeToString(b[:16])
	t.Group = ag.GroupID(g[:8] + "-" + g[8:12] + "-" + g[12:16] + "-" + g[16:20] + "-" + g[20:])
	t.CAPin, t.ID = hex.EncodeToString(b[16:48]), hex.EncodeToString(b[48:56])
	copy(t.Secret[:], b[56:88])
	secs := binary.BigEndian.Uint64(b[88:96])
	if secs > 1<<40 {
		return Token{}, errors.New("its expiry is out of range")
	}
	t.Expires = time.Unix(int64(secs), 0).UTC()
	b = b[fixed:]
	str := func() (s string) {
		if len(b) > 0 && len(b) > int(b[0]) {
			s, b = string(b[1:1+int(b[0])]), b[1+int(b[0]):]
			return s
		}
		b = nil
		return ""
	}
	role, name := str(), str()
	named := false
	if t.Role, t.Member, named = strings.Cut(role, memberMark); named && t.Member == "" {
		return Token{}, errors.New("the name of its node is empty")
	}
	t.Name = name
	if len(b) == 0 {
		return Token{}, errors.New("it is too short")
	}
	n := int(b[0])
	b = b[1:]
	for range n {
		t.Addresses = append(t.Addresses, str())
	}
	if len(b) > 0 {
		t.Quorum.CA, t.Quorum.Cert, t.Quorum.Key = str(), str(), str()
		if len(b) == 0 {
			return Token{}, errors.New("it is too long")
		}
	}
	for len(b) > 0 {
		t.Quorum.Endpoints = append(t.Quorum.Endpoints, str())
	}
	return t, t.validate()
}
