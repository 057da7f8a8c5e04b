package bed

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
)

// ConsoleGroup is a group known by its listeners' connection string. The console behind them takes statements and has
// views.
type ConsoleGroup struct {
	dsn  string
	name string
}

// OpenGroup connects to the group to read its name.
func OpenGroup(ctx context.Context, dsn string) (*ConsoleGroup, error) {
	g := &ConsoleGroup{dsn: dsn}
	err := g.console(ctx, func(c *pgx.Conn) error {
		return c.QueryRow(ctx, "SELECT name FROM sys.availability_groups", pgx.QueryExecModeSimpleProtocol).Scan(&g.name)
	})
	if err != nil {
		return nil, fmt.Errorf("ask the group's console (database coterie) for the name of the group: %w; for two servers without one, use --target-a and --target-b", err)
	}
	return g, nil
}

// withIntent adds read intent to a connection string of either form.
func withIntent(dsn string) string {
	for _, scheme := range []string{"postgres://", "postgresql://"} {
		if len(dsn) > len(scheme) && dsn[:len(scheme)] == scheme {
			if slices.Contains([]byte(dsn), '?') {
				return dsn + "&coterie.intent=READ_ONLY"
			}
			return dsn + "?coterie.intent=READ_ONLY"
		}
	}
	return dsn + " coterie.intent=READ_ONLY"
}
