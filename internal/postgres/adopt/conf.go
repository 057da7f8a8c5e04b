package adopt

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Setting is a setting that a configuration file makes.
type Setting struct {
	Name  string `json:"name"`
	Value string `json:"value"` // the effective value; as written if the server does not know the name
	File  string `json:"file"`
	Line  int    `json:"line"`
	Beats string `json:"-"` // the value that Coterie sets on the command line instead
	Ours  bool   `json:"-"` // Coterie sets another value
}

// maxConf bounds the size of a configuration file, and maxInclude the nesting of includes.
const (
	maxConf    = 4 << 20
	maxInclude = 10
)

// readConf reads a configuration file and those it includes, in the order in which the server does.
func readConf(path string, depth int) ([]Setting, error) {
	if depth > maxInclude {
		return nil, fmt.Errorf("%s: files include one another more than %d deep", path, maxInclude)
	}
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if st.Size() > maxConf {
		return nil, fmt.Errorf("%s: more than %d bytes", path, maxConf)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var all []Setting
	number := 0
	for line := range strings.Lines(string(b)) {
		number++
		name, value, ok := confLine(line)
		if !ok {
			continue
		}
		files, err := included(path, name, value)
		if err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", path, number, err)
		}
		if files == nil {
			all = append(all, Setting{Name: name, Value: value, File: path, Line: number})
		}
		for _, f := range files {
			more, err := readConf(f, depth+1)
			if err != nil {
				return nil, err
			}
			all = append(all, more...)
		}
	}
	return all, nil
}

// included returns the files that an include directive names. It returns nil for a line that is not one, and an empty
// slice if the directive names nothing.
func included(path, name, value string) ([]string, error) {
	if !filepath.IsAbs(value) {
		value = filepath.Join(filepath.Dir(path), value)
	}
	switch name {
	case "include":
		return []string{value}, nil
	case "include_if_exists":
		if _, err := os.Stat(value); err != nil {
			return []string{}, nil //nolint:nilerr // absent is what the directive allows
		}
		return []string{value}, nil
	case "include_dir":
		entries, err := os.ReadDir(value)
		files := []string{}
		for _, e := range entries { // sorted by name
			if n := e.Name(); strings.HasSuffix(n, ".conf") && !strings.HasPrefix(n, ".") && !e.IsDir() {
				files = append(files, filepath.Join(value, n))
			}
		}
		return files, err
	}
	return nil, nil
}

// confLine reads a line of a configuration file: name = value, with an optional = and a comment.
func confLine(line string) (name, value string, ok bool) {
	line = strings.TrimSpace(line)
	end := strings.IndexFunc(line, func(r rune) bool {
		return r != '_' && r != '.' && r != '$' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	})
	if end <= 0 {
		return "", "", false
	}
	name = strings.ToLower(line[:end])
	rest := strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line[end:]), "="))
	if !strings.HasPrefix(rest, "'") {
		rest, _, _ = strings.Cut(rest, "#")
		return name, strings.TrimSpace(rest), true
	}
	var b strings.Builder
	for k := 1; k < len(rest); k++ {
		switch {
		case rest[k] == '\'' && k+1 < len(rest) && rest[k+1] == '\'', rest[k] == '\\' && k+1 < len(rest):
			k++
			b.WriteByte(rest[k])
		case rest[k] == '\'':
			return name, b.String(), true
		default:
			b.WriteByte(rest[k])
		}
	}
	return name, b.String(), true
}

// confValue returns a file's value of one setting.
func confValue(path, name string) (string, error) {
	all, err := readConf(path, 0)
	if err != nil {
		return "", err
	}
	for _, s := range slices.Backward(all) {
		if s.Name == name {
			return s.Value, nil
		}
	}
	return "", nil
}

// settings returns the settings that the cluster's files make, each name once. ALTER SYSTEM's file is read last.
func (c Cluster) settings() ([]Setting, error) {
	all, err := readConf(c.ConfigFile, 0)
	if err != nil {
		return nil, err
	}
	if auto := c.autoConf(); exists(auto) {
		more, err := readConf(auto, 0)
		if err != nil {
			return nil, err
		}
		all = append(all, more...)
	}
	last := map[string]Setting{}
	for _, s := range all {
		last[s.Name] = s
	}
	out := make([]Setting, 0, len(last))
	for _, s := range last {
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b Setting) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

func (c Cluster) autoConf() string { return filepath.Join(c.Data, "postgresql.auto.conf") }

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func quoteConf(s string) string {
	return "'" + strings.NewReplacer(`'`, `''`, `\`, `\\`).Replace(s) + "'"
}
