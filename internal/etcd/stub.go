package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"

	"github.com/coteriedb/coterie/internal/ag"
)

var errStub = errors.New("not there yet")

type MemberConfig struct {
	Name, Dir                 string
	PeerSocket, ClientSocket  string
	AdvertisePeer             string
	Initial                   map[string]string
	New                       bool
	Token                     string
	CertFile, KeyFile, CAFile string
	ServerName                string
	MarkFile                  string
	Logger                    *slog.Logger
	HeartbeatMS, ElectionMS   int
}
type Member struct{}

func StartMember(ctx context.Context, c MemberConfig) (*Member, error) { return nil, errStub }
func (m *Member) ID() uint64                                           { return 0 }
func (m *Member) IsLeader() bool                                       { return false }
func (m *Member) LeaderID() uint64                                     { return 0 }
func (m *Member) MoveLeader(ctx context.Context, to uint64) error      { return errStub }
func (m *Member) Ready(ctx context.Context) error                      { return errStub }
func (m *Member) Done() <-chan struct{}                                { return nil }
func (m *Member) Close() error                                         { return errStub }

type Store struct{}

func OpenStore(c StoreConfig) (*Store, error)               { return nil, errStub }
func (s *Store) SetEndpoints(names []string)                {}
func (s *Store) Close() error                               { return errStub }
func (s *Store) Read(ctx context.Context) (Snapshot, error) { return Snapshot{}, errStub }
func (s *Store) Commit(ctx context.Context, guard ag.Revisions, c Change) (ag.Record, error) {
	return ag.Record{}, errStub
}
func (s *Store) Renew(ctx context.Context, epochRev int64, lead ag.Lead) (int64, error) {
	return 0, errStub
}
func (s *Store) Bootstrap(ctx context.Context, g ag.Group, e ag.EpochRecord, st ag.State) error {
	return errStub
}
func (s *Store) UpdateGroup(ctx context.Context, rev int64, g ag.Group) (int64, error) {
	return 0, errStub
}
func (s *Store) PutOp(ctx context.Context, rev, epochRev int64, op json.RawMessage) (int64, error) {
	return 0, errStub
}
func (s *Store) DeleteOp(ctx context.Context, rev, epochRev int64) error { return errStub }
func (s *Store) PutStatus(ctx context.Context, id ag.ReplicaID, status json.RawMessage) error {
	return errStub
}
func (s *Store) DeleteStatus(ctx context.Context, id ag.ReplicaID) error { return errStub }
func (s *Store) PutToken(ctx context.Context, t Token) error             { return errStub }
func (s *Store) Token(ctx context.Context, id string) (Token, error)     { return Token{}, errStub }
func (s *Store) ConsumeToken(ctx context.Context, id string) (Token, error) {
	return Token{}, errStub
}
func (s *Store) BumpIncarnation(ctx context.Context, id ag.ReplicaID) (uint64, error) {
	return 0, errStub
}
func (s *Store) Watch(ctx context.Context) <-chan Event { return nil }
func (s *Store) AddLearner(ctx context.Context, peerURL string) (uint64, map[string]string, error) {
	return 0, nil, errStub
}
func (s *Store) PromoteLearner(ctx context.Context, id uint64) error { return errStub }
func (s *Store) RemoveMember(ctx context.Context, id uint64) error   { return errStub }
func (s *Store) Members(ctx context.Context) ([]MemberInfo, error)   { return nil, errStub }

// Memory is a quorum store in memory with the methods of Store.
type Memory struct{ *Store }

func NewMemory(group ag.GroupID) *Memory { return &Memory{} }
