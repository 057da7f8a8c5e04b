package jsbundle

import (
	"strings"
	"testing"
)

// TestBundle holds the whole text of a small bundle, in which two modules import each other.
func TestBundle(t *testing.T) {
	t.Parallel()
	got, err := Bundle(map[string]string{
		"app.js":   "import { a } from './a.js';\nimport { E, b } from './b.js';\nconst own = 1;\nstart(a, b, E);\n",
		"a.js":     "import { b } from './b.js';\n\nconst own = 2;\nexport const a = (x) => b(x);\n",
		"b.js":     "import { a } from './a.js';\nexport class E extends Error {\n}\nexport async function b(x) {\n  return a(x);\n}\nexport { c };\nconst c = 3;\n",
		"other.js": "import x from 'y';\n", // nobody asks for it
	}, "app.js")
	const want = `const $b_js = (() => {
const a = (...a) => $a_js.a(...a);
class E extends Error {
}
async function b(x) {
  return a(x);
}
const c = 3;
return { E, b, c };
})();
const $a_js = (() => {
const { b } = $b_js;

const own = 2;
const a = (x) => b(x);
return { a };
})();
const $app_js = (() => {
const { a } = $a_js;
const { E, b } = $b_js;
const own = 1;
start(a, b, E);
return {  };
})();
`
	if err != nil || got != want {
		t.Fatalf("%v\n%s", err, got)
	}
}

// TestBundleRefuses holds that a form which is not known is an error, and not a page that fails in a browser.
func TestBundleRefuses(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, app, other, want string }{
		{"a default", "import x from './o.js';\n", "", "line 1 of app.js"},
		{"another place", "import { x } from 'o';\n", "", "line 1 of app.js"},
		{"an import later", "const x = 1;\nconst y = await import('./o.js');\n", "", "line 2 of app.js"},
		{"all of a module", "export * from './o.js';\n", "", "line 1 of app.js"},
		{"an absent module", "import { x } from './p.js';\n", "", "no module p.js"},
		{"an absent name", "import { x } from './o.js';\n", "export const y = 1;\n", "does not export"},
		{"a value in a circle", "import { x } from './o.js';\nexport const y = 1;\n", "import { y } from './app.js';\nexport const x = () => y;\n", "y is no function"},
		{"a name of the bundle", "const $app_js = 1;\n", "", "line 1 of app.js"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := Bundle(map[string]string{"app.js": tt.app, "o.js": tt.other}, "app.js")
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
}
