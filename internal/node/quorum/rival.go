package quorum

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/ag/recovery"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/node/membership"
)

// askRivals is how long the others have to say whether they found a quorum. Those that are stopped do not answer.
const askRivals = 2 * time.Second

// Founds returns the claim of a node that is to found a quorum by a recovery, or has done so since it started; the zero
// claim if it does not. Any goroutine may call it, also before Open.
func (s *Service) Founds() recovery.Claim {
	if c := s.founds.Load(); c != nil {
		return *c
	}
	f, err := membership.ReadFounding(s.Layout)
	if err != nil || f.Token == "" {
		return recovery.Claim{}
	}
	return recovery.Claim{Epoch: f.Epoch.Epoch, Leader: s.self, Founds: true}
}

// mayFound asks the members of the lost quorum before this node founds another one. It returns an error if one of them
// founds, or belongs to a quorum that answers.
//
// The endpoint MUST tell of this node's own founding BEFORE it asks. So of two that found at once and reach each other,
// at least one hears of the other, and no primary opens beside another one. Both may hear, and then neither founds
// until an operator gives one of them up.
func (s *Service) mayFound(ctx context.Context, f membership.Founding) error {
	own := recovery.Claim{Epoch: f.Epoch.Epoch, Leader: s.self, Founds: true}
	s.founds.Store(&own)
	ctx, cancel := context.WithTimeout(ctx, askRivals)
	defer cancel()
	var asking sync.WaitGroup
	var mu sync.Mutex // guards why
	var why []string
	bar := func(text string) {
		if text != "" {
			mu.Lock()
			defer mu.Unlock()
			why = append(why, text)
		}
	}
	for _, r := range f.Group.Replicas {
		if r.ID != s.self {
			asking.Go(func() { bar(s.askRival(ctx, r, f.Epoch.Epoch)) })
		}
	}
	for _, r := range f.Gone {
		asking.Go(func() { bar(s.answersThough(ctx, r)) })
	}
	asking.Wait()
	if len(why) > 0 {
		return fail.Refusedf("the new quorum is not founded: %s. Two primaries would be possible, and nothing was acknowledged here yet. "+
			"Choose one that leads; where it is another member, run coterie recover follow --give-up-lead here", strings.Join(why, "; "))
	}
	return nil
}

// askRival returns why this node may not found, by the word of another member; "": it may, or the member is silent.
func (s *Service) askRival(ctx context.Context, r ag.Replica, e ag.Epoch) string {
	claim, err := s.AskClaim(ctx, r)
	if err != nil {
		s.Logger.Info("a member of the lost quorum says nothing of another founding", "member", r.ID, "err", err)
		return ""
	}
	return claim.Bars(r.ID, s.self, e)
}

// answersThough returns that a replica which was given up for lost is there; "": it is not. It is no member any more,
// so it cannot be asked. A stranger that has its address by now bars nothing. Nor does a witness: it may have been
// given up because it is stolen, and leads nothing without a replica.
func (s *Service) answersThough(ctx context.Context, r ag.Replica) string {
	err := s.Answers(ctx, r)
	switch {
	case err != nil:
		s.Logger.Info("a member that was given up for lost does not answer", "member", r.ID, "address", r.Endpoint, "err", err)
		return ""
	case !r.HasData():
		s.Logger.Warn("a witness that was given up for lost answers, and is not heeded", "member", r.ID, "address", r.Endpoint)
		return ""
	}
	return fmt.Sprintf("%s was given up for lost, and answers at %s: stop its agent", r.ID, r.Endpoint)
}
