package rpc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/endpoint"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// Method is a call between nodes that sends a Req and is answered with a Resp.
type Method[Req, Resp any] struct {
	name string
	from callers
}

// callers are the members that may call a method. A witness has no data and serves no client, so it may call nothing
// that takes a promise, changes a copy or a server, or tells what a client could not ask.
type callers int

const (
	members  callers = iota // every member of the group
	replicas                // members whose certificate is a replica's
)

// refuse returns an error if the peer, as its certificate names it, is not one of the callers.
func (c callers) refuse(peer certs.Identity) error {
	if c == replicas && peer.Kind != certs.KindReplica {
		return fail.Refusedf("%s is a witness, which is not told that, and may not ask for it: run the command on a replica", peer.ID)
	}
	return nil
}

// Nothing is sent or answered by methods that need no request or give no answer.
type Nothing struct{}

// Caller runs a method at another node; *endpoint.Control is one.
type Caller interface {
	Call(ctx context.Context, to ag.Replica, method string, in, out any) error
}

// Call runs a method at another node. ctx must have a deadline. The errors are those of endpoint.Control.Call: after an
// error of Dial nothing was sent; after any other it is unknown whether the method ran. An answer with a kind of
// failure is the same fail.Error here, and the text of another error is that of the other node.
func Call[Req, Resp any](ctx context.Context, c Caller, to ag.Replica, m Method[Req, Resp], req Req) (resp Resp, err error) {
	var in, out any = req, &resp
	if _, none := in.(Nothing); none {
		in = nil
	}
	if _, none := any(resp).(Nothing); none {
		out = nil
	}
	err = c.Call(ctx, to, m.name, in, out)
	var remote *endpoint.RemoteError
	if errors.As(err, &remote) {
		if known := fail.FromRemote(remote.Code, remote.Message); known != nil {
			return resp, known
		}
		if remote.Code == endpoint.CodeError {
			return resp, answered{remote}
		}
	}
	return resp, err
}

// answered is the error of a method that ran at another node: its text alone, as that node says it to people.
type answered struct{ remote *endpoint.RemoteError }

func (a answered) Error() string { return a.remote.Message }

func (a answered) Unwrap() error { return a.remote }

// Plainly returns the error of a call in words for an administrator.
func Plainly(err error) error {
	if IsSilence(err) {
		return errors.New("it does not answer")
	}
	return err
}

// IsSilence reports whether the error of a call means that the other node does not answer.
func IsSilence(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, syscall.ECONNREFUSED)
}

// IsUnknown reports whether the error of a call means that the other node's version does not know the method.
func IsUnknown(err error) bool {
	var remote *endpoint.RemoteError
	return errors.As(err, &remote) && remote.Code == endpoint.CodeUnknownMethod
}

// IsCut reports whether the error of a call means that the connection ended before the answer, as it does when the
// other agent ends.
func IsCut(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, net.ErrClosed)
}

// Registrar offers a method to the other nodes under its name; *endpoint.Control is one.
type Registrar interface {
	Handle(method string, f func(ctx context.Context, peer certs.Identity, body json.RawMessage) (any, error))
}

// Handle offers a method to the other nodes. A caller that may not call it, and a request that cannot be decoded, are
// refused before f is called.
func Handle[Req, Resp any](r Registrar, m Method[Req, Resp], f func(ctx context.Context, peer certs.Identity, req Req) (Resp, error)) {
	r.Handle(m.name, func(ctx context.Context, peer certs.Identity, body json.RawMessage) (any, error) {
		if err := m.from.refuse(peer); err != nil {
			return nil, err
		}
		var req Req
		if _, none := any(req).(Nothing); !none {
			if err := json.Unmarshal(body, &req); err != nil {
				return nil, err
			}
		}
		resp, err := f(ctx, peer, req)
		if _, none := any(resp).(Nothing); none || err != nil {
			return nil, err
		}
		return resp, nil
	})
}

// Gate is a Registrar whose methods wait until the node is complete: the endpoint answers before that.
type Gate struct {
	To    Registrar
	Ready <-chan struct{} // closed once every part of the node exists
}

// Handle offers a method that waits for Ready, until the caller's deadline.
func (g Gate) Handle(method string, f func(ctx context.Context, peer certs.Identity, body json.RawMessage) (any, error)) {
	g.To.Handle(method, func(ctx context.Context, peer certs.Identity, body json.RawMessage) (any, error) {
		select {
		case <-g.Ready:
			return f(ctx, peer, body)
		case <-ctx.Done():
			return nil, errors.New("this node is still starting")
		}
	})
}

// InOwnName refuses a request that one member makes in the name of another.
func InOwnName(peer certs.Identity, named ag.ReplicaID) error {
	if named != peer.ID {
		return fmt.Errorf("%s asks in the name of %s", peer.ID, named)
	}
	return nil
}
