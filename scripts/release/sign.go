package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// signs is the environment variable with the command that signs a file of the release.
const signs = "COTERIE_SIGN"

// sign runs the administrator's command for SHA256SUMS, which covers every other file. The command gets the file as its
// last argument and must leave a signature beside it, as FILE.asc or FILE.sig. Without a command nothing is signed.
func (r *release) sign(ctx context.Context) error {
	command := os.Getenv(signs)
	if command == "" {
		return nil
	}
	file := filepath.Join(r.dist, "SHA256SUMS")
	if _, err := r.output(ctx, nil, "sh", "-c", command+` "$1"`, "sign", file); err != nil {
		return fmt.Errorf("%s: %w", signs, err)
	}
	for _, end := range []string{".asc", ".sig"} {
		if st, err := os.Stat(file + end); err == nil && st.Size() > 0 {
			_, _ = fmt.Fprintln(r.out, file+end)
			return nil
		}
	}
	return fmt.Errorf("%s has left neither %s.asc nor %[2]s.sig: nothing is signed", signs, file)
}
