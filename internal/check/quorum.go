package check

import (
	"context"
	"fmt"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
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
	if found, err := absent(l); found != nil || err != nil {
		return found, err
	}
	cfg, err := config.Load(l.Dir)
	if err != nil {
		return nil, err
	}
	if cfg.Quorum == nil {
		return findEmbedded(ctx, dir)
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

// findEmbedded compares the embedded quorum's own list of members with the configuration, as the agent has read both.
func findEmbedded(ctx context.Context, dir string) ([]Finding, error) {
	f := Finding{Level: OK, What: "the quorum is embedded in the group's nodes"}
	l, err := config.NewLayout(dir)
	if err != nil {
		return nil, err
	}
	st, err := api.NewClient(l.AgentSock(), l.Owner()).Status(ctx)
	switch {
	case err != nil:
		f.What += "; no agent answers here, so its list of members was not compared with the configuration"
	case st.Availability.Removed:
		f = Finding{
			Level: Problem, What: st.Availability.Because, Why: "the quorum of its former group does not answer it any more",
			Run: "coterie check quorum on a member of the group; to bring this machine back: coterie join in an empty directory",
		}
	case st.Availability.QuorumDiffers != "":
		f = Finding{
			Level: Problem, What: st.Availability.QuorumDiffers, Why: "the votes that are counted are not those that exist: a failure that looks survivable may not be",
			Run: "do what the line above says, then coterie check quorum",
		}
	case !st.Quorum:
		f = Finding{Level: Problem, What: "no majority of the quorum answers this node", Why: "nothing can be decided", Run: "start the members that do not answer; coterie recover --help if most are lost for good"}
	default:
		f.What += fmt.Sprintf("; its members are the %d voters of the configuration", st.Voters)
	}
	return []Finding{f}, nil
}

// slowQuorum is longer than a read of a healthy etcd takes, even at another site.
const slowQuorum = 200 * time.Millisecond
