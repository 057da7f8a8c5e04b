package backup

import (
	"context"
	"fmt"

	"github.com/coteriedb/coterie/internal/lib/fail"
)

// Marks are the marks of groups at a place of a repository.
type Marks interface {
	// Owner returns the id of the group whose mark the place has; "" if it has none.
	Owner(ctx context.Context) (string, error)
	// Claim puts the mark of the own group there.
	Claim(ctx context.Context) error
	// Announce says there that the own group is about to claim it, and returns the ids of other groups that say so.
	Announce(ctx context.Context) (others []string, err error)
	// Withdraw takes back what Announce has said.
	Withdraw(ctx context.Context) error
}

// Take puts the mark of a group to a place whose mark is that of the group before, or none. Of several groups that do
// so at the same time at most one succeeds: each announces itself before it looks for the others, and withdraws after
// its mark is there. So of any two the one that announces itself later sees the announcement of the other, or its mark.
func Take(ctx context.Context, m Marks, group, before string) (err error) {
	others, err := m.Announce(ctx)
	defer func() {
		if bad := m.Withdraw(context.WithoutCancel(ctx)); err == nil {
			err = bad
		}
	}()
	if err != nil {
		return err
	}
	if len(others) > 0 {
		return fail.Refusedf("the group %s takes this place of the repository at the same time, or was interrupted in that within the last hour: two groups must never write to one archive; run it again later, or name another place with --stanza", others[0])
	}
	switch now, err := m.Owner(ctx); {
	case err != nil:
		return err
	case now != before && now != group:
		return fail.Refusedf("the group %s has taken this place of the repository meanwhile: name another one with --stanza", now)
	}
	if err := m.Claim(ctx); err != nil {
		return fmt.Errorf("it takes no mark of its owner: %w", err)
	}
	switch now, err := m.Owner(ctx); {
	case err != nil:
		return err
	case now != group:
		return fail.Refusedf("this place of the repository has the mark of the group %q, which was put there at the same time: name another one with --stanza", now)
	}
	return nil
}
