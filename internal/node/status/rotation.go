package status

import (
	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
)

// RotationOf is the group's rotation as administrators see it; nil: there is none.
func RotationOf(g ag.Group) *api.Rotation {
	if g.Rotation == nil {
		return nil
	}
	return &api.Rotation{Pin: g.Rotation.Pin, Phase: g.Rotation.Phase, Held: g.Rotation.Held(), WaitsFor: g.RotationWaits()}
}
