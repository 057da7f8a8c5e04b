package parameters

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/postgres/settings"
)

// Limits are the settings of which a standby must have as much as its primary, which pg_control records. Otherwise the
// standby pauses its replay, or does not start.
var Limits = []string{"max_connections", "max_locks_per_transaction", "max_prepared_transactions", "max_wal_senders", "max_worker_processes"}

// Least is what a server has at least: room for the members' slots and streams, seeding windows and backup tools.
var Least = map[string]int{"max_wal_senders": 20, "max_replication_slots": 20}

// Limit is the value of one of Limits, or of max_replication_slots, on a running server.
type Limit struct {
	Name   string
	Has    int
	Wanted int // by its configuration, as the server's next start would read it
}

// Waits reports whether the server has another value than is wanted: the next start may change it.
func (l Limit) Waits() bool { return l.Has != l.Wanted }

// LimitsQuery returns one value, which ParseLimits reads. Only superusers may read the files. The agent gives these
// settings on the command line where it raises them, and PostgreSQL says of no such setting that it waits for a
// restart.
var LimitsQuery = func() string {
	all := append(slices.Collect(maps.Keys(Least)), Limits...)
	slices.Sort(all)
	var names []string
	for _, name := range slices.Compact(all) {
		names = append(names, settings.QuoteLiteral(name))
	}
	return `SELECT coalesce(json_agg(json_build_array(s.name, s.setting, coalesce(
	(SELECT f.setting FROM pg_catalog.pg_file_settings f WHERE lower(f.name) = s.name ORDER BY f.seqno DESC LIMIT 1), s.boot_val))), '[]')::text
FROM pg_catalog.pg_settings s WHERE s.name IN (` + strings.Join(names, ", ") + ")"
}()

// ParseLimits reads the answer to LimitsQuery. A value that is no plain number is left out.
func ParseLimits(answer string) (out []Limit, err error) {
	var rows [][3]string
	if err := json.Unmarshal([]byte(answer), &rows); err != nil {
		return nil, fmt.Errorf("the limits of the server: %w", err)
	}
	for _, r := range rows {
		has, err := strconv.Atoi(r[1])
		wanted, bad := strconv.Atoi(strings.TrimSpace(r[2]))
		if err == nil && bad == nil {
			out = append(out, Limit{r[0], has, max(wanted, Least[r[0]])})
		}
	}
	return out, nil
}

// limits asks the server for its limits.
func (s Server) limits(ctx context.Context) ([]Limit, error) {
	text, err := s.Text(ctx, LimitsQuery)
	if err != nil {
		return nil, err
	}
	return ParseLimits(text)
}

// agentSessions is how many sessions beside the reserved ones a server must have room for: the agent's own, and some
// for clients.
const agentSessions = 20

// roomForSessions returns an error if a max_connections would leave no room beside the reserved sessions, with which a
// server does not start, or too little. A server that does not answer is not asked again: a value must be mendable
// while it does not start.
func (s Server) roomForSessions(ctx context.Context, value string) error {
	text, err := s.Text(ctx, "SELECT sum(setting::int)::text FROM pg_settings WHERE name IN ('superuser_reserved_connections', 'reserved_connections')")
	if err != nil {
		return nil //nolint:nilerr // see above
	}
	reserved, err := strconv.Atoi(text)
	want, bad := strconv.Atoi(value)
	if err != nil || bad != nil || want >= reserved+agentSessions {
		return nil //nolint:nilerr // PostgreSQL has judged it
	}
	return fail.Error{
		Kind: fail.Refused, Hint: fmt.Sprintf("choose %d or more", reserved+agentSessions),
		Err: fmt.Errorf("max_connections = %d leaves too little room: %d are reserved, and the agent has sessions of its own", want, reserved),
	}
}
