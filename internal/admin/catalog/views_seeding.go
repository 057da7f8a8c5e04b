package catalog

import (
	"github.com/google/uuid"

	"github.com/coteriedb/coterie/internal/ag"
)

// perSeeding makes a row of each copy that a replica remembers, where row makes one of it.
func (f Facts) perSeeding(row func(r ag.Replica, s Seeding, newest bool) []any) [][]any {
	var out [][]any
	for _, r := range f.members() {
		all := f.Nodes[r.ID].Seedings
		for i, s := range all {
			if cells := row(r, s, i == len(all)-1); cells != nil {
				out = append(out, cells)
			}
		}
	}
	return out
}

// asSource tells on which side of a copy to r the node that is asked stands: who is neither looks from the source.
func (f Facts) asSource(r ag.Replica) bool { return f.Self != r.ID }

// remote is the other side.
func (f Facts) remote(r ag.Replica, s Seeding) ag.ReplicaID {
	if f.asSource(r) {
		return r.ID
	}
	return s.Source
}

func (f Facts) automaticSeeding(r ag.Replica, s Seeding, _ bool) []any {
	var other any
	if id := f.remote(r, s); id != "" {
		other = ReplicaUUID(f.Group.ID, id)
	}
	return []any{
		timeText(s.Started), timeText(s.Ended), string(f.Group.ID), nil, other, s.ID, bit(f.asSource(r)), s.State,
		bit(s.Attempts > 0), orNull(int64(s.Code)), orNull(s.Failure), orNull(int64(s.Errno)), int64(s.Attempts),
	}
}

func (f Facts) physicalSeeding(r ag.Replica, s Seeding, newest bool) []any {
	if !newest {
		return nil
	}
	local, far, role := s.ID, s.sourceID(f.Group.ID), "Destination"
	if f.asSource(r) {
		local, far, role = far, local, "Source"
	}
	var left any
	if s.Left > 0 && !s.ended() {
		left = timeText(f.Now.Add(s.Left))
	}
	rate := int64(s.Rate)
	if s.ended() {
		rate = 0
		if took := s.Ended.Sub(s.Started).Seconds(); took > 0 { // on the whole
			rate = int64(float64(s.Done) / took)
		}
	}
	state := s.State
	if s.Text != "" && !s.ended() {
		state += ": " + s.Text
	}
	return []any{
		local, far, nil, "the whole instance", orNull(string(f.remote(r, s))), role, state, rate, s.Done, s.Total, timeText(s.Started), timeText(s.Ended), left,
		s.Disk.Milliseconds(), s.Net.Milliseconds(), orNull(int64(s.Code)), orNull(s.Failure), timeText(s.FailedAt), bit(s.Packed),
	}
}

// sourceID is the source's side of the copy: a backup window, of which an attempt may need more than one.
func (s Seeding) sourceID(g ag.GroupID) string {
	return uuid.NewSHA1(namespace, []byte("coterie seeding from "+string(s.Source)+" "+string(g)+" "+s.ID)).String()
}
