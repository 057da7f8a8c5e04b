package endpoint

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

const (
	maxBody       = 1 << 20 // of a request and of a reply
	maxErrorText  = 4 << 10
	bodyTimeout   = 10 * time.Second
	callTimeout   = 10 * time.Minute // at most, also if the caller's deadline is later
	timeoutHeader = "Coterie-Timeout"
)

// Codes of a RemoteError that this package itself answers. Handlers may use others.
const (
	CodeError         = "error"          // the method failed; the message says how
	CodeInternal      = "internal"       // a bug at the other node
	CodeUnknownMethod = "unknown_method" // the other node runs another version
	CodeTooLarge      = "too_large"
	CodeMalformed     = "malformed"
	CodeRefused       = "refused"
	CodeLate          = "late"     // the request did not arrive in time
	CodeDeadline      = "deadline" // the method did not finish in the caller's time
)

// RemoteError is an error that another node answered. A control method, or Config.Join, that returns one chooses its
// code.
type RemoteError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// Error returns the message with the code.
func (e *RemoteError) Error() string { return e.Message + " (" + e.Code + ")" }

// Method implements one remote call. Its result is encoded as JSON.
type Method func(ctx context.Context, peer certs.Identity, body json.RawMessage) (any, error)

// Control makes and serves remote calls between nodes: JSON over HTTP/1.1 in streams of class control.
type Control struct {
	e       *Endpoint
	methods map[string]Method
	client  *http.Transport
	server  *http.Server

	bodyTime time.Duration // for the body of a request
}

// errLate is the answer to a caller whose request does not arrive in time. The method is not run.
var errLate = &RemoteError{CodeLate, "the body of the request did not arrive in time; the method was not run"}

// reply is the body of every answer: one of the two.
type reply struct {
	Result json.RawMessage `json:"result,omitempty"`
	Error  *RemoteError    `json:"error,omitempty"`
}

// NewControl makes e serve class control. Call it before Serve, and Close after it.
func NewControl(e *Endpoint) *Control {
	c := &Control{e: e, methods: make(map[string]Method), bodyTime: bodyTimeout}
	c.client = &http.Transport{
		DialContext:            c.dial,
		MaxIdleConnsPerHost:    4,
		MaxConnsPerHost:        32,
		IdleConnTimeout:        time.Minute, // shorter than the server's, so that a call never meets a closing connection
		DisableCompression:     true,
		MaxResponseHeaderBytes: 16 << 10,
	}
	c.server = &http.Server{
		Handler:           http.HandlerFunc(c.serve),
		ReadHeaderTimeout: bodyTimeout,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(e.log.Handler(), slog.LevelDebug),
		BaseContext:       func(l net.Listener) context.Context { return l.(*oneStream).ctx },
		ConnState: func(conn net.Conn, state http.ConnState) {
			if state == http.StateClosed {
				close(conn.(*stream).closed)
			}
		},
	}
	e.handlers[ClassControl] = c.serveStream
	return c
}

// Handle sets the implementation of a method, a name of letters, digits, '_', '-' and '.'. Call it before Serve.
func (c *Control) Handle(method string, f func(ctx context.Context, peer certs.Identity, body json.RawMessage) (any, error)) {
	c.methods[method] = f
}

// Close closes the connections that calls left open for the next ones.
func (c *Control) Close() { c.client.CloseIdleConnections() }

// Call runs a method at another node, of which it uses ID and Endpoint, and decodes the result into out. in and out may
// be nil. ctx must have a deadline, which the other node keeps as well. If the other node answers with an error, that
// is a *RemoteError. After an error of Dial nothing was sent; after any other error it is unknown whether the method
// ran. A caller that gives up reads the error of its own ctx, and no answer.
func (c *Control) Call(ctx context.Context, to ag.Replica, method string, in, out any) error {
	if err := c.call(ctx, to, method, in, out); err != nil {
		return fmt.Errorf("call %s on %s: %w", method, to.ID, err)
	}
	return nil
}

func (c *Control) call(ctx context.Context, to ag.Replica, method string, in, out any) error {
	deadline, ok := ctx.Deadline()
	if !ok {
		return errors.New("a remote call needs a deadline")
	}
	body, err := json.Marshal(in)
	if err != nil {
		return fmt.Errorf("encode the request: %w", err)
	}
	if len(body) > maxBody {
		return fmt.Errorf("the request has %d bytes, at most %d are sent", len(body), maxBody)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+poolKey(to.Endpoint, to.ID)+"/"+method, bytes.NewReader(body))
	if err != nil {
		return err
	}
	left := max(time.Until(deadline).Milliseconds(), 1)
	req.Header.Set(timeoutHeader, strconv.FormatInt(left, 10))
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.client.RoundTrip(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.Header.Get(wantedHeader) != "" {
		c.e.park(to.ID, to.Endpoint)
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	if err != nil {
		return fmt.Errorf("read the reply: %w", err)
	}
	if len(data) > maxBody {
		return fmt.Errorf("the reply has more than %d bytes", maxBody)
	}
	var r reply
	if err := json.Unmarshal(data, &r); err != nil {
		return fmt.Errorf("decode the reply (HTTP status %d): %w", resp.StatusCode, err)
	}
	if r.Error != nil {
		return r.Error
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(r.Result, out); err != nil {
		return fmt.Errorf("decode the result: %w", err)
	}
	return nil
}

// poolKey encodes the address and the node as a host name, by which http.Transport keeps its connections apart. A
// connection to one node is so never used for another that took over its address.
func poolKey(addr string, want ag.ReplicaID) string {
	return hex.EncodeToString([]byte(want)) + "." + hex.EncodeToString([]byte(addr)) + ".x"
}

func (c *Control) dial(ctx context.Context, _, hostport string) (net.Conn, error) {
	parts := strings.Split(hostport, ".")
	if len(parts) != 3 {
		return nil, fmt.Errorf("no such pool of connections: %s", hostport)
	}
	want, err1 := hex.DecodeString(parts[0])
	addr, err2 := hex.DecodeString(parts[1])
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	return c.e.Dial(ctx, string(addr), ClassControl, ag.ReplicaID(want))
}

// serveStream serves the requests of one connection and returns when it is closed and the last method has returned.
func (c *Control) serveStream(ctx context.Context, _ certs.Identity, conn net.Conn) {
	s := &stream{Conn: conn.(*Conn), closed: make(chan struct{})}
	_ = c.server.Serve(&oneStream{ctx: context.WithValue(ctx, streamKey{}, s), next: s}) // until ctx, the connection's, is done
	<-s.closed
}

// stream is a control connection; closed is closed when the HTTP server is through with it.
type stream struct {
	*Conn
	closed chan struct{}
}

type streamKey struct{}

// CallersHosts returns the names and addresses in the certificate of the member whose request runs with ctx, without
// those that every certificate has. Elsewhere there are none.
func CallersHosts(ctx context.Context) []string {
	if s, ok := ctx.Value(streamKey{}).(*stream); ok {
		return s.hosts
	}
	return nil
}

// oneStream is a listener that yields one connection and then waits until that is closed.
type oneStream struct {
	ctx  context.Context
	next *stream
}

func (l *oneStream) Accept() (net.Conn, error) {
	if s := l.next; s != nil {
		l.next = nil
		return s, nil
	}
	<-l.ctx.Done()
	return nil, net.ErrClosed
}

func (l *oneStream) Close() error   { return nil }
func (l *oneStream) Addr() net.Addr { return &net.TCPAddr{} }

// serve answers one request.
func (c *Control) serve(w http.ResponseWriter, r *http.Request) {
	s := r.Context().Value(streamKey{}).(*stream)
	result, err := c.run(w, r, s)
	if err != nil && r.Context().Err() != nil && !errors.Is(err, errLate) { // that ends the request's context, too
		panic(http.ErrAbortHandler) // the caller has gone: it must not read that its method was cancelled for a reason here
	}
	var rep reply
	if err == nil {
		rep.Result, err = json.Marshal(result)
	}
	if err == nil && len(rep.Result) > maxBody-64 {
		err = &RemoteError{CodeTooLarge, fmt.Sprintf("the result has %d bytes, at most %d are sent", len(rep.Result), maxBody-64)}
	}
	status := http.StatusOK
	if err != nil {
		rep = reply{Error: remoteError(err)}
		status = http.StatusUnprocessableEntity
	}
	body, err := json.Marshal(rep)
	if err != nil {
		panic(err) // two strings, or what was encoded before
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(bodyTimeout))
	if c.e.wantsBack(s.peer.ID) {
		w.Header().Set(wantedHeader, "1")
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(body) // a caller that has closed its connection does not matter
}

// run reads a request, checks the authorisation once more, and runs the method within the caller's deadline.
func (c *Control) run(w http.ResponseWriter, r *http.Request, s *stream) (result any, err error) {
	method := strings.TrimPrefix(r.URL.Path, "/")
	defer func() {
		if p := recover(); p != nil {
			c.e.log.Error("a control method panicked", "method", method, "peer", s.peer.ID, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			result, err = nil, &RemoteError{CodeInternal, "the method failed by a bug; the node's log has the details"}
		}
	}()
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(c.bodyTime))
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return nil, &RemoteError{CodeTooLarge, fmt.Sprintf("the request has more than %d bytes", maxBody)}
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, errLate
	}
	if err != nil {
		return nil, &RemoteError{CodeMalformed, "the request could not be read"}
	}
	_ = rc.SetReadDeadline(time.Time{})
	f := c.methods[method]
	if r.Method != http.MethodPost || f == nil {
		return nil, &RemoteError{CodeUnknownMethod, fmt.Sprintf("no method %q here", method)}
	}
	if !json.Valid(body) {
		return nil, &RemoteError{CodeMalformed, "the request is not JSON"}
	}
	if c.e.cfg.Authorize == nil {
		return nil, &RemoteError{CodeRefused, "this node authorises nobody"}
	}
	if err := c.e.cfg.Authorize(s.peer, s.pin, ClassControl); err != nil {
		return nil, &RemoteError{CodeRefused, err.Error()}
	}
	limit := callTimeout
	if ms, err := strconv.ParseInt(r.Header.Get(timeoutHeader), 10, 64); err == nil && ms > 0 && ms < callTimeout.Milliseconds() {
		limit = time.Duration(ms) * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(r.Context(), limit)
	defer cancel()
	return f(ctx, s.peer, body)
}

// remoteError turns any error into one that may be sent. A kind of failure becomes its code.
func remoteError(err error) *RemoteError {
	out := &RemoteError{CodeError, err.Error()}
	var re *RemoteError
	if errors.As(err, &re) {
		*out = *re
	} else if code, text, ok := fail.Remote(err); ok {
		*out = RemoteError{code, text}
	} else if errors.Is(err, context.DeadlineExceeded) {
		out.Code = CodeDeadline
	}
	out.Message = out.Message[:min(len(out.Message), maxErrorText)]
	return out
}
