package listener

// assert panics unless ok. It is for states that cannot occur: the panic ends the session whose code met one, with an error in
// the log that names it (session.rescue, pump.rescue), and no other session.
func assert(ok bool, state string) {
	if !ok {
		panic("impossible: " + state)
	}
}
