package provision

import (
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/endpoint"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/lib/fault"
	"github.com/coteriedb/coterie/internal/node/membership"
)

// WriteJoined writes the files that an admitted node needs to start: certificates, the group as granted, and the
// configuration. install writes the node's own certificate.
func WriteJoined(l config.Layout, cfg config.Config, grant endpoint.JoinGrant, install func() (*certs.Node, error)) error {
	if _, err := install(); err != nil {
		return err
	}
	fault.Point("join.identity") // the joiner has its identity; it knows no group
	if cfg.Kind == "replica" {
		ca, err := certs.LoadCA(l.PKI())
		if err != nil {
			return err
		}
		if err := issueListener(l, ca, config.CertificateHosts(cfg)); err != nil {
			return err
		}
	} else {
		cfg.ReadWrite, cfg.ReadOnly = config.Address{}, config.Address{}
	}
	fault.Point("join.listener") // the joiner has its certificates; it knows no group
	if err := membership.SaveGroup(l, grant.Group); err != nil {
		return err
	}
	fault.Point("join.group") // the joiner knows the group; it has no configuration
	return cfg.Save(l.Dir)
}
