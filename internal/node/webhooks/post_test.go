package webhooks

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/config"
)

// key is the secret of the tests.
const key = "a key of the test, 32 bytes long"

// written returns a file with a text.
func written(t *testing.T, text string, perm os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, perm); err != nil {
		t.Fatal(err)
	}
	return path
}

func secretOf(key string) string {
	return secretPrefix + base64.StdEncoding.EncodeToString([]byte(key)) + "\n"
}

// TestSignature holds the signature against the example of Standard Webhooks, and that two keys sign both.
func TestSignature(t *testing.T) {
	t.Parallel()
	example, err := base64.StdEncoding.DecodeString("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	if err != nil {
		t.Fatal(err)
	}
	got := sign([][]byte{example, []byte(key)}, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", []byte(`{"test": 2432232314}`))
	first, second, _ := strings.Cut(got, " ")
	if first != "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=" || !strings.HasPrefix(second, "v1,") || second == first {
		t.Error(got)
	}
}

// TestAPost has a receiver with TLS get an event: document, type, id, time and signature.
func TestAPost(t *testing.T) {
	t.Parallel()
	var got http.Header
	var body []byte
	srv := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		got = r.Header
		body, _ = io.ReadAll(r.Body)
	}))
	defer srv.Close()
	w := config.Webhook{
		URL: srv.URL + "/x", SecretFile: written(t, secretOf(key), 0o600),
		CA: written(t, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})), 0o644),
	}
	e := item{id: "evt_1", body: []byte(`{"kind":"health"}`)}
	if err := post(t.Context(), w, os.Getuid(), e); err != nil {
		t.Fatal(err)
	}
	at := got.Get("Webhook-Timestamp")
	if sent, err := strconv.ParseInt(at, 10, 64); err != nil || time.Since(time.Unix(sent, 0)) > 2*time.Minute {
		t.Errorf("its time is %q", at)
	}
	if want := sign([][]byte{[]byte(key)}, "evt_1", at, e.body); got.Get("Webhook-Signature") != want || got.Get("Webhook-Id") != "evt_1" || string(body) != string(e.body) || got.Get("Content-Type") != "application/json" {
		t.Errorf("%v with %s", got, body)
	}
	w.CA = ""
	if err := post(t.Context(), w, os.Getuid(), e); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("a certificate of nobody was taken: %v", err)
	}
}

// TestAnswers holds what the answers of a receiver mean. A redirect is not followed, and an answer without an end is
// not read to its end.
func TestAnswers(t *testing.T) {
	t.Parallel()
	var elsewhere atomic.Bool
	mux := http.NewServeMux()
	mux.HandleFunc("/status/{code}", func(w http.ResponseWriter, r *http.Request) {
		code, _ := strconv.Atoi(r.PathValue("code"))
		w.Header().Set("Location", "/elsewhere")
		w.Header().Set("Retry-After", "30")
		w.WriteHeader(code)
	})
	mux.HandleFunc("/elsewhere", func(http.ResponseWriter, *http.Request) { elsewhere.Store(true) })
	mux.HandleFunc("/endless", func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			if _, err := w.Write(make([]byte, 1<<10)); err != nil {
				return
			}
		}
	})
	mux.HandleFunc("/hangs", func(_ http.ResponseWriter, r *http.Request) { _, _ = io.ReadAll(r.Body); <-r.Context().Done() })
	mux.HandleFunc("/headers", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X", strings.Repeat("x", 2*maxHeaders)) })
	srv := httptest.NewServer(mux)
	defer srv.Close()
	secret := written(t, secretOf(key), 0o600)
	try := func(ctx context.Context, path string) error {
		return post(ctx, config.Webhook{URL: srv.URL + path, SecretFile: secret}, os.Getuid(), item{id: "evt_1", body: []byte("{}")})
	}
	for path, want := range map[string]string{
		"/status/200": "", "/status/202": "", "/status/204": "", "/endless": "",
		"/status/301": "redirects are not followed", "/status/307": "redirects are not followed",
		"/status/400": "refuses the event: HTTP status 400", "/status/410": "refuses the event: HTTP status 410",
		"/status/401": "HTTP status 401", "/status/404": "HTTP status 404", "/status/429": "HTTP status 429", "/status/500": "HTTP status 500", "/status/503": "HTTP status 503",
		"/headers": "",
	} {
		err := try(t.Context(), path)
		if good := path != "/headers" && want == ""; good != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", path, err)
		}
		var later laterError
		if waits := strings.HasSuffix(path, "429") || strings.HasSuffix(path, "503"); errors.As(err, &later) != waits || waits && later.after != 30*time.Second {
			t.Errorf("%s: %v, later by %v", path, err, later.after)
		}
		if refused := strings.Contains(want, "refuses"); errors.Is(err, errRefused) != refused {
			t.Errorf("%s: %v", path, err)
		}
	}
	if elsewhere.Load() {
		t.Error("a redirect was followed")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := try(ctx, "/hangs"); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

// TestOddReceivers holds that a receiver ends the try which answers with something else than HTTP, or takes the
// connection over; and that the failure has neither the address nor anything of the answer.
func TestOddReceivers(t *testing.T) {
	t.Parallel()
	const head = "HTTP/1.1 200 OK\r\n"
	for answer, want := range map[string]string{
		"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n": "HTTP status 101",
		"POST /TOKEN HTTP/1.1\r\n\r\n":                                           "not HTTP",
		"HTTP/1.1 /TOKEN\r\n\r\n":                                                "not HTTP",
		head + "/TOKEN\r\n\r\n":                                                  "not HTTP",
		head + "Content-Length: /TOKEN\r\n\r\n":                                  "not HTTP",
		head + "Transfer-Encoding: /TOKEN\r\n\r\n":                               "not HTTP",
		strings.Repeat("HTTP/1.1 103 /TOKEN\r\n\r\n", 2000):                      "too many headers",
		"HTTP/1.1 503 X\r\nRetry-After: 9300000000\r\nContent-Length: 0\r\n\r\n": "HTTP status 503",
		"": "closed the connection",
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		var serving sync.WaitGroup
		serving.Go(func() {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer func() { _ = c.Close() }()
			if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil && answer != "" {
				_, _ = io.WriteString(c, answer)
				_ = c.SetReadDeadline(time.Now().Add(time.Minute))
				if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("%.40q: the sender holds the connection", answer)
				}
			}
		})
		err = post(t.Context(), config.Webhook{URL: "http://" + l.Addr().String() + "/TOKEN", SecretFile: written(t, secretOf(key), 0o600)}, os.Getuid(), item{id: "evt_1", body: []byte("{}")})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "TOKEN") || strings.Contains(err.Error(), "127.0.0.1") {
			t.Errorf("%.40q: %v", answer, err)
		}
		var later laterError
		if errors.As(err, &later) && later.after != maxPause {
			t.Errorf("later by %v", later.after)
		}
		_ = l.Close()
		serving.Wait()
	}
}

// TestNameless holds that no failure of a connection has the name or the address of the receiver.
func TestNameless(t *testing.T) {
	t.Parallel()
	plainHTTP := httptest.NewServer(http.NotFoundHandler())
	defer plainHTTP.Close()
	other := httptest.NewTLSServer(http.NotFoundHandler())
	defer other.Close()
	ca := written(t, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: other.Certificate().Raw})), 0o644)
	_, port, _ := net.SplitHostPort(other.Listener.Addr().String())
	for url, want := range map[string]string{
		"http://127.0.0.1:1/":       "connection refused",
		"https://localhost:" + port: "for another name",
		"https://127.0.0.1:" + strings.TrimPrefix(plainHTTP.URL, "http://127.0.0.1:"): "does not speak TLS",
	} {
		err := post(t.Context(), config.Webhook{URL: url, CA: ca, SecretFile: written(t, secretOf(key), 0o600)}, os.Getuid(), item{id: "evt_1", body: []byte("{}")})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "127.0.0.1") || strings.Contains(err.Error(), "localhost") {
			t.Errorf("%s: %v, want %q", url, err, want)
		}
	}
	for _, none := range []bool{true, false} {
		if err := nameless(&net.OpError{Op: "dial", Err: &net.DNSError{Err: "x", Name: "token.example.com", IsNotFound: none}}); !strings.HasPrefix(err.Error(), "DNS ") || strings.Contains(err.Error(), "token") {
			t.Error(err)
		}
	}
}

// TestSecrets holds which files are used as secrets, and that no error tells what is in one.
func TestSecrets(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		text string
		perm os.FileMode
		want string
	}{
		{secretOf(key), 0o600, ""},
		{secretOf(key), 0o400, ""},
		{secretOf(key) + secretOf("another key, which is long enough"), 0o600, ""},
		{secretOf(key), 0o604, "may be used by other users"},
		{secretOf(key), 0o660, "may be used by other users"},
		{secretOf(key), 0o200, "may not be read by the node's user"},
		{"", 0o600, "has 0 secrets"},
		{strings.Repeat(secretOf(key), 3), 0o600, "has 3 secrets"},
		{secretOf("short"), 0o600, "secret 1 is not"},
		{secretOf(key) + "plain-password-of-someone", 0o600, "secret 2 is not"},
		{secretOf(strings.Repeat(key, 3)), 0o600, "secret 1 is not"},
	} {
		path := written(t, tt.text, tt.perm)
		got, err := keys(path, os.Getuid())
		if tt.perm == 0o200 && os.Getuid() != 0 { // the system refuses it before
			tt.want = "denied"
		}
		if (tt.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), tt.want) || err == nil && string(got[0]) != key {
			t.Errorf("%q with %o: %v", tt.text, tt.perm, err)
		}
		if err != nil && (strings.Contains(err.Error(), "plain-password") || strings.Contains(err.Error(), base64.StdEncoding.EncodeToString([]byte(key)))) {
			t.Errorf("it tells the secret: %v", err)
		}
	}
	if os.Getuid() == 0 {
		for perm, want := range map[os.FileMode]string{0o600: "may not be read by the node's user", 0o640: "", 0o644: "may be used by other users"} {
			_, err := keys(written(t, secretOf(key), perm), 1234)
			if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("a file of root with %o: %v", perm, err)
			}
		}
	}
	if err := Check(config.Webhook{SecretFile: written(t, secretOf(key), 0o600), CA: written(t, "no certificate", 0o644)}, os.Getuid()); err == nil || !strings.HasPrefix(err.Error(), "ca: ") {
		t.Error(err)
	}
}
