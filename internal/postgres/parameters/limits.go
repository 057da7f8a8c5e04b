package parameters

import (
	"context"
	"encoding/json"
	"errors"
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

// sessions are the settings by which a server has room for clients: it does not start unless the first is more than the
// others together, of which the last is there from PostgreSQL 16 on. From 12 on max_wal_senders does not count.
var sessions = []string{"max_connections", "superuser_reserved_connections", "reserved_connections"}

// sessionsQuery returns each of sessions as the server's next start would read it, with and without the group's value.
var sessionsQuery = func() string {
	last := func(files string) string {
		return "coalesce((SELECT f.setting FROM pg_catalog.pg_file_settings f WHERE lower(f.name) = s.name" + files + " ORDER BY f.seqno DESC LIMIT 1), s.boot_val)"
	}
	var names []string
	for _, name := range sessions {
		names = append(names, settings.QuoteLiteral(name))
	}
	return "SELECT coalesce(json_agg(json_build_array(s.name, " + last("") + ", " + last(" AND f.sourcefile NOT LIKE '%/postgresql.auto.conf'") + ")), '[]')::text FROM pg_catalog.pg_settings s WHERE s.name IN (" + strings.Join(names, ", ") + ")"
}()

// CheckRoom returns an error if a change of settings would leave the server no room for sessions, or too little. A
// setting without a value is taken back. A server that does not answer is not asked again: a value must be mendable
// while it does not start.
func (s Server) CheckRoom(ctx context.Context, change map[string]*string) error {
	if !slices.ContainsFunc(sessions, func(name string) bool { _, is := change[name]; return is }) {
		return nil
	}
	text, err := s.Text(ctx, sessionsQuery)
	if err != nil {
		return nil //nolint:nilerr // see above
	}
	var rows [][3]string
	if err := json.Unmarshal([]byte(text), &rows); err != nil {
		return fmt.Errorf("the room for sessions of the server: %w", err)
	}
	now, next := map[string]int{}, map[string]int{}
	for _, r := range rows {
		name, will := r[0], r[1]
		if value, changes := change[name]; changes && value == nil {
			will = r[2]
		} else if changes {
			if will, err = s.judged(ctx, name, *value); err != nil {
				return err
			}
		}
		is, err1 := strconv.Atoi(strings.TrimSpace(r[1]))
		n, err2 := strconv.Atoi(strings.TrimSpace(will))
		if err1 != nil || err2 != nil {
			return nil //nolint:nilerr // a file has it in another way: PostgreSQL has judged it
		}
		now[name], next[name] = is, n
	}
	return roomFor(now, next)
}

// roomFor returns an error if a server with the values of next has too little room for sessions, and not more than with
// those of now.
func roomFor(now, next map[string]int) error {
	left := func(of map[string]int) int { return of[sessions[0]] - of[sessions[1]] - of[sessions[2]] }
	room, most := left(next), next[sessions[0]]
	if room >= agentSessions || room > max(left(now), 0) {
		return nil
	}
	sum := fmt.Sprintf("%s = %d", sessions[1], next[sessions[1]])
	if n, has := next[sessions[2]]; has {
		sum += fmt.Sprintf(" and %s = %d", sessions[2], n)
	}
	why := fmt.Sprintf("max_connections = %d leaves too little room: %d are reserved by %s, which leaves %d, and the agent has sessions of its own", most, most-room, sum, room)
	if room <= 0 {
		why = fmt.Sprintf("PostgreSQL would not start: max_connections = %d must be more than the %d that are reserved by %s", most, most-room, sum)
	}
	hint := fmt.Sprintf("choose max_connections = %d or more", most-room+agentSessions)
	if most > agentSessions {
		hint += fmt.Sprintf(", or reserve %d or less", most-agentSessions)
	}
	return fail.Error{Kind: fail.Refused, Hint: hint, Err: errors.New(why)}
}
