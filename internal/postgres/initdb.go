package postgres

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// Init creates a new cluster in PGData: data checksums, UTF-8, C.UTF-8 where the system has it and else C. The
// directory must be absent or empty. initdb flushes everything it writes. Nobody but superusers and pg_signal_backend
// may cancel sessions by SQL. standby.signal is there afterwards, as in every state
// (docs/internals/postgresql.md, "Standby signal"): the first primary is a promoted standby, too.
func (i *Instance) Init(ctx context.Context) error {
	entries, err := os.ReadDir(i.cfg.PGData)
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return fmt.Errorf("create the cluster: %w", err)
	case len(entries) > 0:
		return fmt.Errorf("create the cluster: %s is not empty (it holds %s); give another directory, or adopt the cluster that is in it",
			i.cfg.PGData, entries[0].Name())
	}
	out, err := i.initdb(ctx, "C.UTF-8")
	if err != nil && strings.Contains(string(out), "locale name") {
		i.log.Info("locale not available, using C", "locale", "C.UTF-8")
		out, err = i.initdb(ctx, "C")
	}
	if err != nil {
		return fmt.Errorf("create the cluster: initdb: %w: %s", err, lastText(out))
	}
	if err := i.restrictCancel(ctx); err != nil {
		return fmt.Errorf("create the cluster: %w", err)
	}
	return i.createStandbySignal()
}

func (i *Instance) initdb(ctx context.Context, locale string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, i.bin("initdb"),
		"-D", i.cfg.PGData, "-U", i.cfg.Superuser, "--data-checksums", "--encoding=UTF8", "--locale="+locale,
		// The file written by initdb is not the one the server uses (hba_file is on its command line). Whoever starts the
		// server by hand meets the rules a distribution would have made.
		"--auth-local=peer", "--auth-host=scram-sha-256")
	cmd.Env = toolEnv()
	return cmd.CombinedOutput()
}
