package resume

import (
	"fmt"
	"slices"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/indoubt"
	"github.com/coteriedb/coterie/internal/listener/lone"
	"github.com/coteriedb/coterie/internal/listener/lostblock"
	"github.com/coteriedb/coterie/internal/listener/replay"
)

// Doubt is what is known of a session beside its request whose answer was lost with the server.
type Doubt struct {
	Timelines  []ag.TimelineEntry // of the new server, as the routes have them that led there
	Extensions []string           // of the database
	Reads      bool               // the answer to a COMMIT speaks for what was read, too
	Unreplayed string             // why the transaction is not executed again; "": it is, or it need not
}

// Proof is what is proved of a request whose answer was lost.
type Proof struct {
	Outcome indoubt.Outcome
	Status  indoubt.Status // what the new server says of the transaction; zero: it was not asked
	Told    []byte         // what the client gets
	Chained bool           // the session is in the transaction behind a COMMIT AND CHAIN
	Repeat  bool           // the change is to be executed again
}

// Commit asks the server what became of a COMMIT. If it has no answer, the error is ErrNotTheSame: the client cannot be
// told, and the session must not go on.
func (s Server) Commit(c *indoubt.Commit, d Doubt) (p Proof, err error) {
	if c.Xid == 0 {
		if d.Reads {
			return p, fmt.Errorf("%w: what its transaction has read was not confirmed", ErrNotTheSame)
		}
		if replay.Outside(d.Extensions) != "" || slices.Contains(d.Extensions, "postgres_fdw") {
			return p, fmt.Errorf("%w: its transaction wrote nothing here, and may have elsewhere", ErrNotTheSame)
		}
		p.Outcome = indoubt.Committed // with nothing in it
		return p, s.committed(c, &p)
	}
	if err := s.ask(c, d, &p); err != nil {
		return p, err
	}
	switch p.Outcome {
	case indoubt.Committed:
		return p, s.committed(c, &p)
	case indoubt.NotCommitted:
		p.Told = pgwire.AppendMessage(lostblock.NotCommitted(d.Unreplayed).EncodeError(), 'Z', []byte{'I'})
		return p, nil
	case indoubt.Unknown:
	}
	return p, fmt.Errorf("%w: the outcome of its COMMIT cannot be proved", ErrNotTheSame)
}

// ask has the server tell the status of a transaction.
func (s Server) ask(c *indoubt.Commit, d Doubt, p *Proof) error {
	a, err := s.exchange(c.Question(), 1)
	if err != nil {
		return err
	}
	p.Status = indoubt.Read(a.Row())
	p.Outcome = c.Outcome(d.Timelines, p.Status)
	return nil
}

// committed notes what the client gets of a COMMIT that is proved. Behind AND CHAIN the next transaction is begun.
func (s Server) committed(c *indoubt.Commit, p *Proof) error {
	if text := c.Begin(); text != "" {
		a, err := s.exchange(pgwire.AppendMessage(nil, 'Q', pgwire.AppendCString(nil, text)), 1)
		if err != nil {
			return err
		}
		if !a.Begun() {
			return fmt.Errorf("%w: the transaction behind its COMMIT was not begun: %w", ErrNotTheSame, a.Err())
		}
		p.Chained = true
	}
	p.Told = c.Done()
	return nil
}

// Change asks the server what became of a change outside a transaction block, as Commit does. twice means that it was
// executed again before.
func (s Server) Change(w *lone.Write, d Doubt, twice bool) (p Proof, err error) {
	if err := s.ask(&indoubt.Commit{Xid: w.Xid, Timeline: w.Timeline}, d, &p); err != nil {
		return p, err
	}
	answer := w.Answer()
	switch {
	case p.Outcome == indoubt.Unknown:
		return p, fmt.Errorf("%w: the outcome of its change cannot be proved", ErrNotTheSame)
	case p.Outcome == indoubt.Committed && answer == nil:
		return p, ErrAnswerLost
	case p.Outcome == indoubt.Committed:
		p.Told = answer
	case w.Untold() && !twice && replay.Outside(d.Extensions) == "":
		p.Repeat = true
	default:
		p.Told = pgwire.AppendMessage(lostblock.NotCommitted("").EncodeError(), 'Z', []byte{'I'})
	}
	return p, nil
}
