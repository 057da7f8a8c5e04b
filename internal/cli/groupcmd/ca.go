package groupcmd

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// CA returns the command ca, which prints the group's CA certificate or rotates the authority.
func CA() *cobra.Command {
	c := &cobra.Command{
		Use:     "ca",
		GroupID: "group",
		Short:   "Print the certificate by which clients verify the group's listeners",
		Long: `Prints the certificate of the group's own authority, in PEM. It is no secret. A client that has it in a file verifies any node's
listener with it:

    coterie ca > group.crt
    psql "host=db1,db2,db3 dbname=app user=app sslmode=verify-full sslrootcert=group.crt"

The certificates of nodes and listeners hold for 90 days and are renewed by themselves after two thirds of that; the authority's holds
for ten years, and coterie ca rotate replaces it. While that goes on, both authorities are printed. coterie check says how long each
certificate has left.`,
		Example: "  coterie ca > group.crt",
		Args:    cli.Args(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			dir, _ := c.Flags().GetString("node")
			l, err := config.NewLayout(dir)
			if err != nil {
				return err
			}
			_, _, file := certs.TLSFiles(l.PKI())
			b, err := os.ReadFile(file)
			if errors.Is(err, fs.ErrNotExist) {
				return fail.Usagef("there is no node in %s: name its directory with --node, or copy %s from a machine that has one", l.Dir, filepath.Base(file))
			}
			if err != nil {
				return err
			}
			_, err = cli.Out(c).Write(b)
			return err
		},
	}
	c.AddCommand(rotateCommand())
	return c
}
