package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"
)

// restrictCancel takes pg_cancel_backend and pg_terminate_backend from everybody but superusers and members of
// pg_signal_backend, in the databases that initdb made and so in all that are copied from them. Any role may otherwise cut short
// the wait of its own other sessions for the secondaries, past the listener. Nothing runs yet: it is done in single-user mode,
// which alone gets into template0.
func (i *Instance) restrictCancel(ctx context.Context) error {
	var sql bytes.Buffer
	for _, f := range []string{"pg_cancel_backend(integer)", "pg_terminate_backend(integer, bigint)"} {
		fmt.Fprintf(&sql, "REVOKE EXECUTE ON FUNCTION pg_catalog.%s FROM PUBLIC\n", f)
		fmt.Fprintf(&sql, "GRANT EXECUTE ON FUNCTION pg_catalog.%s TO pg_signal_backend\n", f)
	}
	for _, database := range []string{"template0", "template1", "postgres"} {
		cmd := exec.CommandContext(ctx, i.Binary(), "--single", "-D", i.cfg.PGData, "-c", "lc_messages=C", "-c", "log_min_messages=error", database)
		cmd.Env, cmd.Stdin = toolEnv(), bytes.NewReader(sql.Bytes())
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
		cmd.WaitDelay = 10 * time.Second
		out, err := cmd.CombinedOutput()
		if err == nil && bytes.Contains(out, []byte("ERROR:")) { // it goes on after one and ends well
			err = errors.New("refused")
		}
		if err != nil {
			return fmt.Errorf("restrict pg_cancel_backend in %s: %w: %s", database, err, lastText(out))
		}
	}
	return nil
}
