package consolebench

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// lookEvery and chartsEvery are the pauses of the page between two looks. A test compares them with it.
const (
	lookEvery   = 2 * time.Second  // between two looks at the views
	chartsEvery = 10 * time.Second // between two looks at the history of the last hour
)

var overviewViews = []string{"coterie.replicas", "coterie.streams"}

// Bounds of a client.
const (
	maxAnswer  = 16 << 20
	askTime    = 30 * time.Second
	browserMax = 6 // connections of a browser to one host
)

// client is one browser's worth of connections and cookies.
type client struct {
	base string
	http *http.Client
	wire atomic.Int64 // bytes received, those of TLS included
}

// newClient returns the client of that number. On the loopback interface each number has an address of its own, as
// browsers on different machines have: the port bounds the connections of one address.
func newClient(base string, number int) (*client, error) {
	u, err := url.Parse(base)
	if err != nil {
		return nil, err
	}
	jar, err := cookiejar.New(nil)
	if err != nil {
		return nil, err
	}
	c := &client{base: strings.TrimSuffix(base, "/")}
	d := &net.Dialer{Timeout: askTime}
	if ip := net.ParseIP(u.Hostname()); ip != nil && ip.To4() != nil && ip.IsLoopback() {
		d.LocalAddr = &net.TCPAddr{IP: net.IPv4(127, 0, byte(1+number/250), byte(1+number%250))}
	}
	t := &http.Transport{
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := d.DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return &counted{conn, &c.wire}, nil
		},
		TLSClientConfig:    &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13}, //nolint:gosec // a lab on this machine
		DisableCompression: true,                                                                // answers are counted as they come
		MaxConnsPerHost:    browserMax, MaxIdleConnsPerHost: browserMax, IdleConnTimeout: time.Minute,
	}
	c.http = &http.Client{Transport: t, Jar: jar}
	return c, nil
}

func (c *client) close() { c.http.CloseIdleConnections() }

// counted is a connection whose received bytes are counted.
type counted struct {
	net.Conn
	n *atomic.Int64
}

// Read reads from the connection.
func (c *counted) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.n.Add(int64(n))
	return n, err
}

// ask sends a request. The caller closes the body of the answer, whose code is 2xx.
func (c *client) ask(ctx context.Context, method, path string, body []byte, headers ...string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Accept-Encoding", "gzip")
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	resp, err := c.http.Do(r)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode/100 != 2 {
		text, err := io.ReadAll(io.LimitReader(resp.Body, 500))
		return nil, errors.Join(fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, text), err, resp.Body.Close())
	}
	return resp, nil
}

// get returns the body of an answer as it came.
func (c *client) get(ctx context.Context, path string) (body []byte, zipped bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	resp, err := c.ask(ctx, http.MethodGet, path, nil)
	if err != nil {
		return nil, false, err
	}
	body, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	return body, resp.Header.Get("Content-Encoding") == "gzip", errors.Join(err, resp.Body.Close())
}

// logIn logs in as a person does.
func (c *client) logIn(ctx context.Context, user, password string) error {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	body, err := json.Marshal(map[string]string{"user": user, "password": password})
	if err != nil {
		return err
	}
	resp, err := c.ask(ctx, http.MethodPost, "/api/v1/session", body)
	if err != nil {
		return fmt.Errorf("log in as %s: %w", user, err)
	}
	return resp.Body.Close()
}

// cookies returns the cookies of the login.
func (c *client) cookies() []*http.Cookie {
	u, err := url.Parse(c.base + "/")
	if err != nil {
		return nil
	}
	return c.http.Jar.Cookies(u)
}

// First is the first screen, for a client that has a session and nothing else.
type First struct {
	Requests int     `json:"requests"`
	Bytes    int     `json:"bytes"` // of bodies as they came, with the stream up to its first status
	Files    int     `json:"files"` // of these, the page's files
	Wire     int64   `json:"wire"`  // with heads and TLS
	MS       float64 `json:"ms"`    // from the first connection until the first status and the views are there
}

// parts names the files that a file of the page asks for.
var parts = regexp.MustCompile(`(?:(?:href|src)="|from '\.)(/[a-z]+\.[a-z]+)["']`)

// first asks for all that the page asks for, in its order.
func (c *client) first(ctx context.Context) (f First, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	c.close()
	began, before := time.Now(), c.wire.Load()
	var mu sync.Mutex
	seen := map[string]bool{}
	wave := []string{"/"}
	count := func(n int, file bool) {
		mu.Lock()
		defer mu.Unlock()
		f.Requests++
		f.Bytes += n
		if file {
			f.Files += n
		}
	}
	for len(wave) > 0 {
		var next []string
		err := all(wave, func(path string) error {
			body, zipped, err := c.get(ctx, path)
			if err != nil {
				return err
			}
			count(len(body), true)
			text, err := unzipped(body, zipped)
			mu.Lock()
			defer mu.Unlock()
			for _, m := range parts.FindAllSubmatch(text, -1) {
				if p := string(m[1]); !seen[p] {
					seen[p] = true
					next = append(next, p)
				}
			}
			return err
		})
		if err != nil {
			return f, err
		}
		wave = next
	}
	body, _, err := c.get(ctx, "/api/v1/session")
	if err != nil {
		return f, err
	}
	count(len(body), false)
	err = all(append([]string{""}, overviewViews...), func(view string) error {
		if view == "" {
			n, err := c.firstStatus(ctx)
			count(n, false)
			return err
		}
		body, _, err := c.get(ctx, "/api/v1/views/"+view)
		count(len(body), false)
		return err
	})
	f.MS, f.Wire = ms(time.Since(began)), c.wire.Load()-before
	return f, err
}

// firstStatus reads the stream up to its first status, and returns how many bytes that took.
func (c *client) firstStatus(ctx context.Context) (n int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	found := false
	err = c.stream(ctx, func(m message) bool {
		n += m.size
		found = m.event == "status"
		return !found
	})
	if found {
		return n, nil
	}
	return n, errors.Join(errors.New("the stream ended before its first status"), err)
}

func unzipped(body []byte, zipped bool) ([]byte, error) {
	if !zipped {
		return body, nil
	}
	z, err := gzip.NewReader(bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(z, maxAnswer))
}

// all calls f for each of a few values at once, and returns when all calls have ended.
func all[V any](values []V, f func(V) error) error {
	errs := make([]error, len(values))
	var wg sync.WaitGroup
	for i, v := range values {
		wg.Go(func() { errs[i] = f(v) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// password returns a password for the roles of a run.
func password() string { return strings.ToLower(rand.Text()) }

// sorted returns the values in ascending order.
func sorted(v []float64) []float64 { return slices.Sorted(slices.Values(v)) }
