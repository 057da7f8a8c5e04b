package webhooks

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lib/buildinfo"
)

// Bounds of a try: of its time, of the time until the connection is there, and of what is read of an answer.
const (
	tryTime    = 10 * time.Second
	dialTime   = 5 * time.Second
	maxHeaders = 16 << 10
	maxAnswer  = 4 << 10
)

// errRefused is the answer of a receiver that will never take this event.
var errRefused = errors.New("the receiver refuses the event")

// laterError is a failure after which the receiver wants to be left alone for so long.
type laterError struct {
	error
	after time.Duration
}

// post sends one event once. Each try has a connection of its own, and reads the files anew, so that a secret or an
// authority that was replaced is used at once. No proxy is used, and no redirect is followed: the address of the
// configuration is the only one that gets anything.
func post(ctx context.Context, w config.Webhook, owner int, e item) error {
	ctx, cancel := context.WithTimeoutCause(ctx, tryTime, fmt.Errorf("no answer within %v", tryTime))
	defer cancel()
	secrets, err := keys(w.SecretFile, owner)
	if err != nil {
		return err
	}
	pool, err := authorities(w.CA)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.URL, bytes.NewReader(e.body))
	if err != nil {
		return errors.New("the url cannot be used")
	}
	at := strconv.FormatInt(time.Now().Unix(), 10)
	req.Header = http.Header{
		"Content-Type":      {"application/json"},
		"User-Agent":        {"coterie/" + buildinfo.Version},
		"Webhook-Id":        {e.id},
		"Webhook-Timestamp": {at},
		"Webhook-Signature": {sign(secrets, e.id, at, e.body)},
	}
	transport := &http.Transport{
		DialContext:            (&net.Dialer{Timeout: dialTime}).DialContext,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool},
		TLSHandshakeTimeout:    dialTime,
		MaxResponseHeaderBytes: maxHeaders,
		DisableKeepAlives:      true,
		DisableCompression:     true,
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return nameless(err)
	}
	if resp.StatusCode != http.StatusSwitchingProtocols { // after that the connection is this process's, and ctx ends no read of it
		_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxAnswer))
	}
	_ = resp.Body.Close()
	return judge(resp)
}

// judge returns what an answer means: nil, the event was taken; errRefused, it never will be; else it is tried again.
func judge(resp *http.Response) error {
	switch code := resp.StatusCode; code {
	case http.StatusBadRequest, http.StatusGone, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity:
		return fmt.Errorf("%w: HTTP status %d", errRefused, code)
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		after, _ := strconv.Atoi(resp.Header.Get("Retry-After"))
		return laterError{fmt.Errorf("HTTP status %d", code), time.Duration(min(max(after, 0), int(maxPause/time.Second))) * time.Second}
	default:
		if code >= 300 && code < 400 {
			return fmt.Errorf("HTTP status %d: redirects are not followed", code)
		}
		if code < 200 || code >= 300 {
			return fmt.Errorf("HTTP status %d", code)
		}
	}
	return nil
}
