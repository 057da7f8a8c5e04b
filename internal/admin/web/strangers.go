package web

import (
	"net"
	"net/http"

	"github.com/coteriedb/coterie/internal/lib/admission"
	"github.com/coteriedb/coterie/internal/lib/boottime"
)

// Work for callers that have no session, of one address and of all. The agent is in this process, and on a witness
// a vote: whoever can reach the port must not be able to take the processor from them.
var (
	eachHandshakes = admission.Rate{PerSecond: 64, Burst: 256}
	allHandshakes  = admission.Rate{PerSecond: 256, Burst: 1024}
	eachStrangers  = admission.Rate{PerSecond: 100, Burst: 1000}
	allStrangers   = admission.Rate{PerSecond: 1000, Burst: 5000}
)

// rememberedAddresses is how many addresses are told apart.
const rememberedAddresses = 1024

// strangers are the budgets of callers that have no session. An address from which somebody has logged in is not
// subject to the limits of all.
type strangers struct{ handshakes, requests *admission.Budget }

func newStrangers() strangers {
	return strangers{
		admission.NewBudget(eachHandshakes, allHandshakes, rememberedAddresses), admission.NewBudget(eachStrangers, allStrangers, rememberedAddresses),
	}
}

// greets reports whether a TLS handshake with this address may go on.
func (s strangers) greets(from net.Addr) bool {
	return s.handshakes.Spend(admission.Key(from), 1, boottime.Now())
}

// serves reports whether a request without a session may be answered.
func (s strangers) serves(r *http.Request) bool {
	return s.requests.Spend(addressOf(r), 1, boottime.Now())
}

// loggedIn notes that somebody has logged in from the address of the request.
func (s strangers) loggedIn(r *http.Request) {
	s.handshakes.Succeeded(addressOf(r), 1)
	s.requests.Succeeded(addressOf(r), 1)
}

// addressOf returns the key under which the client of a request is counted.
func addressOf(r *http.Request) string {
	a, err := net.ResolveTCPAddr("tcp", r.RemoteAddr) // a literal: nothing is asked
	if err != nil {
		return ""
	}
	return admission.Key(a)
}
