package clientcert

import (
	"crypto/x509"
	"encoding/asn1"
	"errors"
	"fmt"
	"strings"
)

// Errors of Name.
var (
	ErrManyNames = errors.New("the certificate has more than one common name")
	ErrBadName   = errors.New("the certificate's common name is not plain text")
)

// attribute is one attribute of a certificate's subject, with its value as it was encoded.
type attribute struct {
	Type  asn1.ObjectIdentifier
	Value asn1.RawValue
}

// attributesSET is a set with a name of its own, by which encoding/asn1 knows a SET.
type attributesSET []attribute

// commonName is the type of the attribute CN.
var commonName = asn1.ObjectIdentifier{2, 5, 4, 3}

// Name returns the common name of a certificate, "" if it has none. A certificate with two is refused, since PostgreSQL
// takes the first one and crypto/x509 the last. So is a name with a NUL byte, or in an encoding in which the two would
// read different names.
func Name(c *x509.Certificate) (string, error) {
	var subject []attributesSET
	if rest, err := asn1.Unmarshal(c.RawSubject, &subject); err != nil || len(rest) > 0 {
		return "", fmt.Errorf("the certificate's subject cannot be read: %w", errors.Join(err, ErrBadName))
	}
	name, found := "", false
	for _, set := range subject {
		for _, a := range set {
			if !a.Type.Equal(commonName) {
				continue
			}
			if found {
				return "", ErrManyNames
			}
			switch a.Value.Tag {
			case asn1.TagUTF8String, asn1.TagPrintableString, asn1.TagIA5String:
			default:
				return "", ErrBadName
			}
			if name, found = string(a.Value.Bytes), true; strings.ContainsRune(name, 0) {
				return "", ErrBadName
			}
		}
	}
	return name, nil
}
