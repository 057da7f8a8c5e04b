package pgupgrade

// Mkdir makes a directory as a job makes its own.
func (j Job) Mkdir(dir string) error { return j.mkdir(dir) }
