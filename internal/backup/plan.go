package backup

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// Plan is where and how a group is backed up. A node with a plan can write to the archive and read from it. It holds
// nothing secret: see Secrets.
type Plan struct {
	Tool       string     `json:"tool"`     // the name of a Tool
	Stanza     string     `json:"stanza"`   // the name of the group's part of the repository
	Group      string     `json:"group_id"` // whose history it is
	Repository Repository `json:"repository"`
	Retention  int        `json:"retention"` // full backups that are kept
	Warn       Duration   `json:"warn_after"`
	Since      time.Time  `json:"since"`
}

// Duration is a time.Duration that is text in JSON, as 26h0m0s.
type Duration time.Duration

// MarshalText returns the duration as time.Duration writes it.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText reads what MarshalText writes.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	*d = Duration(v)
	return err
}

// DefaultWarn is how old the last backup may be by default: that of a daily job which takes two hours.
const DefaultWarn = 26 * time.Hour

// Repository is where backups and WAL are: a directory, or a bucket of an S3 store.
type Repository struct {
	Directory string `json:"directory,omitempty"`
	Bucket    string `json:"bucket,omitempty"`
	Prefix    string `json:"prefix,omitempty"` // in the bucket, beginning with /
	Endpoint  string `json:"endpoint,omitempty"`
	Region    string `json:"region,omitempty"`
	PathStyle bool   `json:"path_style,omitempty"` // the bucket is in the path of a URL, not in its host
	CA        string `json:"ca,omitempty"`         // file of the authorities that sign the endpoint's certificate; "": the system's
}

// Secrets are what a repository needs that nobody may see. They travel in the environment and in files, never in
// arguments.
type Secrets struct {
	Key        string // id of an S3 key
	Secret     string // the S3 key
	Passphrase string // with which the repository is encrypted; "": it is not
}

// ParseRepository reads the DIR or s3://BUCKET/PREFIX of a command line.
func ParseRepository(text string) (Repository, error) {
	if !strings.Contains(text, "://") {
		if !filepath.IsAbs(text) || strings.ContainsAny(text, "\n\r") {
			return Repository{}, fmt.Errorf("%q is no repository: give an absolute directory, which every replica reaches, or s3://BUCKET/PREFIX", text)
		}
		return Repository{Directory: filepath.Clean(text)}, nil
	}
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return Repository{}, errors.New("the repository is no URL: give s3://BUCKET/PREFIX") // the error may quote a password
	case u.User != nil:
		return Repository{}, errors.New("a repository's URL must have no key in it, because arguments are seen by everybody on the machine: use --secrets FILE")
	case u.Scheme != "s3" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" || strings.ContainsAny(u.Path, "\n\r"):
		return Repository{}, fmt.Errorf("%q is no repository: give an absolute directory or s3://BUCKET/PREFIX", text)
	}
	return Repository{Bucket: u.Host, Prefix: "/" + strings.Trim(u.Path, "/")}, nil
}

// S3 reports whether the repository is a bucket.
func (r Repository) S3() bool { return r.Bucket != "" }

// String returns the repository as it is given on a command line.
func (r Repository) String() string {
	if r.S3() {
		u := url.URL{Scheme: "s3", Host: r.Bucket, Path: strings.TrimSuffix(r.Prefix, "/")}
		return u.String()
	}
	return r.Directory
}

// bucketName is what the name of a bucket looks like. A port behind it means that an endpoint was given in its place.
var bucketName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,254}$`)

var stanzaName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$`)

// Check returns an error if the plan cannot be carried out, whatever the machine is like.
func (p Plan) Check(s Secrets) error {
	r := p.Repository
	switch {
	case !stanzaName.MatchString(p.Stanza):
		return fmt.Errorf("the name %q cannot be that of a stanza: name one with --stanza, of letters, digits and _ - . (63 at most)", p.Stanza)
	case p.Retention < 1 || p.Retention > 9999:
		return fmt.Errorf("%d full backups cannot be kept: give a number from 1 to 9999", p.Retention)
	case time.Duration(p.Warn) < time.Minute:
		return fmt.Errorf("%v is no age of a backup to be warned of", time.Duration(p.Warn))
	case r.S3() && !bucketName.MatchString(r.Bucket):
		return fmt.Errorf("%q is no bucket: give s3://BUCKET/PREFIX, and the store with --s3-endpoint", r.Bucket)
	case r.S3() && (r.Endpoint == "" || r.Region == ""):
		return errors.New("an S3 repository needs --s3-endpoint and --s3-region")
	case r.S3() && (s.Key == "" || s.Secret == ""):
		return errors.New("an S3 repository needs a key: in the environment as COTERIE_BACKUP_KEY and COTERIE_BACKUP_SECRET, or in a file with key=… and secret=…, named by --secrets")
	case !r.S3() && (r.Endpoint != "" || r.Region != "" || r.CA != "" || r.PathStyle):
		return errors.New("--s3-endpoint, --s3-region, --s3-path-style and --s3-ca-file belong to an S3 repository")
	}
	for _, text := range []string{r.Directory, r.Prefix, r.Bucket, r.Endpoint, r.Region, r.CA, s.Key, s.Secret, s.Passphrase} {
		if strings.ContainsAny(text, "\n\r") { // it would be another line of a configuration file
			return errors.New("a value of the repository has more than one line")
		}
		if strings.TrimSpace(text) != text { // the tool reads it without them
			return errors.New("a value of the repository begins or ends with spaces")
		}
	}
	if host, _, err := net.SplitHostPort(r.Endpoint); r.Endpoint != "" && (strings.Contains(r.Endpoint, "/") || err == nil && host == "") {
		return fmt.Errorf("--s3-endpoint %q: give HOST or HOST:PORT", r.Endpoint)
	}
	return nil
}

// Hide returns the text without any of the secrets.
func (s Secrets) Hide(text string) string {
	for _, x := range []string{s.Secret, s.Passphrase, s.Key} {
		if len(x) > 3 {
			text = strings.ReplaceAll(text, x, "[removed]")
		}
	}
	return text
}

// ParseSecrets reads a file of lines NAME=VALUE with the names key, secret and passphrase. Empty lines and those that
// begin with # are left out.
func ParseSecrets(text string) (s Secrets, err error) {
	into := map[string]*string{"key": &s.Key, "secret": &s.Secret, "passphrase": &s.Passphrase}
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		to := into[strings.TrimSpace(name)]
		if !ok || to == nil {
			return Secrets{}, fmt.Errorf("line %d of the file of secrets is none of key=…, secret=… and passphrase=…", n)
		}
		*to = strings.TrimSpace(value)
	}
	return s, nil
}
