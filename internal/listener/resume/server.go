package resume

import (
	"bufio"
	"errors"
	"fmt"
	"net"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/continuity"
	"github.com/coteriedb/coterie/internal/listener/lone"
)

// Server is a session of the new server, on which nothing is under way. The caller bounds its deadlines. After an error
// the session cannot be used any more.
type Server struct {
	Conn net.Conn
	In   *bufio.Reader // from Conn
}

// ErrNotTheSame means that a session cannot be brought into the state of the one that it continues, on any server.
var ErrNotTheSame = errors.New("it would not be the same session")

// ErrAnswerLost means that a change is committed, and that its client cannot get the answer.
var ErrAnswerLost = fmt.Errorf("%w: its change is committed, and the answer to it is lost", ErrNotTheSame)

// errGivenBack means that the node of the new server gives the session back already.
var errGivenBack = errors.New("the group moved while the session was being resumed")

// exchange sends requests and reads the answers, which end with n ReadyForQuery.
func (s Server) exchange(requests []byte, n int) (*continuity.Answer, error) {
	if _, err := s.Conn.Write(requests); err != nil {
		return nil, err
	}
	a := new(continuity.Answer)
	for n > 0 {
		typ, body, err := pgwire.ReadMessage(s.In, pgwire.MaxControl)
		if err != nil {
			return nil, err
		}
		_, done, err := a.Feed(pgwire.AppendMessage(nil, typ, body))
		if err != nil {
			return nil, err
		}
		if a.GivenBack {
			return nil, errGivenBack
		}
		if done {
			n--
		}
	}
	return a, nil
}

// Restore brings the session into a state, and checks that it is in it. unlisted are settings that no view lists.
// status has what the server has reported, and gets what it reports now. With across the server may be of another major
// version. It returns the notifications that have come, and what the server tells of the session.
func (s Server) Restore(was *continuity.State, unlisted []string, status map[string]string, across bool) (heard []byte, again *continuity.State, err error) {
	names := append(unlisted, was.Names()...)
	var states [2]continuity.State
	for i := range states {
		a, err := s.exchange(continuity.Question(names, status[continuity.ReadOnly] == "on"), 1)
		if err != nil {
			return nil, nil, err
		}
		if states[i], err = a.State(); err != nil {
			return nil, nil, fmt.Errorf("%w: %w", ErrNotTheSame, err)
		}
		heard = append(heard, a.Notifications...)
		if i > 0 {
			break
		}
		requests, n := was.Restore(&states[0])
		if a, err = s.exchange(requests, n); err != nil {
			return nil, nil, err
		}
		if err := a.Err(); err != nil {
			return nil, nil, fmt.Errorf("%w: %w", ErrNotTheSame, err)
		}
		a.Reports(status)
		heard = append(heard, a.Notifications...)
	}
	across = across && was.Crosses(&states[1])
	if d := was.Differs(&states[1], across); d != "" {
		return nil, nil, fmt.Errorf("%w: %s", ErrNotTheSame, d)
	}
	if across {
		if err := s.goesAcross(&states[1]); err != nil {
			return nil, nil, err
		}
	}
	was.Extensions, was.Tells, was.Ruleless = states[1].Extensions, states[1].Tells, states[1].Ruleless
	return heard, &states[1], nil
}

// goesAcross checks that a client whose session was on a server of another version can go on in this one.
func (s Server) goesAcross(again *continuity.State) error {
	a, err := s.exchange(again.Across(), 1)
	if err != nil {
		return err
	}
	if why := a.Refused(); why != "" {
		return fmt.Errorf("%w: %s", ErrNotTheSame, why)
	}
	return nil
}

// LostBlock is the statement by which FailBlock has a new transaction block fail: the transaction of the client is
// lost. The server's log shows it.
const LostBlock = `rollback to savepoint "the transaction was open on a server that was lost"`

// FailBlock begins a transaction block that has failed.
func (s Server) FailBlock() error {
	b := pgwire.AppendMessage(nil, 'Q', pgwire.AppendCString(nil, "begin"))
	_, err := s.exchange(pgwire.AppendMessage(b, 'Q', pgwire.AppendCString(nil, LostBlock)), 2)
	return err
}

// Guard has the next request write nothing, which begins with a message of that type. behind goes behind that message
// (lone.Guard).
func (s Server) Guard(typ byte) (behind []byte, err error) {
	b, last, behind := lone.Guard(typ)
	if _, err := s.Conn.Write(b); err != nil {
		return nil, err
	}
	for {
		typ, body, err := pgwire.ReadMessage(s.In, pgwire.MaxControl)
		switch {
		case err != nil:
			return nil, err
		case typ == 'E':
			return nil, fmt.Errorf("its query cannot be executed again: %s", pgwire.ErrorField(body, 'M'))
		case typ == last:
			return behind, nil
		}
	}
}
