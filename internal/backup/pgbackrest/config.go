package pgbackrest

import (
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/backup"
)

// Name is the name of this tool in a plan.
const Name = "pgbackrest"

// ConfigFile is the name of the program's configuration in a node's directory of backups.
const ConfigFile = "pgbackrest.conf"

// Server is the server that is backed up.
type Server struct {
	Data      string // its data directory
	Socket    string // directory of its socket; "": there is no server, as for a restore
	Superuser string
}

// Config returns the program's configuration for a plan, with the secrets in it. Its directory is that of the file.
func Config(p backup.Plan, s backup.Secrets, on Server, dir string) string {
	var b strings.Builder
	line := func(name, value string) { _, _ = fmt.Fprintf(&b, "%s=%s\n", name, value) }
	b.WriteString("# Written by coterie backup enable, which writes it anew. Options of your own: conf.d/*.conf beside it.\n[global]\n")
	repository(line, p.Repository, s)
	line("repo1-retention-full", fmt.Sprint(p.Retention))
	line("start-fast", "y")
	line("compress-type", "zst")
	line("log-level-file", "off")
	line("log-level-console", "warn")
	line("log-path", filepath.Join(dir, "log"))
	line("lock-path", filepath.Join(dir, "lock"))
	line("spool-path", filepath.Join(dir, "spool"))
	if p.Repository.S3() {
		silences(&b)
	}
	if p.Stanza == "" { // it is asked which there are
		return b.String()
	}
	_, _ = fmt.Fprintf(&b, "\n[%s]\n", p.Stanza)
	line("pg1-path", on.Data)
	if on.Socket != "" {
		line("pg1-socket-path", on.Socket)
		line("pg1-port", "5432")
		line("pg1-user", on.Superuser)
	}
	return b.String()
}

// The program waits for each file of an S3 store four times the io-timeout, by default four minutes, before it says
// that the store is away. A question, and archiving, read two files at most. All others keep the default: a backup
// outlasts a pause of the store, and to a recovery a segment that cannot be read is the end of the archive.
const (
	askSilence  = 5 * time.Second
	pushSilence = 15 * time.Second
)

// silences writes how long a store may say nothing to a command. An administrator's section [STANZA:COMMAND] goes
// before these.
func silences(b *strings.Builder) {
	for _, command := range []string{"info", "repo-get", "repo-ls", "repo-put", "repo-rm"} {
		_, _ = fmt.Fprintf(b, "\n[global:%s]\nio-timeout=%.0f\n", command, askSilence.Seconds())
	}
	for _, command := range []string{"archive-push", "check", "stanza-create", "stanza-upgrade"} {
		_, _ = fmt.Fprintf(b, "\n[global:%s]\nio-timeout=%.0f\n", command, pushSilence.Seconds())
	}
}

func repository(line func(name, value string), r backup.Repository, s backup.Secrets) {
	if s.Passphrase != "" {
		line("repo1-cipher-type", "aes-256-cbc")
		line("repo1-cipher-pass", s.Passphrase)
	}
	if !r.S3() {
		line("repo1-path", r.Directory)
		return
	}
	line("repo1-type", "s3")
	line("repo1-path", r.Prefix)
	line("repo1-s3-bucket", r.Bucket)
	line("repo1-s3-endpoint", r.Endpoint)
	line("repo1-s3-region", r.Region)
	line("repo1-s3-key", s.Key)
	line("repo1-s3-key-secret", s.Secret)
	if r.PathStyle {
		line("repo1-s3-uri-style", "path")
	}
	if r.CA != "" {
		line("repo1-storage-ca-file", r.CA)
	}
}

// SecretsOf returns the secrets in a configuration that Config has written.
func SecretsOf(config string) (s backup.Secrets) {
	into := map[string]*string{"repo1-s3-key": &s.Key, "repo1-s3-key-secret": &s.Secret, "repo1-cipher-pass": &s.Passphrase}
	for line := range strings.Lines(config) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && into[name] != nil {
			*into[name] = value
		}
	}
	return s
}
