package adopt

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// Rule is one line of pg_hba.conf and the result of judging it.
type Rule struct {
	Line    int
	Text    string
	Problem string // why the listener cannot honour it; if empty, it becomes a rule of the listener
}

const maxHBA = 1 << 20

// checkRules judges pg_hba.conf line by line.
func (x *inspection) checkRules() {
	st, err := os.Stat(x.HBAFile)
	if err == nil && st.Size() > maxHBA {
		err = errors.New("it is too large")
	}
	var b []byte
	if err == nil {
		b, err = os.ReadFile(x.HBAFile)
	}
	if err != nil {
		x.refuse(fmt.Sprintf("hba_file cannot be read: %v", err), "make %s readable to the user who runs the server", x.HBAFile)
		return
	}
	lines := strings.Split(string(b), "\n")
	for i := 0; i < len(lines); i++ {
		r := Rule{Line: i + 1, Text: strings.TrimSuffix(lines[i], "\r")}
		for strings.HasSuffix(r.Text, "\\") && i+1 < len(lines) {
			i++
			r.Text = strings.TrimSuffix(r.Text, "\\") + strings.TrimSuffix(lines[i], "\r")
		}
		r.Text = strings.TrimSpace(r.Text)
		if r.Text == "" || strings.HasPrefix(r.Text, "#") {
			continue
		}
		if err := x.opt.CheckRule(r.Text); err != nil {
			r.Problem = strings.TrimPrefix(err.Error(), "line 1: ")
			x.refuse(fmt.Sprintf("%s, line %d: %s", x.HBAFile, r.Line, r.Problem), "change or remove that line; it reads: %s", r.Text)
		}
		x.Rules = append(x.Rules, r)
	}
}
