package fail

// The SQLSTATEs of numbered messages.
const (
	syntax      = "42601"
	invalid     = "22023"
	undefined   = "42704"
	duplicate   = "42710"
	wrongState  = "55000"
	inUse       = "55006"
	noService   = "57P03"
	invalidAuth = "28000"
)

// messages has the SQLSTATE of each message by the number that administrators of SQL Server's availability groups know.
// The text of a message is that of the place where it occurs. The kind follows from the SQLSTATE.
var messages = map[int]string{
	102:  syntax, // incorrect syntax
	103:  syntax, // a name that is too long
	105:  syntax, // an unclosed quotation mark
	113:  syntax, // an unclosed comment
	1038: syntax, // an empty name

	979: invalidAuth, // no replica may take the read-only session
	982: noService,   // no readable secondary takes sessions
	983: noService,   // no primary takes sessions
	988: noService,   // no majority of the quorum

	2520:  invalid,   // a trace flag without a meaning
	15151: undefined, // another group

	35233: invalid,    // too many replicas
	35237: invalid,    // none of the replicas is the one with the data
	35239: undefined,  // SET HADR of a database that is not in the group
	35242: undefined,  // the same, of a replica's copy
	35280: duplicate,  // a database that is in the group already
	35281: undefined,  // a database that is not in the group
	35282: duplicate,  // a replica that is in the group already
	35283: undefined,  // REMOVE of a replica that is not in the group
	35284: wrongState, // REMOVE of the primary

	41042: duplicate,  // a second group
	41113: inUse,      // a failover while another one is under way
	41121: wrongState, // a failover to a witness
	41122: wrongState, // a failover to the primary
	41140: wrongState, // a statement for the primary, WITH STRICT, elsewhere
	41142: wrongState, // a failover to a replica that is not synchronized
	41148: undefined,  // a database that is not in the group
	41158: wrongState, // JOIN of a node that was not added
	41167: undefined,  // a replica that is not in the group
}

// StateOf returns the SQLSTATE of a numbered message, and that of an ordinary error for a number that is not in the
// table.
func StateOf(number int) string {
	if state, ok := messages[number]; ok {
		return state
	}
	return Ordinary.SQLState()
}
