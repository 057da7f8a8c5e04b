package pgserver

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lib/durable"
	"github.com/coteriedb/coterie/internal/postgres/parameters"
)

// parametersEvery is how often the settings of the server are compared with those of the group, if nothing changes.
const parametersEvery = 5 * time.Second

// pendingEvery is how often the server is asked which settings wait for a restart.
const pendingEvery = 30 * time.Second

// ParametersConfig is what Parameters needs. No field may be zero.
type ParametersConfig struct {
	Self   ag.ReplicaID
	Group  func() *ag.Group // as this node last saw it; nil before that
	Server parameters.Server
	Layout config.Layout
	Log    *slog.Logger
}

// Parameters keeps the settings of PostgreSQL of this node's server those that the group has for it.
type Parameters struct {
	ParametersConfig
	changed chan struct{}
	moved   atomic.Pointer[parameters.Server] // the server that has taken the place of Server

	said    string       // the last error that was logged; of Run
	pending atomic.Int64 // settings that wait for a restart, and 1; 0: not known

	mu        sync.Mutex // guards the files and the field below
	unvouched []string   // the settings that were last left as they are
}

// NewParameters returns the settings of a server.
func NewParameters(c ParametersConfig) *Parameters {
	return &Parameters{ParametersConfig: c, changed: make(chan struct{}, 1)}
}

// Replace has the settings of another server kept, which has taken the place of the one before.
func (p *Parameters) Replace(s parameters.Server) { p.moved.Store(&s) }

func (p *Parameters) server() parameters.Server {
	if s := p.moved.Load(); s != nil {
		return *s
	}
	return p.Server
}

// GroupChanged has the settings compared at once. It does not wait.
func (p *Parameters) GroupChanged() {
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// Run puts the group's settings in force, at each change of the configuration and at intervals, until ctx is done.
func (p *Parameters) Run(ctx context.Context) error {
	var counted time.Time
	for {
		p.apply(ctx)
		if time.Since(counted) >= pendingEvery && p.countPending(ctx) {
			counted = time.Now()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-p.changed:
		case <-time.After(parametersEvery):
		}
	}
}

// countPending asks the server how many settings wait for its restart, and reports whether it said.
func (p *Parameters) countPending(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, parametersEvery)
	defer cancel()
	n, err := p.server().PendingRestarts(ctx)
	if err != nil {
		p.pending.Store(0)
		return false
	}
	p.pending.Store(int64(n) + 1)
	return true
}

// PendingRestarts returns how many settings wait for a restart of the server, as it was up to half a minute ago; ok is
// false if the server did not say.
func (p *Parameters) PendingRestarts() (n int, ok bool) {
	k := p.pending.Load()
	return int(k - 1), k > 0
}

// ForStart returns what has to be written to postgresql.auto.conf of the stopped server. The caller writes it before
// the server starts.
func (p *Parameters) ForStart() (map[string]*string, error) {
	w, err := p.wanted()
	if err != nil || len(w.ours) == 0 {
		return nil, err
	}
	return p.server().Missing(w.values, w.ours)
}

func (p *Parameters) apply(ctx context.Context) {
	w, err := p.wanted()
	if err == nil && len(w.ours) == 0 {
		return
	}
	var changed []string
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
		defer cancel()
		changed, err = p.server().Apply(ctx, w.values, w.ours)
	}
	if len(changed) > 0 {
		p.Log.Info("settings of PostgreSQL put in force", "settings", changed)
	}
	if err == nil {
		err = p.forget(w.names)
	}
	if err == nil {
		p.said = ""
		return
	}
	if text := err.Error(); text != p.said && ctx.Err() == nil {
		p.said = text
		p.Log.Warn("settings of PostgreSQL are not in force", "err", err)
	}
}

// wish is what the configuration of one moment says of the settings of this node's server.
type wish struct {
	values map[string]string // that the server is to have
	ours   []string          // the names that the group has or had
	names  []string          // the names that it has
}

// wanted returns the settings that the server is to have. The names that the group has or had are on the disk before
// the first of them is written for the server: one that the group gives up is then found.
func (p *Parameters) wanted() (w wish, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	g := p.Group()
	if g == nil {
		return w, nil
	}
	before, err := p.remembered()
	if err != nil {
		return w, err
	}
	w.names = g.ParameterNames()
	ours := slices.Concat(w.names, before)
	slices.Sort(ours)
	ours = slices.Compact(ours)
	if !slices.Equal(ours, before) {
		if err := p.remember(ours); err != nil {
			return wish{}, err
		}
	}
	w.values, w.ours, err = p.vouched(g.ParametersOf(p.Self), ours)
	return w, err
}

// vouched leaves out the settings that can run a program and that no replica has asked this node to judge; the server
// keeps what it has of them. A member of the quorum's store can write the configuration without being a replica, as the
// thief of a witness can. The caller holds mu.
func (p *Parameters) vouched(want map[string]string, ours []string) (map[string]string, []string, error) {
	known, err := p.vouchers()
	if err != nil {
		return nil, nil, err
	}
	var left []string
	for name, value := range want {
		if parameters.RunsPrograms(name) && known[name] != digest(value) {
			left = append(left, name)
		}
	}
	for _, name := range left {
		delete(want, name)
	}
	slices.Sort(left)
	if !slices.Equal(left, p.unvouched) && len(left) > 0 {
		p.Log.Warn("settings of PostgreSQL that can run programs are left as they are: they were not set while this node answered; set them again",
			"settings", left)
	}
	p.unvouched = left
	return want, slices.DeleteFunc(slices.Clone(ours), func(name string) bool { return slices.Contains(left, name) }), nil
}

// Vouch remembers settings that a replica, or an administrator of this node, has asked this node to judge.
func (p *Parameters) Vouch(values map[string]string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	known, err := p.vouchers()
	if err != nil {
		return err
	}
	changed := false
	for name, value := range values {
		if parameters.RunsPrograms(name) && known[name] != digest(value) {
			known[name], changed = digest(value), true
		}
	}
	if !changed {
		return nil
	}
	content, err := json.Marshal(known)
	if err != nil {
		return err
	}
	if err := durable.Replace(p.vouchersFile(), content, 0o600); err != nil {
		return fmt.Errorf("write which settings of PostgreSQL replicas have set: %w", err)
	}
	return nil
}

func (p *Parameters) vouchersFile() string {
	return filepath.Join(p.Layout.State(), "vouched-parameters.json")
}

// vouchers returns the digest of the last value of each setting that can run programs.
func (p *Parameters) vouchers() (map[string]string, error) {
	known := map[string]string{}
	content, err := os.ReadFile(p.vouchersFile())
	if errors.Is(err, fs.ErrNotExist) {
		return known, nil
	}
	if err == nil {
		err = json.Unmarshal(content, &known)
	}
	if err != nil {
		return nil, fmt.Errorf("read which settings of PostgreSQL replicas have set: %w", err)
	}
	return known, nil
}

func digest(value string) string {
	sum := sha256.Sum256([]byte(value))
	return hex.EncodeToString(sum[:])
}

// forget takes all names from the file but those that the group had when its settings were put in force: the settings
// of the others were removed. The configuration of now may have given up more, which the server still has.
func (p *Parameters) forget(names []string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.remember(names)
}

func (p *Parameters) file() string { return filepath.Join(p.Layout.State(), "parameters.json") }

func (p *Parameters) remembered() (names []string, err error) {
	content, err := os.ReadFile(p.file())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal(content, &names)
	}
	if err != nil {
		return nil, fmt.Errorf("read which settings of PostgreSQL are the group's: %w", err)
	}
	return names, nil
}

func (p *Parameters) remember(names []string) error {
	before, err := p.remembered()
	if err == nil && slices.Equal(before, names) {
		return nil
	}
	if len(names) == 0 {
		return durable.Remove(p.file())
	}
	content, err := json.Marshal(names)
	if err != nil {
		return err
	}
	if err := durable.Replace(p.file(), content, 0o600); err != nil {
		return fmt.Errorf("write which settings of PostgreSQL are the group's: %w", err)
	}
	return nil
}
