package parameters

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/postgres/programs"
	"github.com/coteriedb/coterie/internal/postgres/settings"
)

// Server is the server whose settings are meant.
type Server struct {
	PGData     string
	ConfigFile string // postgresql.conf
	Install    programs.Install
	Fixed      func(name string) bool // reports whether the agent gives the setting to the server at each start
	Held       func() []string        // the settings that the agent has changed for a while, and will restore

	Exec func(ctx context.Context, sql string) error           // in a session of the superuser
	Text func(ctx context.Context, sql string) (string, error) // the only value of the only row
}

// Apply writes the settings that the server is to have, takes back those of ours that it is not to have, and reloads
// its configuration if that changed anything. ours has every name that the group has or had for any replica. It returns
// the names that it changed. One setting that the server refuses does not keep the others from being written; the
// error names each.
func (s Server) Apply(ctx context.Context, want map[string]string, ours []string) (changed []string, err error) {
	missing, err := s.Missing(want, ours)
	if err != nil {
		return nil, err
	}
	var refused []error
	for _, name := range slices.Sorted(maps.Keys(missing)) {
		sql := "ALTER SYSTEM RESET " + pgx.Identifier(strings.Split(name, ".")).Sanitize()
		if v := missing[name]; v != nil {
			sql = "ALTER SYSTEM SET " + pgx.Identifier(strings.Split(name, ".")).Sanitize() + " = " + literals(name, *v)
		}
		if err := s.Exec(ctx, sql); err != nil {
			refused = append(refused, fmt.Errorf("%s: %w", name, err))
			continue
		}
		changed = append(changed, name)
	}
	if len(changed) > 0 {
		if err := s.Exec(ctx, "SELECT pg_reload_conf()"); err != nil {
			refused = append(refused, fmt.Errorf("reload the configuration: %w", err))
		}
	}
	return changed, errors.Join(refused...)
}

// Missing returns what has to be written to postgresql.auto.conf: a value, or nil where a setting is to be removed. It
// leaves those alone that the agent has changed for a while. settings.EditAutoConf takes the result where the server is
// stopped.
func (s Server) Missing(want map[string]string, ours []string) (map[string]*string, error) {
	content, err := os.ReadFile(filepath.Join(s.PGData, "postgresql.auto.conf"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("read the settings that are in force: %w", err)
	}
	held := s.Held()
	out := map[string]*string{}
	for _, name := range ours {
		_, there := settings.AutoConfValue(string(content), name)
		if _, wanted := want[name]; !wanted && there && !slices.Contains(held, name) {
			out[name] = nil
		}
	}
	for name, value := range want {
		has, there := settings.AutoConfValue(string(content), name)
		if slices.Contains(held, name) || there && same(name, has, value) {
			continue
		}
		out[name] = &value
	}
	return out, nil
}

// lists are the settings whose value is a list of names. ALTER SYSTEM takes each element as a literal of its own, and
// would make one name of a list that is given as one.
var lists = []string{"local_preload_libraries", "search_path", "session_preload_libraries", "shared_preload_libraries", "temp_tablespaces", "unix_socket_directories"}

// literals returns the value of a setting as ALTER SYSTEM takes it.
func literals(name, value string) string {
	if !slices.Contains(lists, name) {
		return settings.QuoteLiteral(value)
	}
	var out []string
	for _, e := range elements(value) {
		out = append(out, settings.QuoteLiteral(e))
	}
	if len(out) == 0 {
		return "''"
	}
	return strings.Join(out, ", ")
}

// elements returns the elements of a list, without the double quotes that ALTER SYSTEM puts around them. A comma within
// quotes separates nothing.
func elements(value string) (out []string) {
	var b strings.Builder
	quoted := false
	cut := func() {
		if e := strings.TrimSpace(b.String()); e != "" {
			out = append(out, e)
		}
		b.Reset()
	}
	for i := 0; i < len(value); i++ {
		switch c := value[i]; {
		case c == '"' && quoted && i+1 < len(value) && value[i+1] == '"':
			b.WriteByte('"')
			i++
		case c == '"':
			quoted = !quoted
		case c == ',' && !quoted:
			cut()
		default:
			b.WriteByte(c)
		}
	}
	cut()
	return out
}

// same reports whether a value in postgresql.auto.conf is the one that is wanted.
func same(name, has, want string) bool {
	return has == want || slices.Contains(lists, name) && slices.Equal(elements(has), elements(want))
}
