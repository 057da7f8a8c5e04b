package main

import (
	"bytes"
	"errors"
	"fmt"
	"html/template"
	"regexp"
	"strings"
	"unicode"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	east "github.com/yuin/goldmark/extension/ast"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/renderer/html"
	"github.com/yuin/goldmark/text"
)

// markdown writes well-formed XML, and leaves out what is HTML in a document.
var markdown = goldmark.New(
	goldmark.WithExtensions(extension.NewTable(extension.WithTableCellAlignMethod(extension.TableCellAlignNone))),
	goldmark.WithParserOptions(parser.WithAutoHeadingID()),
	goldmark.WithRendererOptions(html.WithXHTML()),
)

// parsed is a document between being read and being written.
type parsed struct {
	source []byte
	doc    ast.Node
}

func parse(name string, source []byte) *page {
	doc := markdown.Parser().Parse(text.NewReader(source), parser.WithContext(parser.NewContext(parser.WithIDs(&ids{}))))
	p := &page{path: name, url: urlOf(name), source: source, parsed: &parsed{source, doc}}
	for n := doc.FirstChild(); n != nil; n = n.NextSibling() {
		said := p.parsed.said(n)
		h, ok := n.(*ast.Heading)
		if !ok {
			if len(p.sections) == 0 {
				p.sections = append(p.sections, section{})
			}
			last := &p.sections[len(p.sections)-1]
			last.text = strings.TrimSpace(last.text + " " + said)
			continue
		}
		id := ""
		if v, ok := h.AttributeString("id"); ok {
			id = string(v.([]byte)) //nolint:forcetypeassert // the parser's own, from ids
		}
		if h.Level == 1 && p.title == "" {
			p.title = said
		}
		p.headings = append(p.headings, heading{h.Level, id, said})
		p.sections = append(p.sections, section{id: id, heading: said})
	}
	return p
}

// said returns the text of a node, its blocks and cells divided by spaces.
func (p *parsed) said(n ast.Node) string {
	var b strings.Builder
	_ = ast.Walk(n, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			if n.Type() == ast.TypeBlock {
				b.WriteByte(' ')
			}
			return ast.WalkContinue, nil
		}
		switch n := n.(type) {
		case *ast.Text:
			b.Write(n.Segment.Value(p.source))
			if n.SoftLineBreak() || n.HardLineBreak() {
				b.WriteByte(' ')
			}
		case *ast.FencedCodeBlock:
			b.Write(n.Lines().Value(p.source))
		case *ast.CodeBlock:
			b.Write(n.Lines().Value(p.source))
		case *ast.HTMLBlock, *ast.RawHTML:
			return ast.WalkSkipChildren, nil
		}
		return ast.WalkContinue, nil
	})
	return strings.Join(strings.Fields(b.String()), " ")
}

// resolve replaces each target of a link or picture by what to returns.
func (p *parsed) resolve(to func(string) (string, error)) error {
	var problems []error
	_ = ast.Walk(p.doc, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		var at *[]byte
		switch n := n.(type) {
		case *ast.Link:
			at = &n.Destination
		case *ast.Image:
			at = &n.Destination
		default:
			return ast.WalkContinue, nil
		}
		url, err := to(string(*at))
		if err != nil {
			problems = append(problems, err)
		}
		*at = []byte(url)
		return ast.WalkContinue, nil
	})
	return errors.Join(problems...)
}

// html renders the document. A wide table moves inside its frame.
func (p *parsed) html() (template.HTML, error) {
	var b bytes.Buffer
	if err := markdown.Renderer().Render(&b, p.source, p.doc); err != nil {
		return "", err
	}
	framed := strings.NewReplacer("<table>", `<div class="wide"><table>`, "</table>", "</table></div>").Replace(b.String())
	return template.HTML(framed), nil //nolint:gosec // rendered from our own documents, without their HTML
}

// listed is a link of a document, in the order of the text.
type listed struct {
	under    string // the heading before it
	to, text string
	leading  bool // in the first cell of a row, or outside a table
}

func (p *parsed) links() (found []listed) {
	under := ""
	_ = ast.Walk(p.doc, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		switch n := n.(type) {
		case *ast.Heading:
			under = p.said(n)
		case *ast.Link:
			cell := ast.Node(n)
			for cell != nil && cell.Kind() != east.KindTableCell {
				cell = cell.Parent()
			}
			found = append(found, listed{under, string(n.Destination), p.said(n), cell == nil || cell.PreviousSibling() == nil})
		}
		return ast.WalkContinue, nil
	})
	return found
}

// ids names headings as GitHub does.
type ids struct{ times map[string]int }

var inBrackets = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)

// Generate returns the name of a heading; the second of the same words gets -1.
func (i *ids) Generate(value []byte, _ ast.NodeKind) []byte {
	name := strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, inBrackets.ReplaceAllString(strings.TrimSpace(string(value)), "$1"))
	if i.times == nil {
		i.times = map[string]int{}
	}
	n := i.times[name]
	i.times[name]++
	if n > 0 {
		name = fmt.Sprintf("%s-%d", name, n)
	}
	return []byte(name)
}

// Put is part of the parser's interface; no document gives an id of its own.
func (*ids) Put([]byte) {}
