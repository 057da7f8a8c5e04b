package nodecmd

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/endpoint"
	"github.com/coteriedb/coterie/internal/etcd"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// quorumFlags name an etcd of the administrator's, for a group without an embedded quorum.
type quorumFlags struct {
	endpoints     []string
	ca, cert, key string
}

func (f *quorumFlags) add(c *cobra.Command, founds bool) {
	fl := c.Flags()
	where, files := "client URLs of an etcd of yours that is to be the group's quorum, as in https://10.0.0.7:2379,https://10.0.0.8:2379 (default: a quorum embedded in the nodes)", ""
	if !founds {
		where, files = "client URLs of the group's external etcd (default: those in the token)", " (default: the path on the node that made the token)"
	}
	fl.StringSliceVar(&f.endpoints, "quorum-endpoints", nil, where)
	fl.StringVar(&f.ca, "quorum-ca", "", "file of the authorities behind the etcd's certificates"+files)
	fl.StringVar(&f.cert, "quorum-cert", "", "file of this node's client certificate for the etcd"+files)
	fl.StringVar(&f.key, "quorum-key", "", "file of the key of --quorum-cert; only the node's user may read it"+files)
}

// fromToken completes the flags from the token. A flag of the command line takes precedence.
func (f *quorumFlags) fromToken(q endpoint.TokenQuorum) error {
	if len(q.Endpoints) == 0 {
		if f.given() {
			return fail.Usagef("the quorum of this group is embedded in its nodes; join without --quorum-…")
		}
		return nil
	}
	if len(f.endpoints) == 0 {
		f.endpoints = q.Endpoints
	}
	for _, x := range []struct {
		own   *string
		token string
	}{{&f.ca, q.CA}, {&f.cert, q.Cert}, {&f.key, q.Key}} {
		if *x.own == "" {
			*x.own = x.token
		}
	}
	return nil
}

// given reports whether any of the flags was given.
func (f *quorumFlags) given() bool {
	return len(f.endpoints) > 0 || f.ca != "" || f.cert != "" || f.key != ""
}

// config returns the configuration of the external quorum; nil if the quorum is embedded.
func (f *quorumFlags) config() (*config.Quorum, error) {
	if !f.given() {
		return nil, nil //nolint:nilnil // an absent setting is not an error
	}
	q := &config.Quorum{Endpoints: f.endpoints, CA: f.ca, Cert: f.cert, Key: f.key}
	if err := (etcd.External{Endpoints: q.Endpoints, CAFile: q.CA, CertFile: q.Cert, KeyFile: q.Key}).Check(); err != nil {
		return nil, fail.Usagef("--quorum-endpoints: %w", err)
	}
	for _, path := range []string{f.ca, f.cert, f.key} {
		if path != "" && !strings.HasPrefix(path, "/") {
			return nil, fail.Usagef("%q: name the files of --quorum-ca, --quorum-cert and --quorum-key from / on: the agent may be started from anywhere", path)
		}
	}
	return q, nil
}
