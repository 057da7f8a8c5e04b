package trial

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestArguments holds, by what PostgreSQL makes of the arguments, that files of the cluster that was backed up neither
// lead to its living data nor have something run beside the recovery.
func TestArguments(t *testing.T) {
	bins, err := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if err != nil || len(bins) == 0 {
		t.Skip("NOT RUN: PostgreSQL is not installed")
	}
	data := t.TempDir()
	const own = "data_directory = '/srv/living'\nmax_worker_processes = 8\narchive_mode = on\nlisten_addresses = '*'\nprimary_conninfo = 'host=db1'\n"
	if err := os.WriteFile(filepath.Join(data, "postgresql.conf"), []byte(own), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"data_directory": data, "max_worker_processes": "0", "archive_mode": "off", "listen_addresses": "", "primary_conninfo": ""} {
		out, err := exec.CommandContext(t.Context(), bins[0], append([]string{"-C", name}, arguments(data, "/run/x")...)...).Output()
		if got := strings.TrimSpace(string(out)); got != want || err != nil {
			t.Errorf("%s is %q, %v", name, got, err)
		}
	}
}
