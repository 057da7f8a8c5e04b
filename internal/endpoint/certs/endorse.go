package certs

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
)

// ErrNotEndorsed means that no authority which this node trusts has signed a value in the quorum's store. A member
// without the authority's key, a witness, may have written it.
var ErrNotEndorsed = errors.New("no replica of the group has signed it")

// NextAuthority is the purpose of the signature with which an authority names the one that replaces it.
const NextAuthority = "next authority"

// digest is what is signed of a value: the purpose and the group are part of it, so that a signature of one value is
// none of another.
func digest(purpose, group string, value []byte) []byte {
	h := sha256.New()
	for _, part := range [][]byte{[]byte("coterie endorsement"), []byte(purpose), []byte(group), value} {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		h.Write(part)
	}
	return h.Sum(nil)
}

// Endorse signs a value in the quorum's store on which other members act. Only a replica can: it has the authority's
// key.
func (ca *CA) Endorse(purpose string, value []byte) ([]byte, error) {
	return ecdsa.SignASN1(rand.Reader, ca.key, digest(purpose, string(ca.Group), value))
}

// Endorsed reports whether this very authority has signed the value for that purpose.
func (ca *CA) Endorsed(purpose string, value, signature []byte) bool {
	return ecdsa.VerifyASN1(&ca.key.PublicKey, digest(purpose, string(ca.Group), value), signature)
}

// Configuration is the purpose of the signature of the group's configuration.
const Configuration = "group configuration"

// OperatorRequest is the purpose of the signature of an operator's request, such as a forced failover.
const OperatorRequest = "request of an operator"

// Endorsed returns ErrNotEndorsed if none of the authorities in pkiDir has signed the value for that purpose.
func Endorsed(pkiDir, purpose string, value, signature []byte) error {
	all, _, err := readAuthorities(pkiDir)
	if err != nil {
		return err
	}
	return newTrust(all...).endorsed(purpose, value, signature)
}

// Endorsed returns ErrNotEndorsed if none of the authorities that the node trusts now has signed the value for that
// purpose. It reads no file.
func (n *Node) Endorsed(purpose string, value, signature []byte) error {
	return n.trust.Load().endorsed(purpose, value, signature)
}

func (t *trust) endorsed(purpose string, value, signature []byte) error {
	for _, ca := range t.cas {
		if key, ok := ca.PublicKey.(*ecdsa.PublicKey); ok && ecdsa.VerifyASN1(key, digest(purpose, string(groupOf(ca)), value), signature) {
			return nil
		}
	}
	return ErrNotEndorsed
}
