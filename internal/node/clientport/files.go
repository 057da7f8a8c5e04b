package clientport

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/listener"
	"github.com/coteriedb/coterie/internal/listener/clientcert"
	"github.com/coteriedb/coterie/internal/listener/hba"
)

// lookAgain is how often files that could not be used are read again.
const lookAgain = 2 * time.Second

// The settings of coterie.yaml whose files decide who is admitted.
const (
	settingHBA = "hba"
	settingCA  = "client_ca"
	settingCRL = "client_crl"
)

// unchecked are rules of the group that ask for client certificates on a node that has no authorities for them.
const unchecked = "rules with cert"

// files has what is wrong with the files that decide who is admitted. A file that cannot be used ends neither the
// node's vote nor its replication: the logins that depend on it are refused.
type files struct {
	apply  sync.Mutex // held from reading the rules until they are in force; guards closed
	closed bool       // the rules have not been read yet
	judges atomic.Pointer[judgement]

	mu  sync.Mutex        // guards bad
	bad map[string]string // what is wrong, by setting
}

// judgement is what logins are judged by.
type judgement struct {
	rules   []hba.Rule
	source  string // the file of this node's own rules, ofTheGroup or byDefault
	written int    // how many are written: without what tls_only adds
	digest  string // of those
}

// The sources of rules that are not a file of this node's own.
const (
	ofTheGroup = "the group"
	byDefault  = "default"
)

// LoginProblems returns the reasons for which clients are refused that coterie.yaml would admit.
func (p *Port) LoginProblems() (out []string) {
	p.files.mu.Lock()
	defer p.files.mu.Unlock()
	for _, text := range p.files.bad {
		out = append(out, text)
	}
	slices.Sort(out)
	return out
}

// bad reports whether what the setting names could not be used.
func (p *Port) bad(setting string) bool {
	p.files.mu.Lock()
	defer p.files.mu.Unlock()
	return p.files.bad[setting] != ""
}

// note records whether what the setting names can be used. effect says what follows from an error. It returns err.
func (p *Port) note(setting, effect string, err error) error {
	text := ""
	if err != nil {
		text = effect + ": " + strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	p.files.mu.Lock()
	before := p.files.bad[setting]
	if err == nil {
		delete(p.files.bad, setting)
	} else if p.files.bad == nil {
		p.files.bad = map[string]string{setting: text}
	} else {
		p.files.bad[setting] = text
	}
	p.files.mu.Unlock()
	switch {
	case text == before:
	case err != nil:
		p.c.Logger.Error("logins are refused, or judged by what was read before", "setting", setting, "err", text)
	default:
		p.c.Logger.Info("logins are not refused for this any more", "setting", setting)
	}
	return err
}

// keepFiles reads files that could not be used again, until ctx is done.
func (p *Port) keepFiles(ctx context.Context) error {
	for retry.Sleep(ctx, boottime.UntilNext(lookAgain)) == nil {
		if p.bad(settingHBA) {
			p.renewRules()
		}
		if p.bad(settingCA) {
			_ = p.loadClientCAs()
		}
		if p.bad(settingCRL) {
			_ = p.loadClientCRL()
		}
	}
	return nil
}

func (p *Port) loadCertificate() error {
	cert, err := tls.LoadX509KeyPair(certs.ListenerFiles(p.c.Layout.PKI()))
	if err != nil {
		return fmt.Errorf("listener certificate: %w", err)
	}
	p.cert.Store(&cert)
	return nil
}

// loadClientCertificates reads the authorities and the revocation lists of client certificates, if coterie.yaml names
// any. After an error those read before stay in force.
func (p *Port) loadClientCertificates() error {
	return errors.Join(p.loadClientCAs(), p.loadClientCRL())
}

func (p *Port) loadClientCAs() error {
	if p.c.Node.ClientCA == "" {
		return nil
	}
	pool, err := clientcert.Authorities(p.c.Node.ClientCA)
	if err == nil {
		p.clientCAs.Store(pool)
	} else {
		err = fmt.Errorf("authorities of client certificates (client_ca): %w", err)
	}
	return p.note(settingCA, effectOnCertificates(p.clientCAs.Load() != nil), err)
}

func (p *Port) loadClientCRL() error {
	if p.c.Node.ClientCRL == "" {
		return nil
	}
	said := func(err error) error {
		if err != nil {
			err = fmt.Errorf("revocation lists of client certificates (client_crl): %w", err)
		}
		return p.note(settingCRL, effectOnCertificates(p.clientCRL.Load() != nil), err)
	}
	if old := p.clientCRL.Load(); old != nil {
		return said(old.Read())
	}
	crl, err := clientcert.Open(p.c.Node.ClientCRL, func(err error) { _ = said(err) })
	if err == nil {
		p.clientCRL.Store(crl)
	}
	return said(err)
}

// readSecrets reads the secrets that the listeners of a group have in common. Without them each node has its own: salts
// of unknown users differ, and long cancel keys are known on their own node only.
func (p *Port) readSecrets(c *listener.Config) {
	salts, err := certs.Salts(p.c.Layout.PKI())
	if err == nil {
		c.MockSecret = func() []byte { return salts }
	}
	keys, errKeys := certs.NewSecret(p.c.Layout.PKI(), "listener")
	if errKeys == nil {
		c.KeySecret = keys.Get
	}
	if err = errors.Join(err, errKeys); err != nil {
		p.c.Logger.Warn("the listeners' common secrets cannot be read", "error", err)
	}
}

// effectOnCertificates returns the effect of authorities or revocation lists that cannot be used, in words; before
// reports that earlier ones are in force.
func effectOnCertificates(before bool) string {
	if before {
		return "client certificates are judged by what was read before"
	}
	return "no client is admitted by its certificate"
}

// authorities returns the authorities of client certificates; nil: no client is asked for one, and rules that require
// one refuse every client.
func (p *Port) authorities() *x509.CertPool {
	if p.c.Node.ClientCRL != "" && p.clientCRL.Load() == nil {
		return nil // which of their certificates are revoked is not known
	}
	return p.clientCAs.Load()
}

// checkClient returns an error if every one of the chains has a revoked certificate, or one that cannot be checked.
func (p *Port) checkClient(chains [][]*x509.Certificate) error {
	if crl := p.clientCRL.Load(); crl != nil {
		return crl.Check(chains, time.Now())
	}
	if p.c.Node.ClientCRL != "" {
		return clientcert.ErrNoList
	}
	return nil
}

// firstRules returns the rules with which the ports open. Where they cannot be used, only the node's own user is
// admitted, on a Unix socket of this machine.
func (p *Port) firstRules() []hba.Rule {
	p.files.apply.Lock()
	defer p.files.apply.Unlock()
	p.files.closed = true
	j, err := p.readRules()
	if err != nil {
		rules, text := closedRules()
		j = judgement{rules, text, len(rules), hba.Digest(rules)}
	}
	p.files.judges.Store(&j)
	return j.rules
}

// closedRules returns the rules that admit nobody but the node's own user on a Unix socket, and says that.
func closedRules() (rules []hba.Rule, text string) {
	all := []hba.Name{{Text: "all"}}
	rules = []hba.Rule{
		{Type: hba.TypeLocal, Databases: all, Users: all, Method: hba.MethodReject},
		{Type: hba.TypeHost, Databases: all, Users: all, AnyAddress: true, Method: hba.MethodReject},
	}
	me, err := user.LookupId(strconv.Itoa(os.Geteuid()))
	if err != nil {
		return rules, "nobody is admitted"
	}
	own := hba.Rule{Type: hba.TypeLocal, Databases: all, Users: []hba.Name{{Text: me.Username, Quoted: true}}, Method: hba.MethodPeer}
	return append([]hba.Rule{own}, rules...), fmt.Sprintf("nobody but %s on a Unix socket of its machine is admitted", me.Username)
}

// renewRules puts the rules in force that are configured now. After an error those before stay in force.
func (p *Port) renewRules() {
	p.files.apply.Lock()
	defer p.files.apply.Unlock()
	if j, err := p.readRules(); err == nil {
		p.setRules(j)
	}
}

// setRules puts rules in force where clients, or users of a witness's console, log in.
func (p *Port) setRules(j judgement) {
	if s := p.server.Load(); s != nil {
		s.SetRules(j.rules)
	}
	if p.watch != nil {
		p.watch.rules.Store(&j.rules)
	}
	p.files.judges.Store(&j)
}

// readRules is rules, and notes an error. The caller has locked files.apply until the rules are in force.
func (p *Port) readRules() (judgement, error) {
	effect := "the rules that were read before stay in force"
	if p.files.closed {
		_, effect = closedRules()
	}
	j, err := p.rules()
	if err == nil {
		p.files.closed = false
		_ = p.note(unchecked, "the rules that ask for client certificates admit nobody", p.checkable(j))
	}
	return j, p.note(settingHBA, effect, err)
}

// checkable returns an error if rules ask for client certificates that this node cannot check. A file of its own with
// such rules is refused; another node's directory brought those of the group, and its other rules are good.
func (p *Port) checkable(j judgement) error {
	if p.c.Node.ClientCA == "" && hba.AskForCertificates(j.rules) {
		return errors.New("client_ca in coterie.yaml names no authorities")
	}
	return nil
}

// rules returns the rules for logins: those of this node's own file if coterie.yaml names one, else the group's, else
// scram-sha-256 for every client. Whichever they are, tls_only refuses clients without TLS.
func (p *Port) rules() (judgement, error) {
	rules, source, err := p.writtenRules()
	j := judgement{rules, source, len(rules), hba.Digest(rules)}
	if err == nil && p.c.Node.TLSOnly {
		j.rules = hba.OverTLS(rules)
	}
	return j, err
}

// writtenRules returns the rules as they are written, and where.
func (p *Port) writtenRules() (rules []hba.Rule, source string, err error) {
	if p.c.Node.HBA != "" {
		rules, err := hba.ParseFile(p.c.Node.HBA)
		if err != nil {
			return nil, "", fmt.Errorf("listener rules in %s: %w", p.c.Node.HBA, err)
		}
		if p.checkable(judgement{rules: rules}) != nil {
			return nil, "", fmt.Errorf("listener rules in %s: client certificates can only be checked if client_ca in coterie.yaml names the file of their authorities", p.c.Node.HBA)
		}
		return rules, p.c.Node.HBA, nil
	}
	text := ""
	if g := p.c.Group(); g != nil {
		text = g.HBA
	}
	if text == "" {
		return hba.DefaultRules(p.c.Node.TLSOnly), byDefault, nil
	}
	rules, err = hba.Parse(strings.NewReader(text))
	if err != nil {
		return nil, "", fmt.Errorf("listener rules in the group's record: %w", err)
	}
	return rules, ofTheGroup, nil
}
