package api

import (
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/ag/availability"
	"github.com/coteriedb/coterie/internal/lib/units"
)

// check reports whether a node passes a health check, by the group's status and the node's own part of it.
type check func(Status, Replica) bool

// checks are the health checks that load balancers and orchestrators know from Patroni, with their other spellings.
// /primary succeeds only while writes are open. "/" is what HAProxy asks for unless told otherwise.
var checks = func() map[string]check {
	primary := func(s Status, r Replica) bool { return s.Primary == r.Name && s.WriteOpen }
	secondary := func(s Status, r Replica) bool {
		return r.Role == ag.RoleSecondary && r.Server == ag.ServerRecovery && !r.Silent && !r.Suspended && r.Maintenance == nil && r.Quarantine == "" &&
			len(r.Offline) == 0 && !s.Availability.Removed
	}
	replica := func(s Status, r Replica) bool { return secondary(s, r) && r.Allow != ag.AllowNo }
	sync := func(s Status, r Replica) bool { return secondary(s, r) && s.Quorum && r.Sync == ag.Synchronized }
	async := func(s Status, r Replica) bool { return secondary(s, r) && r.Sync != ag.Synchronized }
	never := func(Status, Replica) bool { return false } // a group does not follow another one
	either := func(a, b check) check { return func(s Status, r Replica) bool { return a(s, r) || b(s, r) } }
	return map[string]check{
		"/{$}": primary, "/primary": primary, "/master": primary, "/leader": primary, "/read-write": primary,
		"/standby-leader": never, "/standby_leader": never,
		"/replica": replica, "/synchronous": sync, "/sync": sync, "/quorum": sync, "/asynchronous": async, "/async": async,
		"/read-only": either(primary, replica), "/read-only-sync": either(primary, sync), "/read-only-quorum": either(primary, sync),
		"/health": func(_ Status, r Replica) bool {
			return r.Mode == ag.ConfigurationOnly || !r.Silent && (r.Server == ag.ServerRecovery || r.Server == ag.ServerWritable)
		},
		"/liveness": func(Status, Replica) bool { return true },
		"/readiness": func(s Status, r Replica) bool {
			return !s.Availability.Removed && (r.Role != ag.RoleResolving || r.Mode == ag.ConfigurationOnly)
		},
	}
}()

// health is the body of an answer to a health check.
type health struct {
	Replica
	Group availability.Report `json:"group"` // how the group is, as this node judges it
}

// healthChecks serves the checks, by GET, HEAD and OPTIONS. A secondary has to pass the request's filters, too. The
// answer is the node's own part of the status. A lag that is no size is refused with 400.
func (s *Server) healthChecks(mux *http.ServeMux) {
	for path, healthy := range checks {
		answer := func(w http.ResponseWriter, r *http.Request) {
			passes, err := filters(r.URL.Query())
			if err != nil {
				http.Error(w, "lag: write a number of bytes, or one with kB, MB, GB, KiB, MiB or GiB", http.StatusBadRequest)
				return
			}
			st := s.m.Status()
			own := st.self()
			code := http.StatusServiceUnavailable
			if healthy(st, own) && (own.Name == st.Primary || passes(st, own)) {
				code = http.StatusOK
			}
			own.Local = nil
			write(w, code, health{own, st.Availability})
		}
		mux.HandleFunc("GET "+path, answer)
		mux.HandleFunc("OPTIONS "+path, answer)
	}
}

// filters returns what a request asks of a secondary beside the check, in Patroni's words:
//   - lag=SIZE (bytes, or 16MB): it is known to be no further behind;
//   - replication_state=streaming: it is known to stream; no secondary is in another state that can be asked for;
//   - tag_KEY=VALUE: never, since nodes have no tags.
//
// Nothing is known where no majority answers: it would be the state of then.
func filters(query url.Values) (check, error) {
	most := int64(-1)
	if lag := query.Get("lag"); lag != "" {
		n, err := units.ParseBytes(lag, 0)
		if err != nil {
			return nil, err
		}
		most = n
	}
	state := query.Get("replication_state")
	tagged := slices.ContainsFunc(slices.Collect(maps.Keys(query)), func(key string) bool { return strings.HasPrefix(key, "tag_") })
	return func(st Status, r Replica) bool {
		near := most < 0 || st.Quorum && r.LagBytes != nil && *r.LagBytes <= most
		streams := state == "" || state == "streaming" && st.Quorum && (r.Sync == ag.Synchronized || r.Sync == ag.Synchronizing)
		return near && streams && !tagged
	}, nil
}
