package support

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// planted are texts with a secret each; every secret has the mark.
const mark = "hunter2"

var planted = []string{
	`primary_conninfo = 'host=db1 user=app password=hunter2xyz sslmode=require'`,
	`primary_conninfo = 'host=db1 password=''hunter2 two words'' user=app'`,
	`host=db1 password='hunter2 with spaces' dbname=x`,
	`host=db1 password = 'it\'s hunter2' dbname=x`,
	`postgresql://app:hunter2@db1:5432/orders?sslmode=require`,
	`postgres://app:p@ss/hunter2@db1/orders`,
	`PGPASSWORD=hunter2 psql -h db1`,
	`CREATE ROLE app LOGIN PASSWORD 'hunter2 and more'`,
	`alter role app encrypted password E'it\'s hunter2'`,
	`ALTER USER app PASSWORD $$hunter2$$`,
	`ALTER USER app PASSWORD $x$a hunter2 $x$`,
	"ALTER USER app PASSWORD 'two\nlines hunter2'",
	`ALTER USER app WITH PASSWORD U&'hunter2'`,
	`ALTER USER app PASSWORD 'cut off hunter2`,
	`{"password":"hunter2","user":"app"}`,
	`{\"password\":\"a hunter2\",\"user\":\"app\"}`,
	`{"client_secret": "hunter2"}`,
	`AWS_SECRET_ACCESS_KEY=hunter2/abc+def`,
	`repo1-s3-key-secret=hunter2`,
	`archive_command = 'TOKEN=hunter2 push %p'`,
	`ldap ldapserver=x ldapbindpasswd="hunter2 x" ldapbasedn="y"`,
	`radius radiusservers=x radiussecrets="hunter2"`,
	`Authorization: Bearer hunter2hunter2`,
	`authorization: Basic hunter2hunter2==`,
	`curl --token hunter2 https://example.org`,
	`tool --db-password 'hunter2 x'`,
	`ssl_passphrase_command = 'echo hunter2'`,
	`archive_command = '/bin/true hunter2'`,
	`archive_command = '/bin/true ''hunter2'''`,
	`ALTER SYSTEM SET restore_command TO 'cp hunter2'`,
	`{"parameters":{"archive_command":"/bin/true hunter2"}}`,
	`level=INFO msg=x change="archive_command=/bin/true hunter2"`,
	`2026-11-28 15:00:00 UTC [7] LOG:  parameter "archive_command" changed to "/bin/true "hunter2" x"`,
	`2026-11-28 15:00:00 UTC [7] LOG:  parameter "ssl_passphrase_command" changed to "echo hunter2"`,
	`2026-11-28 15:00:00 UTC [7] DETAIL:  The failed archive command was: /bin/true hunter2`,
	`level=INFO msg=x err="dial: password=hunter2 refused"`,
	`level=INFO msg=x err="conninfo password=\"hunter2 b\" refused"`,
	`api_key: hunter2`,
	`secret => 'hunter2'`,
	`db1:5432:*:app:hunter2`,
	`SCRAM-SHA-256$4096:hunter2salt==$hunter2stored=:hunter2server=`,
	`coterie1.hunter2AbC-_d`,
	`ghp_hunter2hunter2hunter2`,
	"-----BEGIN EC PRIVATE KEY-----\nhunter2\nhunter2\n-----END EC PRIVATE KEY-----",
	"hunter2AAA\nhunter2\n-----END PRIVATE KEY-----",
	"-----BEGIN PRIVATE KEY-----\nhunter2 was cut off",
}

// TestSecretsAreRemoved holds that none of the planted secrets survives, as a text, within a log and within a document.
func TestSecretsAreRemoved(t *testing.T) {
	all := strings.Join(planted[:len(planted)-3], "\nother words stay\n")
	for _, text := range append([]string{all}, planted...) {
		r := &Redactor{}
		if got := r.Text([]byte("begin\n" + text)); bytes.Contains(got, []byte(mark)) || r.Removed == 0 {
			t.Errorf("%s\nbecame\n%s", text, got)
		}
		raw, err := json.Marshal(map[string]any{"outer": []any{map[string]any{"text": text}}})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := r.JSON(raw); err != nil || bytes.Contains(got, []byte(mark)) || !json.Valid(got) {
			t.Errorf("%s\nwithin a document became\n%s, %v", text, got, err)
		}
	}
	for _, row := range []map[string]any{
		{"name": "app.api_key", "value": mark},
		{"name": "my.secret", "in_force": mark},
		{"name": "ssl_passphrase_command", "setting": mark, "group_value": mark},
		{"tokens": []string{mark}},
		{"name": "archive_command", "value": mark},
		{"parameters": map[string]any{"archive_command": mark}},
		{"secret_hash": mark},
		{"deep": map[string]any{"Password": mark}},
	} {
		raw, err := json.Marshal([]any{row})
		if err != nil {
			t.Fatal(err)
		}
		r := &Redactor{}
		if got, err := r.JSON(raw); err != nil || bytes.Contains(got, []byte(mark)) || r.Removed == 0 {
			t.Errorf("%v became %s, %v", row, got, err)
		}
	}
}

// TestTellingTextsStay holds that what helps is not taken for a secret.
func TestTellingTextsStay(t *testing.T) {
	for _, text := range []string{
		`FATAL:  password authentication failed for user "app"`,
		`level=INFO msg="the token was used" node=n2 epoch=7`,
		`2026-11-25 05:00:00.123 UTC [77] LOG:  redo starts at 0/15C05B0`,
		`pki/node.key 0600`,
		`key_pin: 7f83b1657ff1fc53b92dc18148a1d65dfc2d4b1fa3d677284addd200126d9069`,
		`listen: :5022`,
		`LOG:  parameter "work_mem" changed to "64MB"`,
		`level=INFO msg="archive_command is not set" node=n2`,
		`http://10.0.0.1:8008/metrics`,
	} {
		r := &Redactor{}
		if got := string(r.Text([]byte(text))); got != text || r.Removed != 0 {
			t.Errorf("%s became %s", text, got)
		}
	}
}

// TestStatementsAreRemoved holds that neither statements nor values of rows are left in a server's log.
func TestStatementsAreRemoved(t *testing.T) {
	log := `2026-11-25 05:00:00 UTC [7] LOG:  statement: insert into people values ('hunter2',
	'hunter2')
2026-11-25 05:00:00 UTC [7] LOG:  duration: 0.1 ms  execute s1: select 'hunter2'
2026-11-25 05:00:00 UTC [7] DETAIL:  Parameters: $1 = 'hunter2'
2026-11-25 05:00:00 UTC [7] ERROR:  duplicate key value violates unique constraint "people_pkey"
2026-11-25 05:00:00 UTC [7] DETAIL:  Key (name)=(hunter2) already exists.
2026-11-25 05:00:00 UTC [7] STATEMENT:  insert into people
	values ('hunter2')
2026-11-25 05:00:00 UTC [7] ERROR:  invalid input syntax for type integer: "hunter2"
2026-11-25 05:00:00 UTC [7] ERROR:  syntax error at or near "hunter2"
2026-11-25 05:00:00 UTC [7] ERROR:  date/time field value out of range: "hunter2"
2026-11-25 05:00:00 UTC [7] ERROR:  malformed array literal: "hunter2"
2026-11-25 05:00:00 UTC [7] CONTEXT:  SQL statement "select 'hunter2'"
2026-11-25 05:00:00 UTC [9] LOG:  could not send data to client: several
	lines
`
	r := &Redactor{}
	got := string(r.Statements([]byte(log)))
	for _, stays := range []string{"duplicate key value violates", "could not send data to client: several\n\tlines", `syntax error at or near [removed]`, "STATEMENT:  [removed]"} {
		if !strings.Contains(got, stays) {
			t.Errorf("%q is missing", stays)
		}
	}
	if strings.Contains(got, mark) {
		t.Errorf("left: %s", got)
	}
}

// TestStatementsOfAnotherLanguageAreRemoved holds the same of a server that does not log in English: its own words do
// not tell where a statement is.
func TestStatementsOfAnotherLanguageAreRemoved(t *testing.T) {
	for _, log := range []string{
		"05:00 UTC [7] FEHLER:  Division durch Null\n05:00 UTC [7] ANWEISUNG:  select 'hunter2',\n\t'hunter2'\n05:00 UTC [7] LOG:  Anweisung: select 'hunter2'\ncp: the archive\n",
		"05:00 UTC [7] ERREUR:  division par zéro\n05:00 UTC [7] INSTRUCTION\u00a0:  select 'hunter2',\n\t'hunter2'\ncp: the archive\n",
		"05:00 UTC [7] エラー:  0 による除算が行われました\n05:00 UTC [7] 文:  select 'hunter2'\ncp: the archive\n",
	} {
		r := &Redactor{}
		got := string(r.Statements([]byte(log)))
		if strings.Contains(got, mark) || !strings.HasPrefix(got, "05:00 UTC [7] ") || !strings.Contains(got, ":  [removed]\n") || !strings.HasSuffix(got, "cp: the archive\n") {
			t.Errorf("%s\nbecame\n%s", log, got)
		}
	}
}

// TestLogsThatAreCut holds that neither a secret nor a statement is left whose beginning is in the part of a long log
// that is left out.
func TestLogsThatAreCut(t *testing.T) {
	dir := t.TempDir()
	const secret, end = "password=hunter2\n", "05:00 UTC [7] LOG:  the end\n"
	kept := len(secret) - len("pass")
	put(t, filepath.Join(dir, "log/agent.log"), secret+strings.Repeat(".", MaxPart-kept-len(end)-1)+"\n"+end)
	put(t, filepath.Join(dir, "log/postgres.log"), "05:00 UTC [7] STATEMENT:  select "+strings.Repeat("'hunter2'", MaxPart/9)+"\n\t'hunter2'\n"+end)
	var packed bytes.Buffer
	b := NewBundle(&packed, "b", time.Now())
	b.Node(dir, false)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	files := unpack(t, packed.Bytes())
	for _, name := range []string{"log/agent.log", "log/postgres.log"} {
		if text := files[name]; strings.Contains(text, mark) || !strings.HasSuffix(text, end) {
			t.Errorf("%s ends with %q and begins with %q", name, text[max(0, len(text)-200):], text[:min(len(text), 200)])
		}
	}
}

// unpack returns the files of a bundle by name, without their folder.
func unpack(t *testing.T, packed []byte) map[string]string {
	t.Helper()
	gz, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for r := tar.NewReader(gz); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[strings.TrimPrefix(h.Name, "b/")] = string(data)
	}
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestNodeDirectory plants secrets in every file that is read, the node's own key in a log among them, and finds none.
func TestNodeDirectory(t *testing.T) {
	dir := t.TempDir()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	keyText := string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	keyLine := strings.Split(keyText, "\n")[1]
	everything := strings.Join(planted[:len(planted)-3], "\n") + "\nwas read: " + keyLine + "\nwas refused: correct horse hunter2\nERROR: battery/hunter2+x\nthe end\n"
	put(t, filepath.Join(dir, "backup/pgbackrest.conf"), "[global]\nrepo1-cipher-pass=correct horse hunter2\n")
	put(t, filepath.Join(dir, "backup/conf.d/own.conf"), "[global]\nrepo2-s3-key-secret = battery/hunter2+x\n")
	put(t, filepath.Join(dir, "pki/node.key"), keyText)
	put(t, filepath.Join(dir, "coterie.yaml"), "node: n1\n"+everything)
	put(t, filepath.Join(dir, "state/group.json"), `{"tokens":[{"secret_hash":"hunter2"}],"name":"orders","note":"postgres://a:hunter2@h/x"}`)
	put(t, filepath.Join(dir, "state/broken.json"), everything)
	put(t, filepath.Join(dir, "state/pg_hba.conf"), everything)
	put(t, filepath.Join(dir, "state/decisions.jsonl"), everything)
	for _, log := range []string{"agent", "keeper", "postgres"} {
		put(t, filepath.Join(dir, "log", log+".log"), everything)
	}
	outside := filepath.Join(t.TempDir(), "outside")
	put(t, outside, "not to be read")
	if err := os.Symlink(outside, filepath.Join(dir, "state/link.json")); err != nil {
		t.Fatal(err)
	}
	var packed bytes.Buffer
	b := NewBundle(&packed, "b", time.Now())
	b.Host(dir)
	b.Node(dir, true)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	files := unpack(t, packed.Bytes())
	for name, text := range files {
		if strings.Contains(text, mark) || strings.Contains(text, keyLine) || strings.Contains(text, "not to be read") {
			t.Errorf("%s has a secret:\n%s", name, text)
		}
	}
	for name, has := range map[string]string{
		"coterie.yaml": "node: n1", "state/group.json": `"name": "orders"`, "log/agent.log": "the end", "log/keeper.log": "the end", "log/postgres.log": "the end",
		"files.txt": "pki/node.key", "version.json": "go1", "host/facts.json": "kernel", "README.txt": "state/link.json", "host/proc-meminfo.txt": "MemTotal",
	} {
		if !strings.Contains(files[name], has) {
			t.Errorf("%s lacks %q: %.300s", name, has, files[name])
		}
	}
	if _, has := files["pki/node.key"]; has {
		t.Error("the key is in the bundle")
	}
}

// TestBundleIsBounded holds that no part and no bundle is larger than promised, that logs keep their end, and that the
// list of the parts says what was left out.
func TestBundleIsBounded(t *testing.T) {
	var packed bytes.Buffer
	b := NewBundle(&packed, "b", time.Now())
	long := bytes.Repeat([]byte("0123456789abcdef\n"), MaxPart/17+100)
	for i := range MaxBytes/MaxPart + 2 {
		b.Log("log/"+string(rune('a'+i))+".log", append(long, "the end\n"...))
	}
	b.Text("text", []byte("late"))
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	files := unpack(t, packed.Bytes())
	total := 0
	for _, text := range files {
		total += len(text)
		if len(text) > MaxPart {
			t.Error("a part is too long")
		}
	}
	if total > MaxBytes || !strings.HasSuffix(files["log/a.log"], "the end\n") || !strings.HasPrefix(files["log/a.log"], "0123") {
		t.Errorf("%d bytes in all; the first log ends with %q", total, files["log/a.log"][max(0, len(files["log/a.log"])-20):])
	}
	if !strings.Contains(files["README.txt"], "the beginning is left out") || !strings.Contains(files["README.txt"], "\ntext ") {
		t.Error(files["README.txt"])
	}
}
