package experiment

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/coteriedb/coterie/internal/measure/tpcc"
)

// conditionsHold checks the twelve conditions on every reachable server. It returns in words on which servers they
// held.
func (b *Bed) conditionsHold(ctx context.Context, write string) (held string, err error) {
	var n, of int
	if b.Group == nil {
		seen := map[string]bool{}
		err = errors.Join(conditionsAt(ctx, "", write, seen), conditionsAt(ctx, "", b.B, seen))
		n, of = len(seen), len(seen)
	} else {
		n, of, err = b.conditionsOfGroup(ctx, write)
	}
	switch {
	case err != nil:
		return "", err
	case n < of:
		return fmt.Sprintf("All twelve consistency conditions held afterwards on %d of %d replicas: the listeners send no reader to the others.", n, of), nil
	}
	return fmt.Sprintf("All twelve consistency conditions held afterwards on every server (%d).", n), nil
}

// conditionsOfGroup checks the servers of all members that can be reached. It returns their number and that of all
// members.
func (b *Bed) conditionsOfGroup(ctx context.Context, write string) (n, of int, err error) {
	members, err := b.Group.Members(ctx)
	if err != nil {
		return 0, 0, err
	}
	for _, m := range members {
		if dsn := b.Group.Own(m); dsn != "" {
			if err := conditionsAt(ctx, m, dsn, map[string]bool{}); err != nil {
				return n, len(members), err
			}
			n++
		}
	}
	if n == 0 {
		n, err = b.conditionsByListener(ctx, write, len(members))
	}
	return n, len(members), err
}

// conditionsByListener checks the primary, and the secondaries to which the listeners send readers. The listeners
// choose in turn, so it connects more often than the group has members and checks each server once. It returns the
// number of servers checked.
func (b *Bed) conditionsByListener(ctx context.Context, write string, members int) (int, error) {
	seen := map[string]bool{}
	if err := conditionsAt(ctx, "the primary", write, seen); err != nil {
		return 0, err
	}
	for range 3 * members {
		if len(seen) == members {
			break
		}
		if err := conditionsAt(ctx, "", b.Group.ReadOnly(), seen); err != nil {
			return 0, err
		}
	}
	return len(seen), nil
}

// conditionsAt checks the server behind a connection string unless seen has it, and adds it to seen. Without a name it
// uses the name that the server reports.
func conditionsAt(ctx context.Context, name, dsn string, seen map[string]bool) error {
	server, found, err := tpcc.CheckUnseen(ctx, dsn, func(server string) bool { return seen[server] })
	name = cmp.Or(name, server, "a server")
	if err != nil {
		return fmt.Errorf("check %s: %w", name, err)
	}
	seen[server] = true
	for _, c := range found {
		if c.Violations > 0 {
			return fmt.Errorf("%s: consistency condition %d (%s) is violated %d times, such as %s", name, c.Number, c.Name, c.Violations, c.Sample)
		}
	}
	return nil
}
