package api

import (
	"bufio"
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
)

// FuzzRequest sends requests of strangers to the HTTP port's paths: none ends the node, changes it or is answered by
// an error of the node's own.
func FuzzRequest(f *testing.F) {
	f.Add([]byte("GET /primary HTTP/1.1\r\nHost: x\r\n\r\n"))
	f.Add([]byte("GET /replica?lag=16MB HTTP/1.1\r\nHost: x\r\n\r\n"))
	f.Add([]byte("POST /api/v1/failover HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"))
	f.Add([]byte("OPTIONS * HTTP/1.0\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(b)))
		if err != nil {
			return
		}
		mux := http.NewServeMux()
		NewServer(&stated{st: Status{Node: "n1"}}, slog.New(slog.DiscardHandler)).readPaths(mux)
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		if w.Code == http.StatusInternalServerError {
			t.Errorf("%s %s: %d %s", r.Method, r.URL, w.Code, w.Body)
		}
	})
}
