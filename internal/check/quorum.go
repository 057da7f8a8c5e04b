package check

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/node/quorum"
)

// FindQuorum checks every endpoint of an external etcd from this node.
func FindQuorum(ctx context.Context, dir string) ([]Finding, error) {
	l, err := config.NewLayout(dir)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(l.Dir, config.File)); err != nil {
		return noNode(l.Dir), nil //nolint:nilerr // the absence of a node is the finding
	}
	cfg, err := config.Load(l.Dir)
	if err != nil {
		return nil, err
	}
	if cfg.Quorum == nil {
		return []Finding{{Level: OK, What: "the quorum is embedded in the group's nodes"}}, nil
	}
	var out []Finding
	members := 0
	for _, r := range quorum.External(cfg).Probe(ctx, ag.GroupID(cfg.Group)) {
		f := Finding{Level: OK, What: fmt.Sprintf("%s answers in %v", r.Endpoint, r.Took.Round(100*time.Microsecond))}
		switch {
		case r.Err != nil:
			f = Finding{
				Level: Problem, What: fmt.Sprintf("%s: %v", r.Endpoint, r.Err), Why: "with no endpoint left this node fences itself when its lease ends",
				Run: "look at the etcd there, and at quorum in " + config.File,
			}
		case !r.Known:
			f = Finding{
				Level: Problem, What: r.Endpoint + " holds no record of this group", Why: "it is another etcd than the group's, or one that was made anew",
				Run: "correct quorum.endpoints in " + config.File + "; if the etcd was lost: coterie recover --help",
			}
		case r.Took > slowQuorum:
			f.Level, f.Why = Warning, "every renewal of the lease waits for it"
		}
		members = max(members, r.Members)
		out = append(out, f)
	}
	if members > 0 && members < 3 {
		out = append(out, Finding{
			Level: Warning, What: fmt.Sprintf("the external etcd has %d voting members", members),
			Why: "it survives no failure of its own, and a primary is replaced only after it has been silent for long (no fast takeover)",
			Run: "give the etcd three members",
		})
	}
	return out, nil
}

// slowQuorum is longer than a read of a healthy etcd takes, even at another site.
const slowQuorum = 200 * time.Millisecond
