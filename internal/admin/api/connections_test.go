package api

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"
)

// TestHealthChecksInAFlood holds that a client which takes connections and sends nothing keeps no health check of
// another address waiting, nor, after the grace, one of its own.
func TestHealthChecksInAFlood(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := NewServer(&stated{st: Status{Node: "n1"}}, slog.New(slog.DiscardHandler))
	ended := make(chan error, 1)
	go func() { ended <- s.serveHTTP(ctx, l) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	at := l.Addr().String()
	check := func(from string) error {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		client := http.Client{Timeout: 3 * time.Second, Transport: &http.Transport{DialContext: d.DialContext, DisableKeepAlives: true}}
		resp, err := client.Get("http://" + at + "/liveness")
		if err == nil {
			_ = resp.Body.Close()
		}
		return err
	}
	for range 2 * maxHTTPConns {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
		c, err := d.DialContext(ctx, "tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
	}
	if err := check("127.0.0.1"); err != nil {
		t.Errorf("another address: %v", err)
	}
	for end := time.Now().Add(10 * time.Second); check("127.0.0.2") != nil; {
		if time.Now().After(end) {
			t.Fatal("the address itself is never served")
		}
	}
	if n := s.places.Taken(); n > eachHTTPConns {
		t.Errorf("%d places are taken", n)
	}
	if s.Refused() == 0 {
		t.Error("no refusal is counted")
	}
}
