package passage

// maxRest bounds what is kept of a client whose server takes no more, until it is known whether another one goes on.
const maxRest = 64 << 10

// Rest is what a client has sent and no server has got: the next server gets it. One goroutine at a time may use it.
type Rest struct {
	B       []byte
	Spilled bool // more came than is kept, and was discarded: no server can go on
}

// Write implements io.Writer. It never fails.
func (r *Rest) Write(b []byte) (int, error) {
	if r.Spilled = r.Spilled || len(r.B)+len(b) > maxRest; !r.Spilled {
		r.B = append(r.B, b...)
	}
	return len(b), nil
}
