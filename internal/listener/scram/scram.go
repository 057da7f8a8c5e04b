package scram

import (
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// Names of the SASL mechanisms.
const (
	Mechanism     = "SCRAM-SHA-256"
	MechanismPlus = "SCRAM-SHA-256-PLUS"
)

const (
	scramSaltLen    = 16
	scramIterations = 4096
	scramNonceLen   = 18
)

// Verifier is what PostgreSQL stores of a password.
type Verifier struct {
	iterations           int
	salt                 []byte
	storedKey, serverKey [sha256.Size]byte
	Mock                 bool // for a role that cannot log in: the exchange runs to its end and fails
}

// ParseVerifier reads SCRAM-SHA-256$iterations:salt$stored:server.
func ParseVerifier(s string) (Verifier, bool) {
	var v Verifier
	rest, found := strings.CutPrefix(s, "SCRAM-SHA-256$")
	head, keys, ok := strings.Cut(rest, "$")
	iterations, salt, ok2 := strings.Cut(head, ":")
	stored, server, ok3 := strings.Cut(keys, ":")
	if !found || !ok || !ok2 || !ok3 {
		return v, false
	}
	n, err := strconv.Atoi(iterations)
	if err != nil || n < 1 {
		return v, false
	}
	v.iterations = n
	if v.salt, err = base64.StdEncoding.DecodeString(salt); err != nil || len(v.salt) == 0 {
		return v, false
	}
	return v, decodeKey(v.storedKey[:], stored) && decodeKey(v.serverKey[:], server)
}

func decodeKey(dst []byte, s string) bool {
	b, err := base64.StdEncoding.DecodeString(s)
	return err == nil && copy(dst, b) == len(dst) && len(b) == len(dst)
}

// MockVerifier returns a verifier for a role without one. Its salt is the same at each try, and its rounds are those of
// other roles, so that it reveals nothing; 0 means PostgreSQL's default.
func MockVerifier(secret []byte, user string, rounds int) Verifier {
	if rounds <= 0 {
		rounds = scramIterations
	}
	m := hmac.New(sha256.New, secret)
	m.Write([]byte(user))
	return Verifier{iterations: rounds, salt: m.Sum(nil)[:scramSaltLen], Mock: true}
}

// MaxRounds is the number of rounds of a verifier beyond which Matches does not compute them.
const MaxRounds = 100_000

// Matches reports whether the password is the verifier's. It takes a processor as long as the rounds of the verifier
// do, of a mock one, too. It is false for a verifier of more than MaxRounds.
func (v Verifier) Matches(password string) bool {
	if v.iterations > MaxRounds {
		return false
	}
	if prepared := norm.NFKC.String(password); utf8.ValidString(password) && prepared != "" {
		password = prepared
	}
	salted, err := pbkdf2.Key(sha256.New, password, v.salt, v.iterations, sha256.Size)
	if err != nil {
		return false
	}
	stored := sha256.Sum256(hmacSHA256(salted, []byte("Client Key")))
	return subtle.ConstantTimeCompare(stored[:], v.storedKey[:]) == 1 && !v.Mock
}

var (
	// ErrMalformed is the error of a message that is not SCRAM.
	ErrMalformed = errors.New("malformed SCRAM message")
	// ErrBadProof is the error of a client that does not know the password.
	ErrBadProof = errors.New("the proof does not match")
)

// Exchange is the server's side of one exchange (RFC 5802, 7677). The user name in the messages is ignored, as in
// PostgreSQL: the role is that of the startup packet.
type Exchange struct {
	Verifier  Verifier
	Binding   []byte // tls-server-end-point data; nil = not offered
	Plus      bool   // the client chose the -PLUS mechanism
	gs2       string
	nonce     string
	authInput string // client-first-bare , server-first
}

// First reads client-first-message and returns server-first-message.
func (s *Exchange) First(message string) (string, error) {
	flag, rest, ok := strings.Cut(message, ",")
	authzid, bare, ok2 := strings.Cut(rest, ",")
	if !ok || !ok2 {
		return "", ErrMalformed
	}
	switch {
	case authzid != "":
		return "", fmt.Errorf("%w: client uses authorization identity, but it is not supported", ErrMalformed)
	case flag == "n" && !s.Plus:
	case flag == "y" && !s.Plus:
		if s.Binding != nil {
			return "", fmt.Errorf("%w: SCRAM channel binding negotiation error", ErrMalformed)
		}
	case flag == "p=tls-server-end-point" && s.Plus:
	default:
		return "", fmt.Errorf("%w: unexpected channel binding flag", ErrMalformed)
	}
	s.gs2 = flag + ",,"
	fields := strings.Split(bare, ",")
	if len(fields) < 2 || !strings.HasPrefix(fields[0], "n=") || !strings.HasPrefix(fields[1], "r=") {
		return "", ErrMalformed
	}
	clientNonce := fields[1][2:]
	if clientNonce == "" || !printable(clientNonce) {
		return "", fmt.Errorf("%w: non-printable characters in nonce", ErrMalformed)
	}
	random := make([]byte, scramNonceLen)
	_, _ = rand.Read(random) // never fails
	s.nonce = clientNonce + base64.StdEncoding.EncodeToString(random)
	reply := "r=" + s.nonce + ",s=" + base64.StdEncoding.EncodeToString(s.Verifier.salt) + ",i=" + strconv.Itoa(s.Verifier.iterations)
	s.authInput = bare + "," + reply
	return reply, nil
}

// Final reads client-final-message, checks the proof and returns server-final-message.
func (s *Exchange) Final(message string) (string, error) {
	i := strings.LastIndex(message, ",p=")
	if i < 0 {
		return "", ErrMalformed
	}
	without := message[:i]
	fields := strings.Split(without, ",")
	if len(fields) < 2 || !strings.HasPrefix(fields[0], "c=") || !strings.HasPrefix(fields[1], "r=") {
		return "", ErrMalformed
	}
	var proof [sha256.Size]byte
	if !decodeKey(proof[:], message[i+3:]) {
		return "", ErrMalformed
	}
	want := []byte(s.gs2)
	if s.Plus {
		want = append(want, s.Binding...)
	}
	if fields[0][2:] != base64.StdEncoding.EncodeToString(want) {
		return "", fmt.Errorf("%w: SCRAM channel binding check failed", ErrMalformed)
	}
	if fields[1][2:] != s.nonce {
		return "", fmt.Errorf("%w: nonce does not match", ErrMalformed)
	}
	auth := []byte(s.authInput + "," + without)
	key := hmacSHA256(s.Verifier.storedKey[:], auth)
	for i := range proof {
		proof[i] ^= key[i]
	}
	stored := sha256.Sum256(proof[:])
	if subtle.ConstantTimeCompare(stored[:], s.Verifier.storedKey[:]) != 1 || s.Verifier.Mock {
		return "", ErrBadProof
	}
	return "v=" + base64.StdEncoding.EncodeToString(hmacSHA256(s.Verifier.serverKey[:], auth)), nil
}

func hmacSHA256(key, data []byte) []byte {
	m := hmac.New(sha256.New, key)
	m.Write(data)
	return m.Sum(nil)
}

// printable reports whether s has only characters that RFC 5802 allows in a nonce.
func printable(s string) bool {
	for i := range len(s) {
		if s[i] < 0x21 || s[i] > 0x7e || s[i] == ',' {
			return false
		}
	}
	return true
}

// ChannelBinding returns the tls-server-end-point data of a certificate: its hash by the hash of its signature (RFC
// 5929). It is nil where that is not defined, as for Ed25519; then -PLUS is not offered.
func ChannelBinding(cert *tls.Certificate) []byte {
	if cert == nil || len(cert.Certificate) == 0 {
		return nil
	}
	leaf, err := x509.ParseCertificate(cert.Certificate[0])
	if err != nil {
		return nil
	}
	switch leaf.SignatureAlgorithm {
	case x509.SHA256WithRSA, x509.ECDSAWithSHA256, x509.SHA1WithRSA, x509.ECDSAWithSHA1, x509.MD5WithRSA:
		sum := sha256.Sum256(leaf.Raw)
		return sum[:]
	case x509.SHA384WithRSA, x509.ECDSAWithSHA384:
		sum := sha512.Sum384(leaf.Raw)
		return sum[:]
	case x509.SHA512WithRSA, x509.ECDSAWithSHA512:
		sum := sha512.Sum512(leaf.Raw)
		return sum[:]
	default:
		return nil
	}
}
