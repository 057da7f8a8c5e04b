package groupcmd

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/lib/retry"
)

// CA returns the command ca, which prints the group's CA certificate or rotates the authority.
func CA() *cobra.Command {
	var asJSON bool
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
certificate has left.

--json prints authorities: a list with pin (of its key, as in coterie status --json), subject, not_before, not_after and pem of each.`,
		Example: "  coterie ca > group.crt",
		Args:    cli.Args(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			dir := cli.Node(c)
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
			if asJSON {
				list, err := authoritiesIn(b)
				if err != nil {
					return fmt.Errorf("%s: %w; coterie check security says more", file, err)
				}
				return cli.PrintJSON(c, map[string]any{"authorities": list})
			}
			_, err = cli.Out(c).Write(b)
			return err
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON: each authority with its pin, its dates and its certificate")
	c.AddCommand(rotateCommand())
	return c
}

// authority is an authority of the group, as coterie ca --json prints it.
type authority struct {
	Pin       string    `json:"pin"`
	Subject   string    `json:"subject"`
	NotBefore time.Time `json:"not_before"`
	NotAfter  time.Time `json:"not_after"`
	PEM       string    `json:"pem"`
}

// authoritiesIn returns the authorities whose certificates are in a file.
func authoritiesIn(b []byte) (out []authority, err error) {
	for {
		block, rest := pem.Decode(b)
		if block == nil {
			break
		}
		x, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		out, b = append(out, authority{certs.KeyPin(x), x.Subject.String(), x.NotBefore, x.NotAfter, string(pem.EncodeToMemory(block))}), rest
	}
	if len(out) == 0 {
		return nil, errors.New("there is no certificate in it")
	}
	return out, nil
}

func rotateCommand() *cobra.Command {
	var req api.RotateRequest
	var wait time.Duration
	var asJSON bool
	c := &cobra.Command{
		Use: "rotate", Short: "Replace the group's certificate authority while everything goes on",
		Long: `Makes a new certificate authority. In phase TRUST every member learns to believe it beside the old one, in phase ISSUE every member has its
certificates issued by it, the listener's too, and in phase DROP every member forgets the old one. Streams and sessions go on. It waits
for members that are down; coterie status names them.

The rotation goes on without this command, and by itself on a node that was restarted. Run again, the command watches one that is under
way. Exit code 3 if it is not complete after --wait. Join tokens made before do not work any more.

Clients that verify listeners must know the new authority before phase ISSUE. Where there are such clients, hold the rotation in TRUST, give
them what coterie ca prints then, which is both authorities, and run the command again.`,
		Example: "  coterie ca rotate --hold\n  coterie ca > group.crt      # for clients with sslrootcert\n  coterie ca rotate",
		Args:    cli.Args(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			cl, err := cli.Client(c)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(c.Context(), wait)
			defer cancel()
			r, err := cl.RotateAuthority(ctx, req)
			if err != nil {
				return cli.NoAgent(c, err)
			}
			if req.Abandon {
				cli.Say(c, "the rotation is given up: the authority stays as it was")
			} else {
				err = watchRotation(ctx, c, cl, r)
			}
			if err != nil || !asJSON {
				return err
			}
			return showRotation(c, cl)
		},
	}
	c.Flags().BoolVar(&req.Hold, "hold", false, "stay in phase TRUST, until run again without this: clients can learn of the new authority meanwhile")
	c.Flags().BoolVar(&req.Abandon, "abandon", false, "give up a rotation that is in phase TRUST still")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON: the authority, and the rotation that is under way still")
	c.Flags().DurationVar(&wait, "wait", 2*time.Minute, "how long to watch the rotation")
	return c
}

// rotated is what coterie ca rotate --json prints at the end.
type rotated struct {
	Authority string        `json:"authority"` // its pin
	Rotation  *api.Rotation `json:"rotation"`  // null: none is under way
}

// showRotation prints the authority as it is now.
func showRotation(c *cobra.Command, cl *api.Client) error {
	s, err := cl.Status(c.Context())
	if err != nil {
		return cli.NoAgent(c, err)
	}
	return cli.PrintJSON(c, rotated{s.Authority, s.Rotation})
}

// watchRotation prints the progress of the rotation until it ends.
func watchRotation(ctx context.Context, c *cobra.Command, cl *api.Client, r api.Rotation) error {
	said := ""
	for last := r; ; {
		if line := describeRotation(last); line != said {
			said = line
			cli.Say(c, "%s", line)
		}
		if retry.Sleep(ctx, 100*time.Millisecond) != nil {
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return fail.Unhealthyf("the rotation is not complete and goes on: %s; start what is down, or take it out with coterie member remove", said)
			}
			return ctx.Err()
		}
		s, err := cl.Status(ctx)
		switch {
		case err != nil && ctx.Err() == nil:
			return cli.NoAgent(c, err)
		case err != nil:
		case s.Rotation == nil && s.Authority == r.Pin:
			cli.Say(c, "the authority is %.16s…; clients verify by what coterie ca prints now", r.Pin)
			return nil
		case s.Rotation != nil && s.Rotation.Held && len(s.Rotation.WaitsFor) == 0:
			cli.Say(c, "all members believe both authorities; give clients what coterie ca prints, then run coterie ca rotate")
			return nil
		case s.Rotation != nil:
			last = *s.Rotation
		}
	}
}

func describeRotation(r api.Rotation) string {
	what := map[ag.RotationPhase]string{
		ag.RotationTrust: "members learn to believe it", ag.RotationIssue: "members get certificates of it", ag.RotationDrop: "members forget the old one",
	}
	return fmt.Sprintf("to %.16s…, phase %s (%s), waits for %s", r.Pin, r.Phase, what[r.Phase], ag.Names(r.WaitsFor))
}
