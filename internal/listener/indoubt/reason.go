package indoubt

// Reason is why a client is told that the outcome of its request is unknown (08007). Metrics name it so.
type Reason string

// The reasons.
const (
	ReasonState       Reason = "state"       // the session would not have outlived its server: its state was not known, for example
	ReasonStatement   Reason = "statement"   // it is a statement outside a transaction block that may have changed something
	ReasonNotAsked    Reason = "not asked"   // a transaction was ended in a form whose number is not asked for
	ReasonNotTold     Reason = "not told"    // the server was lost before it told the number
	ReasonCut         Reason = "answer cut"  // the client has got a part of the answer
	ReasonAnswer      Reason = "answer lost" // it is committed, and the answer to it is lost
	ReasonNotProved   Reason = "not proved"  // the status of its number proves nothing
	ReasonNoServer    Reason = "no server"   // no server has taken the session in time, so that none was asked
	ReasonUnconfirmed Reason = "unconfirmed" // the synchronous secondaries did not confirm it
)
