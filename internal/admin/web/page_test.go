package web

import (
	"bytes"
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/coteriedb/coterie/internal/lib/admission"
)

// maxPage is how many bytes the first screen may take, compressed.
const maxPage = 150 << 10

// TestPageIsSmall holds that the page takes few bytes: all of its files, since the first screen loads them all.
func TestPageIsSmall(t *testing.T) {
	t.Parallel()
	sum := 0
	for name, f := range files() {
		if f.kind == "" {
			t.Errorf("%s has no type", name)
		}
		sum += len(f.small)
	}
	if sum == 0 || sum > maxPage {
		t.Errorf("the page takes %d bytes compressed, and may take %d", sum, maxPage)
	}
	t.Logf("%d files, %d bytes compressed", len(files()), sum)
}

// TestFirstScreenNeedsFewRequests holds that a browser asks for four files, and that none of them makes it ask for
// another: over HTTP/1.1 each would wait for a connection.
func TestFirstScreenNeedsFewRequests(t *testing.T) {
	t.Parallel()
	if names, want := slices.Sorted(maps.Keys(files())), []string{"/app.js", "/icon.svg", "/index.html", "/style.css"}; !slices.Equal(names, want) {
		t.Errorf("the page is %v, want %v", names, want)
	}
	if m := regexp.MustCompile(`(?m)^(import|export)\b.*`).Find(files()["/app.js"].plain); m != nil {
		t.Errorf("the script has %q", m)
	}
}

// foreign finds what would leave the port or break the policy: addresses, text that becomes HTML, code and style
// inline.
var foreign = regexp.MustCompile(`(?i)https?://|//[a-z0-9-]+\.[a-z]|innerHTML|outerHTML|insertAdjacent|document\.write|\beval\(|new Function|@import|\sstyle=|\son[a-z]+="|<script(?:>| [^>]*[^>]>[^<])|<style`)

// TestPageAsksNobodyElse holds that no file of the page names another host, and none needs an exception of the policy.
func TestPageAsksNobodyElse(t *testing.T) {
	t.Parallel()
	for name, f := range files() {
		text := strings.ReplaceAll(string(f.plain), "http://www.w3.org/2000/svg", "")
		if m := foreign.FindString(text); m != "" {
			t.Errorf("%s has %q", name, m)
		}
	}
}

// TestFilesAreCompressed holds that a browser which takes gzip gets it, and asks for a file that it has by its tag.
func TestFilesAreCompressed(t *testing.T) {
	t.Parallel()
	b := serve(t, newGroup())
	_, body, h := b.do("GET", "/", "", "Accept-Encoding", "gzip")
	if h.Get("Content-Encoding") != "gzip" || !bytes.Equal(body, files()["/index.html"].small) {
		t.Errorf("headers %v", h)
	}
	if code, _, _ := b.do("GET", "/", "", "If-None-Match", h.Get("ETag")); code != 304 {
		t.Errorf("a file that the browser has: %d", code)
	}
}

// TestOpenAPI holds that the description has the paths that are served and no others, and that answers are as it says.
func TestOpenAPI(t *testing.T) {
	t.Parallel()
	var doc struct {
		OpenAPI string `json:"openapi"`
		Paths   map[string]map[string]struct {
			Summary    string `json:"summary"`
			Parameters []struct {
				Name string `json:"name"`
			} `json:"parameters"`
			Security  *[]any `json:"security"`
			Responses map[string]struct {
				Content map[string]struct {
					Schema json.RawMessage `json:"schema"`
				} `json:"content"`
			} `json:"responses"`
		} `json:"paths"`
	}
	if err := json.Unmarshal(openAPIDocument, &doc); err != nil || !strings.HasPrefix(doc.OpenAPI, "3.1") {
		t.Fatalf("version %q, %v", doc.OpenAPI, err)
	}
	for _, kind := range []string{"reset", "event", "status", "operation", "ended"} {
		if !strings.Contains(doc.Paths["/api/v1/events"]["get"].Summary, kind) {
			t.Errorf("the message %s of a stream is not described", kind)
		}
	}
	for name := range examples {
		var headers []string
		for _, x := range doc.Paths["/api/v1/"+name]["post"].Parameters {
			headers = append(headers, x.Name)
		}
		if !slices.Equal(headers, []string{"Idempotency-Key", "Prefer"}) {
			t.Errorf("%s: the headers %v are described", name, headers)
		}
	}
	served := map[string]bool{}
	for _, x := range routes {
		served[x.path+" "+strings.ToLower(x.method)] = true
		op, ok := doc.Paths[x.path][strings.ToLower(x.method)]
		if !ok {
			t.Errorf("%s %s is not described", x.method, x.path)
			continue
		}
		if public := op.Security != nil && len(*op.Security) == 0; public != x.public {
			t.Errorf("%s %s: public is %v in the description", x.method, x.path, public)
		}
	}
	for path, methods := range doc.Paths {
		for method := range methods {
			if !served[path+" "+method] {
				t.Errorf("%s %s is described and not served", method, path)
			}
		}
	}
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource("file:///openapi.json", decode(t, openAPIDocument)); err != nil {
		t.Fatal(err)
	}
	check := func(path, method, code string, body []byte) {
		t.Helper()
		at := "file:///openapi.json#/paths/" + strings.ReplaceAll(strings.ReplaceAll(path, "~", "~0"), "/", "~1") + "/" + method + "/responses/" + code + "/content/application~1json/schema"
		schema, err := compiler.Compile(strings.NewReplacer("{", "%7B", "}", "%7D").Replace(at))
		if err != nil {
			t.Fatal(err)
		}
		if err := schema.Validate(decode(t, body)); err != nil {
			t.Errorf("%s %s: %v", method, path, err)
		}
	}
	b := serve(t, newGroup())
	b.s.deeds.budget = admission.NewBudget(allDeeds, allDeeds, 8) // one role asks for every change
	for _, x := range routes {
		if !x.public {
			path, body := x.example()
			_, text, _ := b.do(x.method, path, body)
			check(x.path, strings.ToLower(x.method), "default", text)
		}
	}
	_, text, _ := b.do("POST", "/api/v1/session", `{"user":"anna","password":"right"}`)
	check("/api/v1/session", "post", "200", text)
	for _, x := range slices.SortedFunc(slices.Values(routes), func(a, b route) int { return strings.Compare(b.method, a.method) }) {
		if x.method == "DELETE" || x.path == "/api/v1/session" && x.method == "POST" {
			continue
		}
		path, body := x.example()
		if all := b.s.deeds.all(); len(all) > 0 {
			path = strings.Replace(path, "none", all[0].ID, 1)
		}
		code, text, _ := b.do(x.method, path, body)
		if code != 200 {
			t.Errorf("%s %s: %d", x.method, path, code)
		}
		check(x.path, strings.ToLower(x.method), "200", text)
	}
}

// TestOpenAPINamesTheRole asks for every path in each role, and holds that the description names the least role that is
// let through, or none where a viewer is.
func TestOpenAPINamesTheRole(t *testing.T) {
	t.Parallel()
	var doc struct {
		Paths map[string]map[string]struct {
			Summary string `json:"summary"`
		} `json:"paths"`
	}
	if err := json.Unmarshal(openAPIDocument, &doc); err != nil {
		t.Fatal(err)
	}
	roles := []struct{ user, named string }{{"vera", ""}, {"olaf", "(coterie_operator)"}, {"anna", "(coterie_admin)"}}
	for _, x := range routes {
		if x.public {
			continue
		}
		said, least := doc.Paths[x.path][strings.ToLower(x.method)].Summary, "nobody"
		for _, r := range slices.Backward(roles) {
			b := serve(t, newGroup())
			b.logIn(r.user)
			path, body := x.example()
			if code, _, _ := b.do(x.method, path, body); code != 401 && code != 403 {
				least = r.named
			}
		}
		for _, r := range roles[1:] {
			if strings.Contains(said, r.named) != (least == r.named) {
				t.Errorf("%s %s: the least role that is let through is %q, and the description says %q", x.method, x.path, least, said)
			}
		}
	}
}
