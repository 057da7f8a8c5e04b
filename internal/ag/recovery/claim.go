package recovery

import (
	"fmt"

	"github.com/coteriedb/coterie/internal/ag"
)

// Claim is what a member that runs says of the quorum that it belongs to, to one that is about to found another.
type Claim struct {
	Epoch  ag.Epoch     `json:"epoch,omitempty"`
	Leader ag.ReplicaID `json:"leader,omitempty"` // of that epoch; "": nothing is known of one
	// Founds means that the member is to found a quorum by a recovery, or has done so since its agent started.
	Founds bool `json:"founds,omitempty"`
	// Answers means that a majority of its quorum has answered lately. Without it the claim is a memory.
	Answers bool `json:"answers,omitempty"`
	// Disowns means that the member runs and does not know the one that asks. It may have been given up for lost there.
	Disowns bool `json:"-"`
}

// Bars returns why the member self may not found a quorum that begins with epoch e, by the claim of the member from;
// "": the claim is no reason. That of a member which follows the new quorum already is none, nor is a memory of the
// lost one. That self leads an earlier epoch there does not make the quorum the new one: it may elect another leader.
//
// The founder that asks has acknowledged nothing yet, and the other one may have. So the later founding is refused,
// whichever epoch is greater.
func (c Claim) Bars(from, self ag.ReplicaID, e ag.Epoch) string {
	switch {
	case c.Disowns:
		return fmt.Sprintf("the agent of %s runs, and says that this node is no member: it may have been given up for lost there", from)
	case c.Leader == "" || c.Leader == self && c.Epoch >= e:
		return ""
	case c.Founds:
		return fmt.Sprintf("%s is to found a new quorum, too, or has done so, in epoch %d (coterie recover lead was run there)", from, c.Epoch)
	case c.Answers:
		return fmt.Sprintf("%s belongs to a quorum that answers, in which %s leads epoch %d", from, c.Leader, c.Epoch)
	case c.Epoch >= e:
		return fmt.Sprintf("%s saw that %s leads epoch %d, and this recovery does not know of it", from, c.Leader, c.Epoch)
	}
	return ""
}
