package sqlrun

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/admin/batch"
	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/cli"
)

// Keys as the bytes that a terminal in raw mode sends.
const (
	ctrlC     = 0x03
	eraseLine = "\x05\x15\r" // to the end of the line, erase it, and enter
)

// keyboard passes the typed bytes to the line editor. Ctrl-C, which arrives as a byte, cancels the running statement,
// or else discards the typed line.
type keyboard struct {
	typed chan []byte   // closed at the end of input
	ended chan struct{} // closed when the program is to end
	once  sync.Once
	rest  []byte

	mu    sync.Mutex         // guards the fields below
	stop  context.CancelFunc // cancels the running statement; nil if none runs
	taken bool               // the typed line was discarded since the last call of tookBack
}

// newKeyboard starts a goroutine that reads in. It ends with the input or with the program.
func newKeyboard(in io.Reader) *keyboard {
	k := &keyboard{typed: make(chan []byte, 64), ended: make(chan struct{})}
	go func() {
		defer close(k.typed)
		for {
			b := make([]byte, 256)
			n, err := in.Read(b)
			if keys := k.heard(b[:n]); len(keys) > 0 {
				k.typed <- keys
			}
			if err != nil {
				return
			}
		}
	}()
	return k
}

// heard handles Ctrl-C and returns the remaining keys.
func (k *keyboard) heard(keys []byte) []byte {
	at := bytes.LastIndexByte(keys, ctrlC)
	if at < 0 {
		return keys
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.stop != nil {
		k.stop()
		return keys[at+1:]
	}
	k.taken = true
	return append([]byte(eraseLine), keys[at+1:]...)
}

// end ends the input, as when the process is to end: a terminal whose reader waits for a key gives none.
func (k *keyboard) end() { k.once.Do(func() { close(k.ended) }) }

// Read implements io.Reader for the line editor.
func (k *keyboard) Read(b []byte) (int, error) {
	if len(k.rest) == 0 {
		select {
		case keys, ok := <-k.typed:
			if !ok {
				return 0, io.EOF
			}
			k.rest = keys
		case <-k.ended:
			return 0, io.EOF
		}
	}
	n := copy(b, k.rest)
	k.rest = k.rest[n:]
	return n, nil
}

// running sets the function that Ctrl-C calls. With nil, Ctrl-C discards the typed line.
func (k *keyboard) running(stop context.CancelFunc) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stop = stop
}

// tookBack reports whether the typed line was discarded since the last call.
func (k *keyboard) tookBack() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	was := k.taken
	k.taken = false
	return was
}

// whole reports whether the text can be run. It must end with a semicolon, or a line with GO, outside of quotes and
// comments.
func whole(text string) bool {
	text = strings.TrimSpace(text)
	if text == "" {
		return true
	}
	last := text[strings.LastIndexByte(text, '\n')+1:]
	words := strings.Fields(last)
	goes := len(words) > 0 && len(words) < 3 && strings.EqualFold(words[0], "GO")
	if !strings.HasSuffix(text, ";") && !goes {
		return false
	}
	_, err := ddl.Split(text)
	var bad *ddl.Error
	unclosed := errors.As(err, &bad) && (bad.Number == ddl.NumberUnclosedQuote || bad.Number == ddl.NumberUnclosedComment)
	if unclosed || goes {
		return !unclosed
	}
	_, err = batch.Parse(text) // a block whose END is missing
	return !errors.As(err, &bad) || !strings.HasPrefix(bad.Message, "incorrect syntax near the end")
}

// interactive reads and runs statements from a terminal, with a history and completion of view names, until the input
// ends.
func (p Printer) interactive(cl *api.Client) error {
	fd := int(os.Stdin.Fd())
	old, err := term.MakeRaw(fd)
	if err != nil {
		return err
	}
	defer func() { _ = term.Restore(fd, old) }()
	k := newKeyboard(os.Stdin)
	defer context.AfterFunc(p.C.Context(), k.end)()
	t := term.NewTerminal(struct {
		io.Reader
		io.Writer
	}{k, os.Stdout}, "coterie=> ")
	if w, h, err := term.GetSize(fd); err == nil && w > 0 && h > 0 { // a terminal of unknown size reports 0
		_ = t.SetSize(w, h)
	}
	t.History = loadHistory()
	words := completions(p.C, cl)
	t.AutoCompleteCallback = func(line string, pos int, key rune) (string, int, bool) { return complete(words, line, pos, key) }
	p.C.SetOut(t)
	p.C.SetErr(t)
	pending := ""
	for {
		line, err := t.ReadLine()
		if errors.Is(err, io.EOF) || pending == "" && slices.Contains([]string{`\q`, "quit", "exit"}, strings.TrimSpace(line)) {
			return nil
		}
		if err != nil {
			return err
		}
		if pending == "" && ofPsql(line) {
			_, _ = fmt.Fprintln(t, notPsql)
			continue
		}
		pending += line + "\n"
		switch {
		case k.tookBack():
		case !whole(pending):
			t.SetPrompt("coterie-> ")
			continue
		default:
			p.runInterruptibly(k, cl, pending)
		}
		pending = ""
		t.SetPrompt("coterie=> ")
	}
}

// notPsql is the answer to a command of psql.
const notPsql = `a backslash begins a command of psql, which this is not; \q, quit and exit end it, and the views are in SELECT table_schema, table_name FROM information_schema.tables;`

// ofPsql reports whether the first line of a text is a command of psql. No statement begins so.
func ofPsql(line string) bool { return strings.HasPrefix(strings.TrimSpace(line), `\`) }

// runInterruptibly runs the text and prints its error. Ctrl-C cancels it.
func (p Printer) runInterruptibly(k *keyboard, cl *api.Client, text string) {
	ctx, cancel := context.WithCancel(p.C.Context())
	defer cancel()
	k.running(cancel)
	err := p.Run(ctx, cl, text)
	k.running(nil)
	switch {
	case ctx.Err() != nil:
		_, _ = fmt.Fprintln(p.C.OutOrStdout(), "interrupted: what was recorded stays, and is not waited for; a new session begins, without the settings of the old one")
	case err != nil:
		_, _ = fmt.Fprintln(cli.Out(p.C), "ERROR: "+err.Error())
	}
}

// completions returns the words that Tab completes: keywords, options and names of views.
func completions(c *cobra.Command, cl *api.Client) []string {
	words := []string{"SELECT", "FROM", "WHERE", "ALTER AVAILABILITY GROUP", "EXPLAIN FAILOVER;", "VERIFY ROUTING;", "SCRIPT;", "FAILOVER", "MODIFY REPLICA ON"}
	for _, o := range ddl.Options() {
		words = append(words, o.Name)
	}
	r, err := Ask(c, cl, "SELECT table_schema || '.' || table_name FROM information_schema.tables WHERE table_schema IN ('sys', 'coterie')")
	if err == nil {
		for _, row := range r.Rows {
			words = append(words, fmt.Sprint(row[0]))
		}
	}
	return words
}

func complete(words []string, line string, pos int, key rune) (string, int, bool) {
	if key != '\t' {
		return "", 0, false
	}
	from := strings.LastIndexAny(line[:pos], " (,=") + 1
	typed := line[from:pos]
	var found string
	for _, w := range words {
		if typed == "" || len(w) < len(typed) || !strings.EqualFold(w[:len(typed)], typed) {
			continue
		}
		if found == "" {
			found = w
			continue
		}
		n := 0
		for n < len(found) && n < len(w) && strings.EqualFold(found[n:n+1], w[n:n+1]) {
			n++
		}
		found = found[:n]
	}
	if len(found) <= len(typed) {
		return "", 0, false
	}
	return line[:from] + found + line[pos:], from + len(found), true
}

// history keeps the last historyKept lines in a file in the user's home directory. It implements term.History.
type history struct {
	path  string
	lines []string // oldest first
}

const historyKept = 1000

func loadHistory() *history {
	h := &history{}
	home, err := os.UserHomeDir()
	if err != nil {
		return h
	}
	h.path = filepath.Join(home, ".coterie_history")
	if b, err := os.ReadFile(h.path); err == nil {
		h.lines = strings.Split(strings.TrimSpace(string(b)), "\n")
	}
	return h
}

// Add appends a line, unless it is blank or equal to the last one.
func (h *history) Add(entry string) {
	if strings.TrimSpace(entry) == "" || len(h.lines) > 0 && h.lines[len(h.lines)-1] == entry {
		return
	}
	h.lines = append(h.lines, entry)
	h.lines = h.lines[max(0, len(h.lines)-historyKept):]
	if h.path != "" {
		_ = os.WriteFile(h.path, []byte(strings.Join(h.lines, "\n")+"\n"), 0o600) // best-effort
	}
}

// Len returns the number of lines.
func (h *history) Len() int { return len(h.lines) }

// At returns line i; 0 is the newest.
func (h *history) At(i int) string { return h.lines[len(h.lines)-1-i] }
