package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"
)

// liar is a member of the quorum that answers each transaction as a thief likes.
type liar struct {
	pb.UnimplementedKVServer
	answer atomic.Pointer[pb.TxnResponse]
}

func (l *liar) Txn(context.Context, *pb.TxnRequest) (*pb.TxnResponse, error) {
	return l.answer.Load(), nil
}

// newLiar returns a store that asks a liar only.
func newLiar(t *testing.T) (*liar, *Store) {
	t.Helper()
	at, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, err)
	l, server := &liar{}, grpc.NewServer()
	pb.RegisterKVServer(server, l)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(at) })
	t.Cleanup(func() { server.Stop(); serving.Wait() })
	return l, openTest(t, StoreConfig{
		Group: testGroup, Endpoints: []string{"w"}, Attempt: "a", CallTimeout: 200 * time.Millisecond, Logger: testLogger(t),
		Dial: func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", at.Addr().String())
		},
	})
}

// TestAnswersThatDoNotFit holds that an answer which does not fit its transaction is an error: it ends no agent, and
// does not say that there is no record.
func TestAnswersThatDoNotFit(t *testing.T) {
	t.Parallel()
	l, s := newLiar(t)
	found := func(key string, v any) *pb.ResponseOp {
		b, err := json.Marshal(v)
		ok(t, err)
		kvs := []*mvccpb.KeyValue{{Key: []byte(s.keys.prefix + key), Value: b, CreateRevision: 1, ModRevision: 1, Version: 1}}
		return &pb.ResponseOp{Response: &pb.ResponseOp_ResponseRange{ResponseRange: &pb.RangeResponse{Kvs: kvs}}}
	}
	written := &pb.ResponseOp{Response: &pb.ResponseOp_ResponsePut{ResponsePut: &pb.PutResponse{}}}
	record := []*pb.ResponseOp{
		found("epoch", firstEpoch), found("state", firstState), found("lead", struct{}{}), found("config", firstGroup(testGroup)),
	}
	ctx := testContext(t)
	for what, answer := range map[string]*pb.TxnResponse{
		"nothing was read":         {Succeeded: true},
		"nothing was found":        {},
		"a part of the record":     {Succeeded: true, Responses: record},
		"results of another kind":  {Succeeded: true, Responses: slices.Repeat([]*pb.ResponseOp{written}, 9)},
		"results of no kind":       {Succeeded: true, Responses: slices.Repeat([]*pb.ResponseOp{{}}, 9)},
		"many results, not wanted": {Responses: append(record, record...)},
	} {
		l.answer.Store(answer)
		if x, err := s.Read(ctx); !errors.Is(err, ErrNoQuorum) {
			t.Errorf("%s: the record is %+v, %v", what, x, err)
		}
		if err := s.PutToken(ctx, Token{ID: "t", Expires: time.Now().Add(time.Hour)}, nil); err == nil {
			t.Errorf("%s: a token was stored", what)
		}
		if _, err := s.PutOp(ctx, -1, -1, json.RawMessage(`{}`)); err == nil {
			t.Errorf("%s: a request was written", what)
		}
	}
}
