package provision

import (
	"context"
	"errors"
	"fmt"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/node/quorum"
)

// ReachQuorum checks that an external quorum answers, before anything is made. It returns the number of its voting
// members; 0 if the quorum is embedded. It is refused if a founder finds a record of its group there, or a joiner finds
// none.
func ReachQuorum(ctx context.Context, cfg config.Config, group ag.GroupID, founds bool) (members int, err error) {
	if cfg.Quorum == nil {
		return 0, nil
	}
	var tried []error
	for _, r := range quorum.External(cfg).Probe(ctx, group) {
		switch {
		case r.Err != nil:
			tried = append(tried, fmt.Errorf("%s: %w", r.Endpoint, r.Err))
		case founds && r.Known:
			return 0, fail.Refusedf("the etcd at %s holds a group %s already; nothing was changed", r.Endpoint, group)
		case !founds && !r.Known:
			return 0, fail.Refusedf("the etcd at %s holds no record of this group, so it is another one than the group's; nothing was changed: name the group's with --quorum-endpoints", r.Endpoint)
		default:
			members = r.Members
		}
	}
	if members == 0 {
		return 0, fmt.Errorf("the external quorum does not answer: %w; correct --quorum-endpoints, --quorum-ca, --quorum-cert and --quorum-key, or the etcd", errors.Join(tried...))
	}
	return members, nil
}
