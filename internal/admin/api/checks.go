package api

import (
	"net/http"

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
		return r.Role == ag.RoleSecondary && r.Server == ag.ServerRecovery && !r.Suspended && r.Maintenance == nil && r.Quarantine == "" && !s.Availability.Removed
	}
	replica := func(s Status, r Replica) bool { return secondary(s, r) && r.Allow != ag.AllowNo }
	sync := func(s Status, r Replica) bool { return secondary(s, r) && s.Quorum && r.Sync == ag.Synchronized }
	async := func(s Status, r Replica) bool { return secondary(s, r) && r.Sync != ag.Synchronized }
	return map[string]check{
		"/{$}": primary, "/primary": primary, "/master": primary, "/leader": primary, "/read-write": primary,
		"/replica": replica, "/synchronous": sync, "/sync": sync, "/asynchronous": async, "/async": async,
		"/read-only": func(s Status, r Replica) bool { return primary(s, r) || replica(s, r) },
		"/health": func(_ Status, r Replica) bool {
			return r.Mode == ag.ConfigurationOnly || r.Server == ag.ServerRecovery || r.Server == ag.ServerWritable
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

// healthChecks serves the checks, by GET, HEAD and OPTIONS. With ?lag=SIZE (bytes, or 16MB) a secondary that is further
// behind fails, and so does one whose lag is not known, as where no majority answers; the lag of the primary is 0. The
// answer is the node's own part of the status. A lag that is no size is refused with 400.
func (s *Server) healthChecks(mux *http.ServeMux) {
	for path, healthy := range checks {
		answer := func(w http.ResponseWriter, r *http.Request) {
			most := int64(-1)
			if lag := r.URL.Query().Get("lag"); lag != "" {
				n, err := units.ParseBytes(lag, 0)
				if err != nil {
					http.Error(w, "lag: write a number of bytes, or one with kB, MB, GB, KiB, MiB or GiB", http.StatusBadRequest)
					return
				}
				most = n
			}
			st := s.m.Status()
			own := st.self()
			code := http.StatusServiceUnavailable
			near := own.LagBytes != nil && *own.LagBytes <= most && st.Quorum // without a majority it is the lag of then
			if healthy(st, own) && (most < 0 || own.Name == st.Primary || near) {
				code = http.StatusOK
			}
			own.Local = nil
			write(w, code, health{own, st.Availability})
		}
		mux.HandleFunc("GET "+path, answer)
		mux.HandleFunc("OPTIONS "+path, answer)
	}
}
