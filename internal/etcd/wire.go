package etcd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// backend reaches the store's keys: etcd over gRPC (wire), or memory in tests. It makes exactly one try at one
// endpoint.
type backend interface {
	txn(ctx context.Context, endpoint string, t txn) (txnResult, error)
	// watch calls connected once, then seen with every change below prefix, until ctx or the stream ends.
	watch(ctx context.Context, endpoint, prefix string, connected func(), seen func(changed []kv)) error
	members(ctx context.Context, endpoint string) ([]MemberInfo, error)
	addLearner(ctx context.Context, endpoint, peerURL string) (uint64, error)
	promote(ctx context.Context, endpoint string, id uint64) error
	remove(ctx context.Context, endpoint string, id uint64) error
	keep(endpoints []string) // forget connections to all others
	close()
}

// txn is a transaction: if every guard holds, Then, else Else.
type txn struct {
	If   []guard
	Then []op
	Else []op
}

// guard compares a key's modification revision; 0 means that the key is absent.
type guard struct {
	key string
	rev int64
}

type opKind int

const (
	opGet opKind = iota
	opRange
	opPut
	opDelete
	opDeleteRange
)

// op is one operation of a transaction. For opRange, key is a prefix. For opDeleteRange, value is the key before which
// the range ends.
type op struct {
	kind  opKind
	key   string
	value []byte
	limit int64
}

func get(key string) op                  { return op{kind: opGet, key: key} }
func list(prefix string, limit int64) op { return op{kind: opRange, key: prefix, limit: limit} }
func put(key string, value []byte) op    { return op{kind: opPut, key: key, value: value} }
func del(key string) op                  { return op{kind: opDelete, key: key} }
func delRange(from, to string) op        { return op{kind: opDeleteRange, key: from, value: []byte(to)} }

// kv is a key as read, with the revision of its last change. A missing key is the zero kv.
type kv struct {
	key   string
	value []byte
	rev   int64
	place
}

// txnResult holds which branch ran, the store's identity and its revision after it, and what each get and range of the
// branch returned, in order (puts and deletes have no entry).
type txnResult struct {
	ok    bool
	rev   int64
	store uint64 // the identity of the store
	from  string // the endpoint that answered a read
	reads [][]kv
}

// one returns the only key of the i-th read, or the zero kv.
func (r txnResult) one(i int) kv {
	if i >= len(r.reads) || len(r.reads[i]) == 0 {
		return kv{}
	}
	return r.reads[i][0]
}

// finalError is an answer that another endpoint would give too; the request changed nothing.
type finalError struct{ err error }

func (e finalError) Error() string { return e.err.Error() }
func (e finalError) Unwrap() error { return e.err }

// notSentError is a failure before the request left this process; it changed nothing, another endpoint may do better.
type notSentError struct{ err error }

func (e notSentError) Error() string { return e.err.Error() }
func (e notSentError) Unwrap() error { return e.err }

// Errors of membership changes that the callers here turn into something else.
var (
	errLearnerNotReady = errors.New("learner not in sync")
	errNotLearner      = errors.New("not a learner")
	errMemberNotFound  = errors.New("no such member")
	errPeerURLExists   = errors.New("peer URL already in use")
	errUnhealthy       = errors.New("the quorum's members have not all been connected for 5 seconds")
)

const (
	maxAnswerBytes = 8 << 20
	maxDialTime    = 2 * time.Second

	// windowBytes is the flow-control window on both sides. One of fixed size keeps gRPC from measuring the bandwidth,
	// for which it answers every event of a watch with a ping: two more packets, each of which wakes both processes.
	windowBytes = 1 << 20
)

// wire is the backend that speaks gRPC to etcd. It keeps one connection per endpoint, and leaves the choice of endpoint
// to the Store: a gRPC balancer does not know the preferred endpoint, and waits for one that drops packets.
type wire struct {
	dial func(ctx context.Context, endpoint string) (net.Conn, error)

	mu     sync.Mutex
	conns  map[string]*grpc.ClientConn
	closed bool
}

func newWire(dial func(ctx context.Context, endpoint string) (net.Conn, error)) *wire {
	return &wire{dial: dial, conns: map[string]*grpc.ClientConn{}}
}

func (w *wire) conn(endpoint string) (*grpc.ClientConn, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil, finalError{ErrClosed}
	}
	if c := w.conns[endpoint]; c != nil {
		return c, nil
	}
	c, err := grpc.NewClient("passthrough:///quorum",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return w.dial(ctx, endpoint) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()), // the dialer's connection is private or TLS already
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 500 * time.Millisecond},
			MinConnectTimeout: maxDialTime,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 3 * time.Second}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswerBytes)),
		grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(), grpc.WithNoProxy(),
		grpc.WithIdleTimeout(0), // an idle connection would have to reconnect in the middle of a takeover
		grpc.WithReadBufferSize(8<<10), grpc.WithWriteBufferSize(8<<10),
		grpc.WithStaticStreamWindowSize(windowBytes), grpc.WithStaticConnWindowSize(windowBytes),
	)
	if err != nil {
		return nil, finalError{fmt.Errorf("quorum connection to %s: %w", endpoint, err)}
	}
	w.conns[endpoint] = c
	return c, nil
}

func (w *wire) keep(endpoints []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, c := range w.conns {
		if !slices.Contains(endpoints, name) {
			_ = c.Close() // fails only if it was closed before
			delete(w.conns, name)
		}
	}
}

func (w *wire) close() {
	w.keep(nil)
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
}

// call runs one unary request and classifies its error. Require-leader makes an isolated member answer at once instead
// of holding the request until its deadline.
func (w *wire) call(ctx context.Context, endpoint string, do func(ctx context.Context, c *grpc.ClientConn, opt grpc.CallOption) error) error {
	c, err := w.conn(endpoint)
	if err != nil {
		return err
	}
	var reached peer.Peer
	err = do(requireLeader(ctx), c, grpc.Peer(&reached))
	switch {
	case err == nil:
		return nil
	case reached.Addr == nil:
		return notSentError{fmt.Errorf("quorum member %s: %w", endpoint, err)}
	}
	return fmt.Errorf("quorum member %s: %w", endpoint, sorted(err))
}

func requireLeader(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, rpctypes.MetadataRequireLeaderKey, rpctypes.MetadataHasLeader)
}

// sorted marks errors that every endpoint would return as final.
func sorted(err error) error {
	known := map[string]error{
		status.Convert(rpctypes.ErrGRPCNoSpace).Message():          ErrNoSpace,
		status.Convert(rpctypes.ErrGRPCMemberNotFound).Message():   errMemberNotFound,
		status.Convert(rpctypes.ErrGRPCMemberNotLearner).Message(): errNotLearner,
		status.Convert(rpctypes.ErrGRPCLearnerNotReady).Message():  errLearnerNotReady,
		status.Convert(rpctypes.ErrGRPCMemberExist).Message():      errPeerURLExists,
		status.Convert(rpctypes.ErrGRPCPeerURLExist).Message():     errPeerURLExists,
		status.Convert(rpctypes.ErrGRPCUnhealthy).Message():        errUnhealthy,
	}
	s := status.Convert(err)
	if e, ok := known[s.Message()]; ok {
		return finalError{e}
	}
	switch s.Code() {
	case codes.InvalidArgument, codes.FailedPrecondition, codes.OutOfRange, codes.NotFound, codes.AlreadyExists,
		codes.PermissionDenied, codes.Unauthenticated, codes.Unimplemented:
		return finalError{err}
	default: // may be temporary
		return err
	}
}

func (w *wire) txn(ctx context.Context, endpoint string, t txn) (txnResult, error) {
	req := &pb.TxnRequest{Success: requests(t.Then), Failure: requests(t.Else)}
	for _, g := range t.If {
		req.Compare = append(req.Compare, &pb.Compare{
			Key: []byte(g.key), Target: pb.Compare_MOD, Result: pb.Compare_EQUAL,
			TargetUnion: &pb.Compare_ModRevision{ModRevision: g.rev},
		})
	}
	var resp *pb.TxnResponse
	err := w.call(ctx, endpoint, func(ctx context.Context, c *grpc.ClientConn, opt grpc.CallOption) (err error) {
		resp, err = pb.NewKVClient(c).Txn(ctx, req, opt)
		return err
	})
	if err != nil {
		return txnResult{}, err
	}
	out, err := resultOf(t, resp)
	if err != nil {
		return txnResult{}, fmt.Errorf("quorum member %s: %w", endpoint, err)
	}
	return out, nil
}

// resultOf returns what the answer to a transaction says. One that does not fit the transaction is an error: callers
// rely on a result of each read, and the member may be a stolen witness's.
func resultOf(t txn, resp *pb.TxnResponse) (txnResult, error) {
	out := txnResult{ok: resp.GetSucceeded(), rev: resp.GetHeader().GetRevision(), store: resp.GetHeader().GetClusterId()}
	asked, given := t.Then, resp.GetResponses()
	switch {
	case out.ok:
	case len(t.If) == 0:
		return txnResult{}, errors.New("it did not find true what has no condition")
	default:
		asked = t.Else
	}
	if len(given) != len(asked) {
		return txnResult{}, fmt.Errorf("it answered %d operations with %d results", len(asked), len(given))
	}
	for i, r := range given {
		if k := asked[i].kind; k != opGet && k != opRange {
			continue
		}
		rng := r.GetResponseRange()
		if rng == nil {
			return txnResult{}, fmt.Errorf("it answered no read of %s", asked[i].key)
		}
		kvs := []kv{}
		for _, k := range rng.GetKvs() {
			kvs = append(kvs, kv{key: string(k.GetKey()), value: k.GetValue(), rev: k.GetModRevision(), place: place{out.store, k.GetCreateRevision(), k.GetVersion()}})
		}
		out.reads = append(out.reads, kvs)
	}
	return out, nil
}

func requests(ops []op) []*pb.RequestOp {
	var out []*pb.RequestOp
	for _, o := range ops {
		r := &pb.RequestOp{}
		switch o.kind {
		case opGet:
			r.Request = &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: []byte(o.key)}}
		case opRange:
			r.Request = &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: []byte(o.key), RangeEnd: prefixEnd(o.key), Limit: o.limit}}
		case opPut:
			r.Request = &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte(o.key), Value: o.value}}
		case opDelete:
			r.Request = &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte(o.key)}}
		case opDeleteRange:
			r.Request = &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte(o.key), RangeEnd: o.value}}
		}
		out = append(out, r)
	}
	return out
}

// prefixEnd is the first key after all keys with the prefix. Our prefixes end in '/', so no carry is needed.
func prefixEnd(prefix string) []byte {
	end := []byte(prefix)
	end[len(end)-1]++
	return end
}

func (w *wire) watch(ctx context.Context, endpoint, prefix string, connected func(), seen func(changed []kv)) error {
	c, err := w.conn(endpoint)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(requireLeader(ctx))
	defer cancel()
	stream, err := pb.NewWatchClient(c).Watch(ctx)
	if err != nil {
		return fmt.Errorf("watch at quorum member %s: %w", endpoint, err)
	}
	err = stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{
		Key: []byte(prefix), RangeEnd: prefixEnd(prefix),
	}}})
	for err == nil {
		var resp *pb.WatchResponse
		if resp, err = stream.Recv(); err != nil {
			break
		}
		if resp.GetCreated() {
			connected()
		}
		if resp.GetCanceled() {
			return fmt.Errorf("watch at quorum member %s was ended by it: %s", endpoint, resp.GetCancelReason())
		}
		var changed []kv
		for _, e := range resp.GetEvents() {
			k := kv{key: string(e.GetKv().GetKey()), rev: e.GetKv().GetModRevision()}
			if e.GetType() == mvccpb.PUT {
				k.value = e.GetKv().GetValue()
			}
			changed = append(changed, k)
		}
		if len(changed) > 0 {
			seen(changed)
		}
	}
	return fmt.Errorf("watch at quorum member %s: %w", endpoint, err)
}

func (w *wire) members(ctx context.Context, endpoint string) ([]MemberInfo, error) {
	var out []MemberInfo
	err := w.call(ctx, endpoint, func(ctx context.Context, c *grpc.ClientConn, opt grpc.CallOption) error {
		resp, err := pb.NewClusterClient(c).MemberList(ctx, &pb.MemberListRequest{Linearizable: true}, opt)
		for _, m := range resp.GetMembers() {
			out = append(out, MemberInfo{ID: m.GetID(), Name: m.GetName(), PeerURLs: m.GetPeerURLs(), Learner: m.GetIsLearner()})
		}
		return err
	})
	return out, err
}

func (w *wire) addLearner(ctx context.Context, endpoint, peerURL string) (id uint64, err error) {
	err = w.call(ctx, endpoint, func(ctx context.Context, c *grpc.ClientConn, opt grpc.CallOption) error {
		resp, err := pb.NewClusterClient(c).MemberAdd(ctx, &pb.MemberAddRequest{PeerURLs: []string{peerURL}, IsLearner: true}, opt)
		id = resp.GetMember().GetID()
		return err
	})
	return id, err
}

func (w *wire) promote(ctx context.Context, endpoint string, id uint64) error {
	return w.call(ctx, endpoint, func(ctx context.Context, c *grpc.ClientConn, opt grpc.CallOption) error {
		_, err := pb.NewClusterClient(c).MemberPromote(ctx, &pb.MemberPromoteRequest{ID: id}, opt)
		return err
	})
}

func (w *wire) remove(ctx context.Context, endpoint string, id uint64) error {
	return w.call(ctx, endpoint, func(ctx context.Context, c *grpc.ClientConn, opt grpc.CallOption) error {
		_, err := pb.NewClusterClient(c).MemberRemove(ctx, &pb.MemberRemoveRequest{ID: id}, opt)
		return err
	})
}
