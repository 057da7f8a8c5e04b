package rpctest

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/coteriedb/coterie/internal/ag"
)

// ErrNoAnswer is the error of a method that Calls has no function for.
var ErrNoAnswer = errors.New("the node does not answer in this test")

// Calls answers the methods of other nodes, each by a function of the node and its request. An answer travels as JSON.
// It implements rpc.Caller.
type Calls map[string]func(ctx context.Context, to ag.ReplicaID, in any) (any, error)

// Call implements rpc.Caller.
func (c Calls) Call(ctx context.Context, to ag.Replica, method string, in, out any) error {
	f, ok := c[method]
	if !ok {
		return ErrNoAnswer
	}
	answer, err := f(ctx, to.ID, in)
	if err != nil || out == nil {
		return err
	}
	b, err := json.Marshal(answer)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, out)
}
