package history

import (
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/samples"
)

// how is the way in which a metric becomes a series.
type how int

const (
	asItIs how = iota
	perSecond
	each // the mean of a summary's observations since the last look
)

// source is a series, with the metric of which it is made.
type source struct {
	series, metric, unit string
	how                  how
	label                string // the value that the metric's label has; "": any, which names the replica
}

// The units of series.
const (
	bytes   = "bytes"
	speed   = "bytes per second"
	seconds = "seconds"
	rate    = "per second"
)

// The series of which others are made.
const (
	redoQueue = "redo_queue_bytes"
	lag       = "lag_bytes"
	recovery  = "recovery_seconds"
	replay    = "coterie_replay_bytes_per_second"
	flushed   = "coterie_wal_flushed_position_bytes"
)

// sources are all series but recovery.
var sources = []source{
	{series: "write_bytes_per_second", metric: flushed, unit: speed, how: perSecond},
	{series: "commit_wait_seconds", metric: "coterie_commit_wait_seconds", unit: seconds, how: each},
	{series: "commit_wait_p99_seconds", metric: "coterie_commit_wait_seconds", unit: seconds, label: "0.99"},
	{series: "commits_waiting", metric: "coterie_commits_waiting"},
	{series: "answers_held_per_second", metric: "coterie_answers_held_total", unit: rate, how: perSecond},
	{series: "sessions", metric: "coterie_sessions_open"},
	{series: "logins_per_second", metric: "coterie_logins_total", unit: rate, how: perSecond},
	{series: lag, metric: "coterie_replica_lag_bytes", unit: bytes},
	{series: "send_queue_bytes", metric: "coterie_replica_send_queue_bytes", unit: bytes},
	{series: redoQueue, metric: "coterie_replica_redo_queue_bytes", unit: bytes},
	{series: "data_loss_seconds", metric: "coterie_replica_lag_seconds", unit: seconds},
}

// perReplica are the metrics whose only label is the replica.
var perReplica = map[string]bool{
	"coterie_replica_lag_bytes": true, "coterie_replica_send_queue_bytes": true, "coterie_replica_redo_queue_bytes": true, "coterie_replica_lag_seconds": true,
}

// about returns the metric and the unit of a series.
func about(series string) (metric, unit string) {
	if series == recovery {
		return "coterie_replica_redo_queue_bytes", seconds
	}
	for _, s := range sources {
		if s.series == series {
			return s.metric, s.unit
		}
	}
	return "", ""
}

// look is what was seen at one moment, by the names of metrics, with the replica or the quantile.
type look map[samples.Key]float64

// values returns the values of the series, from this look and the one before it. The node is the one that looks.
func (now look) values(before look, passed float64, self ag.ReplicaID) map[samples.Key]float64 {
	out := map[samples.Key]float64{}
	for _, s := range sources {
		switch s.how {
		case asItIs:
			for key, v := range now {
				if key.Name == s.metric && (perReplica[s.metric] || key.Of == s.label) && (s.label == "" || v > 0) {
					out[samples.Key{Name: s.series, Of: replicaOf(s, key)}] = v
				}
			}
		case perSecond:
			if d, ok := now.grown(before, s.metric); ok && passed > 0 {
				out[samples.Key{Name: s.series}] = d / passed
			}
		case each:
			sum, ok := now.grown(before, s.metric+"_sum")
			if n, counted := now.grown(before, s.metric+"_count"); ok && counted && n > 0 {
				out[samples.Key{Name: s.series}] = sum / n
			}
		}
	}
	now.recoveries(before, passed, self, out)
	return out
}

func replicaOf(s source, key samples.Key) string {
	if perReplica[s.metric] {
		return key.Of
	}
	return ""
}

// grown returns by how much a metric has grown. One that went back has begun anew, and by how much is not known.
func (now look) grown(before look, metric string) (d float64, ok bool) {
	key := samples.Key{Name: metric}
	a, had := before[key]
	b, has := now[key]
	return b - a, had && has && b >= a
}

// little is how many bytes are replayed in no time that a person would notice; by second, a slow replay.
const little = 1 << 20

// recoveries adds how long each replica would take to replay what it has, at the rate at which it replayed since the
// last look, as coterie.replicas estimates it.
func (now look) recoveries(before look, passed float64, self ag.ReplicaID, out map[samples.Key]float64) {
	for key, queue := range out {
		if key.Name != redoQueue {
			continue
		}
		rate, known := now[samples.Key{Name: replay}]
		if key.Of != string(self) {
			done, was := now.replayed(key.Of)
			earlier, had := before.replayed(key.Of)
			rate, known = (done-earlier)/passed, was && had && passed > 0
		}
		switch {
		case queue == 0, known && queue < little && rate < little:
			out[samples.Key{Name: recovery, Of: key.Of}] = 0
		case known && rate > 0:
			out[samples.Key{Name: recovery, Of: key.Of}] = queue / rate
		}
	}
}

// replayed returns how far a replica has replayed, as the primary knows it.
func (now look) replayed(replica string) (position float64, ok bool) {
	head, has := now[samples.Key{Name: flushed}]
	behind, lags := now[samples.Key{Name: "coterie_replica_lag_bytes", Of: replica}]
	queue, queues := now[samples.Key{Name: "coterie_replica_redo_queue_bytes", Of: replica}]
	return head - behind - queue, has && lags && queues
}
