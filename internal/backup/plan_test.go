package backup

import (
	"strings"
	"testing"
	"time"
)

// TestParseRepository holds which repositories are understood, and that a key in a URL is refused and not repeated.
func TestParseRepository(t *testing.T) {
	for in, want := range map[string]string{
		"/backup": "/backup", "/backup/": "/backup", "s3://b/a/c/": "s3://b/a/c", "s3://b": "s3://b", "s3://b/": "s3://b",
		"s3://b/a%25b c": "s3://b/a%25b%20c", "s3://b/a%3Fb": "s3://b/a%3Fb", // what is printed is read as the same
		"backup": "", "": "", "gs://b/a": "", "s3:///a": "", "s3://b/a?x=y": "", "/a\nb": "", "s3://key:planted@b/a": "", "s3://%zz:planted@b": "",
	} {
		r, err := ParseRepository(in)
		if (err == nil) != (want != "") || err == nil && r.String() != want || err != nil && strings.Contains(err.Error(), "planted") {
			t.Errorf("%q: %q, %v", in, r, err)
		}
	}
}

func whole() (Plan, Secrets) {
	return Plan{Tool: "pgbackrest", Stanza: "orders", Retention: 2, Warn: Duration(DefaultWarn), Repository: Repository{Directory: "/backup"}}, Secrets{}
}

// TestPlanCheck holds what cannot be carried out on any machine, and that no secret is in the refusal.
func TestPlanCheck(t *testing.T) {
	s3 := Repository{Bucket: "b", Prefix: "/", Endpoint: "s3.example.org:9000", Region: "eu"}
	key := Secrets{Key: "planted-id", Secret: "planted-key"}
	for name, tt := range map[string]struct {
		change func(p *Plan, s *Secrets)
		says   string
	}{
		"a directory":    {func(*Plan, *Secrets) {}, ""},
		"a bucket":       {func(p *Plan, s *Secrets) { p.Repository, *s = s3, key }, ""},
		"encrypted":      {func(_ *Plan, s *Secrets) { s.Passphrase = "planted" }, ""},
		"no key":         {func(p *Plan, _ *Secrets) { p.Repository = s3 }, "COTERIE_BACKUP_KEY"},
		"no region":      {func(p *Plan, s *Secrets) { p.Repository, *s = s3, key; p.Repository.Region = "" }, "--s3-region"},
		"a region":       {func(p *Plan, _ *Secrets) { p.Repository.Region = "eu" }, "belong to an S3 repository"},
		"a URL":          {func(p *Plan, s *Secrets) { p.Repository, *s = s3, key; p.Repository.Endpoint = "https://x" }, "HOST or HOST:PORT"},
		"two lines":      {func(p *Plan, s *Secrets) { p.Repository, *s = s3, key; s.Secret = "planted\nrepo1-path=/" }, "more than one line"},
		"a stanza":       {func(p *Plan, _ *Secrets) { p.Stanza = "a/../b" }, "--stanza"},
		"a port":         {func(p *Plan, s *Secrets) { p.Repository, *s = s3, key; p.Repository.Bucket = "s3.example.org:9000" }, "is no bucket"},
		"a space":        {func(p *Plan, _ *Secrets) { p.Repository.Directory = "/backup " }, "ends with spaces"},
		"keep none":      {func(p *Plan, _ *Secrets) { p.Retention = 0 }, "1 to 9999"},
		"warn at once":   {func(p *Plan, _ *Secrets) { p.Warn = Duration(time.Second) }, "age"},
		"a shell's word": {func(p *Plan, _ *Secrets) { p.Stanza = "a;b" }, "--stanza"},
	} {
		p, s := whole()
		tt.change(&p, &s)
		err := p.Check(s)
		if (err == nil) != (tt.says == "") || err != nil && (!strings.Contains(err.Error(), tt.says) || strings.Contains(err.Error(), "planted")) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestSecrets holds the file of secrets, and that they are taken out of texts.
func TestSecrets(t *testing.T) {
	s, err := ParseSecrets("# of the bucket\nkey = planted-id\n\nsecret=planted=key\npassphrase=planted words\n")
	if err != nil || s != (Secrets{"planted-id", "planted=key", "planted words"}) {
		t.Errorf("%+v, %v", s, err)
	}
	if got := s.Hide("ERROR: planted=key of planted-id, planted words"); strings.Contains(got, "planted") {
		t.Error(got)
	}
	for _, bad := range []string{"key", "password=planted", "planted"} {
		if _, err := ParseSecrets(bad); err == nil || strings.Contains(err.Error(), "planted") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
