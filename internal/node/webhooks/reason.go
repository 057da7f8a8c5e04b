package webhooks

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
)

// nameless returns why a request failed, in words that have nothing of the address, of the receiver's certificate or of
// its answer. A receiver may answer with the request's path, which may be its secret.
func nameless(err error) error {
	var lookup *net.DNSError
	var number syscall.Errno
	var slow net.Error
	var untrusted *tls.CertificateVerificationError
	var alert *net.OpError
	switch {
	case errors.As(err, &lookup) && lookup.IsNotFound:
		return errors.New("DNS has no such host")
	case errors.As(err, &lookup):
		return errors.New("DNS does not answer for the host")
	case errors.As(err, &slow) && slow.Timeout():
		return errors.New("no connection in time")
	case errors.As(err, &untrusted):
		return distrust(untrusted.Err)
	case errors.As(err, &number):
		return number
	case errors.As(err, new(tls.RecordHeaderError)), strings.Contains(err.Error(), "HTTP response to HTTPS client"):
		return errors.New("the receiver does not speak TLS")
	case errors.As(err, &alert) && strings.HasSuffix(alert.Op, " error") && alert.Err != nil, strings.HasPrefix(err.Error(), "tls: "):
		return err // a text of package tls, which names nobody
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("the receiver closed the connection without an answer")
	case alert != nil:
		return errors.New("no connection")
	}
	return errors.New("the answer is not HTTP, or has too many headers")
}

// distrust returns why a certificate is not taken.
func distrust(err error) error {
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, new(x509.UnknownAuthorityError)):
		return errors.New("the receiver's certificate is of an unknown authority")
	case errors.As(err, new(x509.HostnameError)):
		return errors.New("the receiver's certificate is for another name")
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return errors.New("the receiver's certificate has expired, or is not valid yet")
	}
	return errors.New("the receiver's certificate is not valid")
}
