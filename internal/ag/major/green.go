package major

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Green is the mode of an upgrade by blue/green: the new cluster, green, gets the rows of the old one, blue, by logical
// replication while blue serves. The group passes to green as it passes to a cluster of pg_upgrade.
const Green Mode = "blue-green"

// Copying is the phase in which green is filled. Blue serves, and nothing of the group has changed.
const Copying Phase = "COPYING"

// Stage is how far green has come.
type Stage string

// The stages of Copying, in their order.
const (
	Nothing    Stage = ""           // there may be a part of its directory
	Empty      Stage = "EMPTY"      // the cluster is made, and its server runs
	Defined    Stage = "DEFINED"    // it has the roles and the definitions
	Subscribed Stage = "SUBSCRIBED" // it gets the rows
	Ready      Stage = "READY"      // it has the rows, statistics and materialized views
)

// GreenStep is what is to be done next about green.
type GreenStep string

// The steps of Copying. An agent that ends meanwhile ends all of them: the next one gives the upgrade up.
const (
	GreenEmpty     GreenStep = "make it"
	GreenDefine    GreenStep = "define"
	GreenSubscribe GreenStep = "subscribe"
	GreenWait      GreenStep = "wait"
	GreenReady     GreenStep = "make ready"
	GreenSwitch    GreenStep = "switch"
	GreenAbandon   GreenStep = "abandon"
)

// GreenFacts are what is known about both clusters while green is filled.
type GreenFacts struct {
	Leads   bool // the leadership in which the upgrade was asked for goes on, and blue takes writes
	Stopped bool // an administrator wants the upgrade given up
	Now     time.Time
	Runs    bool   // green's server runs
	Changed string // what differs from the definitions that green has; "": nothing
	Failed  string // why the replication cannot go on; "": it can
	Tables  int    // whose rows are not all there
	Lag     int64  // bytes of WAL that green has not confirmed
}

// The bounds of a switch: how far green may be behind when clients begin to wait, and how often it is tried.
const (
	maxLag   = 8 << 20
	maxTries = 5
)

// NextGreen returns the next step of Copying, and why where the upgrade is to be given up.
func (u Upgrade) NextGreen(f GreenFacts) (GreenStep, string) {
	switch {
	case f.Stopped:
		return GreenAbandon, "an administrator has given it up"
	case !f.Leads:
		return GreenAbandon, "the group has another leadership than the one in which it was begun"
	case f.Now.After(u.Until):
		return GreenAbandon, "its time was over before the rows were there"
	case u.Stage != Nothing && !f.Runs:
		return GreenAbandon, fmt.Sprintf("the server of the new cluster has ended; see log/%s", GreenLog)
	case u.Stage != Nothing && u.Stage != Empty && f.Changed != "":
		return GreenAbandon, f.Changed + "; begin again when nobody changes definitions"
	case f.Failed != "":
		return GreenAbandon, f.Failed
	case u.Tries >= maxTries:
		return GreenAbandon, fmt.Sprintf("the group could not pass to the new cluster in %d tries: %s", u.Tries, u.Why)
	}
	switch u.Stage {
	case Nothing:
		return GreenEmpty, ""
	case Empty:
		return GreenDefine, ""
	case Defined:
		return GreenSubscribe, ""
	case Subscribed:
		if f.Tables > 0 || f.Lag > maxLag {
			return GreenWait, ""
		}
		return GreenReady, ""
	case Ready:
	}
	if f.Tables > 0 || f.Lag > maxLag {
		return GreenWait, ""
	}
	return GreenSwitch, ""
}

// GreenLog is the name of the log of green's server until the group passes to it.
const GreenLog = "postgres-green.log"

// GreenNode is what filling green does on a node.
type GreenNode interface {
	// Save stores the state of the upgrade.
	Save(u Upgrade) error
	GreenFacts(ctx context.Context, u Upgrade) (GreenFacts, error)
	// Empty makes the cluster and starts its server.
	Empty(ctx context.Context, u Upgrade) (Upgrade, error)
	// Define gives it the roles and definitions of blue.
	Define(ctx context.Context, u Upgrade) (Upgrade, error)
	// Subscribe begins the copy of rows.
	Subscribe(ctx context.Context, u Upgrade) error
	// Wait returns when it is time for another look.
	Wait(ctx context.Context, u Upgrade, f GreenFacts) error
	// MakeReady makes what is not replicated.
	MakeReady(ctx context.Context, u Upgrade) error
	// Switch has the group pass to green. It returns an upgrade that is Done, GivenUp, or Copying if blue serves on and
	// it can be tried again.
	Switch(ctx context.Context, u Upgrade) (Upgrade, error)
	// Discard removes green, and what blue has for it. Blue serves.
	Discard(u Upgrade) error
}

// RunGreen fills green and has the group pass to it. After an error of it, nothing is known, and another agent is to
// begin. When ctx ends, the state stays as it is.
func RunGreen(ctx context.Context, n GreenNode, u Upgrade) (Upgrade, error) {
	for u.Phase == Copying {
		f, err := n.GreenFacts(ctx, u)
		if err != nil {
			return u, err
		}
		step, why := u.NextGreen(f)
		next, err := u.takeGreen(ctx, n, f, step)
		if ctx.Err() != nil {
			return u, ctx.Err()
		}
		if errors.Is(err, ErrUnknown) {
			return u, err
		}
		if err != nil {
			step, why = GreenAbandon, err.Error()
		}
		if step == GreenAbandon {
			if err := n.Discard(u); err != nil {
				return u, fmt.Errorf("give the upgrade up (%s): %w", why, err)
			}
			next = u
			next.Phase, next.Why = GivenUp, why
		}
		if next.Phase != u.Phase && next.Phase != Done || next.Stage != u.Stage || next.Tries != u.Tries {
			if err := n.Save(next); err != nil {
				return u, err
			}
		}
		u = next
	}
	return u, nil
}

// ErrUnknown is the error of a Switch after which another agent must look where the upgrade stands.
var ErrUnknown = errors.New("it is not known which cluster the group has")

func (u Upgrade) takeGreen(ctx context.Context, n GreenNode, f GreenFacts, step GreenStep) (next Upgrade, err error) {
	next = u
	switch step {
	case GreenEmpty:
		next, err = n.Empty(ctx, u)
		next.Stage = Empty
	case GreenDefine:
		next, err = n.Define(ctx, u)
		next.Stage = Defined
	case GreenSubscribe:
		err = n.Subscribe(ctx, u)
		next.Stage = Subscribed
	case GreenWait:
		err = n.Wait(ctx, u, f)
	case GreenReady:
		err = n.MakeReady(ctx, u)
		next.Stage = Ready
	case GreenSwitch:
		next, err = n.Switch(ctx, u)
	case GreenAbandon:
	}
	return next, err
}
