package adopt

import (
	"errors"
	"testing"
)

// TestClientCertificatesOfACluster takes over authorities and revocation lists, and refuses lists that the listener
// cannot use: what they revoke would be good again.
func TestClientCertificatesOfACluster(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		settings map[string]string
		unusable bool
		ca, crl  string
		refused  bool
	}{
		"none":               {},
		"authorities":        {settings: map[string]string{"ssl_ca_file": "ca.pem"}, ca: "/data/ca.pem"},
		"a file of lists":    {settings: map[string]string{"ssl_ca_file": "/etc/ca.pem", "ssl_crl_file": "crl.pem"}, ca: "/etc/ca.pem", crl: "/data/crl.pem"},
		"a directory":        {settings: map[string]string{"ssl_ca_file": "ca.pem", "ssl_crl_dir": "/etc/crl"}, ca: "/data/ca.pem", crl: "/etc/crl"},
		"lists that are bad": {settings: map[string]string{"ssl_ca_file": "ca.pem", "ssl_crl_dir": "/etc/crl"}, unusable: true, ca: "/data/ca.pem", crl: "/etc/crl", refused: true},
		"two places":         {settings: map[string]string{"ssl_ca_file": "ca.pem", "ssl_crl_file": "crl.pem", "ssl_crl_dir": "/etc/crl"}, ca: "/data/ca.pem", refused: true},
		"nobody is asked":    {settings: map[string]string{"ssl_crl_file": "crl.pem"}, unusable: true},
	} {
		x := &inspection{Report: Report{Cluster: Cluster{Data: "/data"}}}
		x.opt.CheckCRL = func(string) error {
			if tt.unusable {
				return errors.New("no list")
			}
			return nil
		}
		x.checkClientCertificates(func(s string) string { return tt.settings[s] })
		if x.ClientCA != tt.ca || x.ClientCRL != tt.crl || (len(x.Refusals) > 0) != tt.refused {
			t.Errorf("%s: authorities %q, lists %q, refusals %v", name, x.ClientCA, x.ClientCRL, x.Refusals)
		}
	}
}
