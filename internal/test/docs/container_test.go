package docs

import (
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestContainerPage holds that a shell understands the commands of the page, that its table has the variables of the
// entrypoint and no others, and that what it says of the image is in the recipe.
func TestContainerPage(t *testing.T) {
	page := pages(t)["docs/how-to/container.md"]
	used := map[string]bool{}
	for _, b := range blocksOf(t, page) {
		cmd := exec.CommandContext(t.Context(), "sh", "-n")
		cmd.Stdin = strings.NewReader(b.text)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("a block that the shell does not understand: %v\n%s\n%s", err, out, b.text)
		}
		for _, v := range regexp.MustCompile(`-e (COTERIE_\w+)=`).FindAllStringSubmatch(b.text, -1) {
			used[v[1]] = true
		}
	}
	script, recipe := source(t, "packaging/container/entrypoint"), source(t, "packaging/container/Containerfile")
	var have, told []string
	for _, v := range regexp.MustCompile(`\$\{?(COTERIE_\w+)`).FindAllStringSubmatch(script, -1) {
		have = append(have, v[1])
	}
	for _, v := range regexp.MustCompile("(?m)^\\| `(COTERIE_\\w+)`").FindAllStringSubmatch(page, -1) {
		told = append(told, v[1])
	}
	slices.Sort(have)
	slices.Sort(told)
	if have = slices.Compact(have); !slices.Equal(have, told) {
		t.Errorf("the entrypoint knows %q, the page tells of %q", have, told)
	}
	for v := range used {
		if !slices.Contains(have, v) {
			t.Errorf("a command sets %s, which the entrypoint does not know", v)
		}
	}
	for _, line := range []string{
		"ENV COTERIE_NODE=/var/lib/coterie/node\n", "USER postgres\n", "STOPSIGNAL SIGTERM\n", `CMD ["coterie-entrypoint", "health"]`,
		"EXPOSE 5432 5433 5022/tcp 5022/udp 8008\n", "ENTRYPOINT [\"coterie-entrypoint\"]\nCMD [\"node\"]\n", "-buildvcs=false",
	} {
		if !strings.Contains(recipe, line) {
			t.Errorf("the recipe lacks %q", line)
		}
	}
	if strings.Contains(recipe, "\nVOLUME") {
		t.Error("the recipe declares a volume: an engine would make an anonymous one where it was forgotten")
	}
}

// TestContainerScript holds that shellcheck finds nothing in the entrypoint.
func TestContainerScript(t *testing.T) {
	if _, err := exec.LookPath("shellcheck"); err != nil {
		t.Skip("NOT RUN: shellcheck is not installed")
	}
	if out, err := exec.CommandContext(t.Context(), "shellcheck", "--shell=sh", "../../../packaging/container/entrypoint").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
