package report

import (
	"fmt"
	"html"
	"html/template"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/coteriedb/coterie/internal/measure/method"
)

// The size of a chart, in the units of its own picture; the page scales it.
const (
	chartWidth, chartHeight                       = 760.0, 280.0
	marginLeft, marginRight, marginTop, marginEnd = 62.0, 32.0, 34.0, 42.0
	seriesColours                                 = 6
)

// axis maps values to the picture.
type axis struct {
	low, high float64
	from, to  float64
	log       bool
}

func (a axis) at(v float64) float64 {
	low, high := a.low, a.high
	if a.log {
		v, low, high = math.Log10(max(v, a.low)), math.Log10(low), math.Log10(high)
	}
	if high == low {
		return a.from
	}
	return a.from + (v-low)/(high-low)*(a.to-a.from)
}

// ticks are round values on the axis.
func (a axis) ticks() []float64 {
	var out []float64
	if a.log {
		for e := math.Floor(math.Log10(a.low)); e <= math.Ceil(math.Log10(a.high)); e++ {
			for _, m := range []float64{1, 2, 5} {
				if v := m * math.Pow(10, e); v >= a.low*0.999 && v <= a.high*1.001 && (m == 1 || a.high/a.low < 500) {
					out = append(out, v)
				}
			}
		}
		return out
	}
	step := roundStep((a.high - a.low) / 5)
	for v := math.Ceil(a.low/step-1e-9) * step; v <= a.high*1.0001; v += step {
		out = append(out, math.Round(v/step)*step+0) // never -0
	}
	return out
}

// roundStep is the next 1, 2 or 5 times a power of ten.
func roundStep(v float64) float64 {
	if v <= 0 {
		return 1
	}
	p := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 2, 5} {
		if m*p >= v*0.999 {
			return m * p
		}
	}
	return 10 * p
}

// point is a place in a picture.
type point struct{ x, y float64 }

// plane is the two axes of a chart.
type plane struct{ x, y axis }

// picture is an SVG that grows.
type picture struct{ strings.Builder }

func newPicture(title string, height float64) *picture {
	p := &picture{}
	p.add(`<svg viewBox="0 0 %s %s" role="img" aria-label="%s" xmlns="http://www.w3.org/2000/svg">`, px(chartWidth), px(height), html.EscapeString(title))
	p.text(point{marginLeft, 16}, "t", "start", title)
	return p
}

func (p *picture) add(format string, a ...any) { _, _ = fmt.Fprintf(p, format, a...) } // to memory

func (p *picture) text(at point, class, anchor, s string) {
	p.add(`<text x="%s" y="%s" class="%s" text-anchor="%s">%s</text>`, px(at.x), px(at.y), class, anchor, html.EscapeString(s))
}

func (p *picture) line(from, to point, class string) {
	p.add(`<line x1="%s" y1="%s" x2="%s" y2="%s" class="%s"/>`, px(from.x), px(from.y), px(to.x), px(to.y), class)
}

func (p *picture) done() template.HTML {
	p.WriteString(`</svg>`)
	return template.HTML(p.String()) //nolint:gosec // every text in it was escaped by text and title
}

func px(v float64) string { return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64) }

func escape(s string) string { return html.EscapeString(s) }

// grid draws both axes of a chart.
func (p *picture) grid(on plane, xName, yName string, xLabel func(float64) string) {
	x, y := on.x, on.y
	for _, v := range y.ticks() {
		p.line(point{x.from, y.at(v)}, point{x.to, y.at(v)}, "g")
		p.text(point{x.from - 6, y.at(v) + 4}, "l", "end", Number(v))
	}
	for _, v := range x.ticks() {
		p.line(point{x.at(v), y.from}, point{x.at(v), y.from + 4}, "a")
		p.text(point{x.at(v), y.from + 17}, "l", "middle", xLabel(v))
	}
	p.line(point{x.from, y.from}, point{x.to, y.from}, "a")
	p.text(point{(x.from + x.to) / 2, y.from + 34}, "l", "middle", xName)
	p.add(`<text transform="translate(14 %s) rotate(-90)" class="l" text-anchor="middle">%s</text>`, px((y.from+y.to)/2), escape(yName))
}

// legendLine is how high a line of a legend is.
const legendLine = 15.0

// legendPlaces lays names out below the title, in as many lines as they need, and returns their height.
func legendPlaces(names []string) (places []point, height float64) {
	if len(names) < 2 {
		return nil, 0
	}
	x, y := marginLeft, 34.0
	for _, n := range names {
		width := 28 + 6.2*float64(len([]rune(n)))
		if x > marginLeft && x+width > chartWidth {
			x, y = marginLeft, y+legendLine
		}
		places = append(places, point{x, y})
		x += width
	}
	return places, y - 34 + legendLine
}

// chart begins a picture with two axes below its title and the names of its series.
func chart(title string, names []string) (p *picture, x, y axis) {
	places, extra := legendPlaces(names)
	p = newPicture(title, chartHeight+extra)
	for i, at := range places {
		p.add(`<rect x="%s" y="%s" width="12" height="4" rx="2" class="f%d"/>`, px(at.x), px(at.y-6), i%seriesColours)
		p.text(point{at.x + 17, at.y}, "l", "start", names[i])
	}
	return p, axis{from: marginLeft, to: chartWidth - marginRight}, axis{from: chartHeight + extra - marginEnd, to: marginTop + extra}
}

func (p *picture) path(points [][2]float64, on plane, class, title string) {
	p.add(`<path class="%s" d="`, class)
	for i, at := range points {
		verb := 'L'
		if i == 0 {
			verb = 'M'
		}
		p.add("%c%s %s", verb, px(on.x.at(at[0])), px(on.y.at(at[1])))
	}
	p.add(`"><title>%s</title></path>`, escape(title))
}

// overTime draws what was measured over time, a chart for each unit, and marks what happened.
func overTime(e Experiment) (charts []template.HTML) {
	var units []string
	for _, s := range e.Series {
		if !slices.Contains(units, s.Unit) {
			units = append(units, s.Unit)
		}
	}
	for _, unit := range units {
		list := slices.DeleteFunc(slices.Clone(e.Series), func(s Series) bool { return s.Unit != unit })
		if c := seriesChart(unit, list, e.Events); c != "" {
			charts = append(charts, c)
		}
	}
	return charts
}

func seriesChart(unit string, list []Series, events []Event) template.HTML {
	var names []string
	left, right, top := math.Inf(1), 0.0, 0.0
	for _, s := range list {
		names = append(names, s.Name)
		for _, at := range s.Points {
			left, right, top = min(left, at[0]), max(right, at[0]), max(top, at[1])
		}
	}
	if right <= left || top == 0 {
		return ""
	}
	p, x, y := chart("Over time: "+unit, names)
	x.low, x.high, y.high = left, right, top*1.06
	p.grid(plane{x, y}, "seconds", unit, Number)
	for i, s := range list {
		p.path(s.Points, plane{x, y}, fmt.Sprintf("p s%d", i%seriesColours), s.Name)
	}
	for i, ev := range events {
		at := x.at(ev.At)
		p.line(point{at, y.from}, point{at, y.to}, "e")
		anchor := "start"
		if at > chartWidth*0.75 {
			anchor = "end"
			at -= 8
		}
		p.text(point{at + 4, y.to + 10 + 13*float64(i%4)}, "ev", anchor, ev.Label)
	}
	return p.done()
}

// percentileChart draws latency beside the share of operations that took longer, both on logarithmic axes.
func percentileChart(list []Percentiles) template.HTML {
	right, bottom, top := 10.0, math.Inf(1), 0.0
	var names []string
	for _, d := range list {
		for _, at := range d.Points {
			right = max(right, 100/(100-at[0]))
			bottom, top = min(bottom, at[1]), max(top, at[1])
		}
		names = append(names, d.Name)
	}
	if top == 0 {
		return ""
	}
	p, x, y := chart("Latency by percentile", names)
	x.log, x.low, x.high = true, 1, right
	y.log, y.low, y.high = true, max(bottom/1.3, 1e-3), top*1.3
	for _, v := range y.ticks() {
		p.line(point{x.from, y.at(v)}, point{x.to, y.at(v)}, "g")
		p.text(point{x.from - 6, y.at(v) + 4}, "l", "end", Number(v))
	}
	for _, q := range []float64{0, 50, 90, 99, 99.9, 99.99, 99.999} {
		if v := 100 / (100 - q); v <= x.high*1.01 {
			p.line(point{x.at(v), y.from}, point{x.at(v), y.to}, "g")
			p.text(point{x.at(v), y.from + 17}, "l", "middle", strconv.FormatFloat(q, 'f', -1, 64)+" %")
		}
	}
	p.text(point{(x.from + x.to) / 2, y.from + 34}, "l", "middle", "so many of the operations took no longer")
	p.add(`<text transform="translate(14 %s) rotate(-90)" class="l" text-anchor="middle">milliseconds</text>`, px((y.from+y.to)/2))
	for i, d := range list {
		var points [][2]float64
		for _, at := range d.Points {
			points = append(points, [2]float64{100 / (100 - at[0]), at[1]})
		}
		p.path(points, plane{x, y}, fmt.Sprintf("p s%d", i%seriesColours), d.Name)
	}
	return p.done()
}

// intervalChart draws ratios with their intervals, one line each, and the published ratio beside them.
func intervalChart(list []Comparison) template.HTML {
	list = slices.DeleteFunc(slices.Clone(list), func(c Comparison) bool { return c.Ratio <= 0 || math.IsNaN(c.Ratio) })
	if len(list) == 0 {
		return ""
	}
	const row, names = 30.0, 300.0
	height := marginTop + row*float64(len(list)) + marginEnd
	x, y := axis{low: 0.8, high: 1.25, from: names, to: chartWidth - marginRight, log: true}, axis{from: height - marginEnd, to: marginTop}
	for _, c := range list {
		x.low, x.high = min(x.low, c.Low, c.Ratio), max(x.high, c.High, c.Ratio)
		if c.Published != nil {
			x.low, x.high = min(x.low, *c.Published), max(x.high, *c.Published)
		}
	}
	x.low, x.high = max(x.low/1.1, 0.001), x.high*1.1
	p := newPicture("Ratios, with the interval that holds the true one 95 times in 100", height)
	for _, v := range x.ticks() {
		p.line(point{x.at(v), y.from}, point{x.at(v), y.to}, "g")
		p.text(point{x.at(v), y.from + 17}, "l", "middle", Number(v)+" x")
	}
	p.line(point{x.at(1), y.from}, point{x.at(1), y.to}, "one")
	for i, c := range list {
		at := y.to + row*(float64(i)+0.5)
		p.text(point{names - 12, at - 1}, "n", "end", c.Name)
		p.text(point{names - 12, at + 11}, "l", "end", c.Metric+": "+c.B+" / "+c.A)
		class := map[method.Verdict]string{method.Faster: "ok", method.Slower: "bad"}[c.Verdict]
		if class == "" {
			class = "open"
		}
		p.line(point{x.at(max(c.Low, x.low)), at}, point{x.at(c.High), at}, "i "+class)
		p.add(`<circle cx="%s" cy="%s" r="5" class="d %s"><title>%s</title></circle>`, px(x.at(c.Ratio)), px(at), class, escape(c.String()))
		if c.Published != nil {
			px0 := x.at(*c.Published)
			p.add(`<path class="pub" d="M%s %sl6 6l-6 6l-6 -6z"><title>published, not measured: %s x</title></path>`, px(px0), px(at-6), Number(*c.Published))
		}
	}
	return p.done()
}

// barChart draws one value for each of several things.
func barChart(b Bars) template.HTML {
	if len(b.Bars) == 0 {
		return ""
	}
	top := 0.0
	for _, one := range b.Bars {
		top = max(top, one.Value)
	}
	if top == 0 {
		top = 1
	}
	p, x, y := chart(b.Title, nil)
	y.high = top * 1.1
	for _, v := range y.ticks() {
		p.line(point{x.from, y.at(v)}, point{x.to, y.at(v)}, "g")
		p.text(point{x.from - 6, y.at(v) + 4}, "l", "end", Number(v))
	}
	p.add(`<text transform="translate(14 %s) rotate(-90)" class="l" text-anchor="middle">%s</text>`, px((y.from+y.to)/2), escape(b.Unit))
	width := (x.to - x.from) / float64(len(b.Bars))
	for i, one := range b.Bars {
		left, top := x.from+width*(float64(i)+0.12), y.at(one.Value)
		p.add(`<rect x="%s" y="%s" width="%s" height="%s" class="f0"><title>%s: %s %s</title></rect>`,
			px(left), px(top), px(width*0.76), px(y.from-top), escape(one.Name), Number(one.Value), escape(b.Unit))
		if len(b.Bars) <= 16 {
			p.text(point{left + width*0.38, y.from + 17}, "l", "middle", one.Name)
			p.text(point{left + width*0.38, top - 4}, "l", "middle", Number(one.Value))
		}
	}
	p.line(point{x.from, y.from}, point{x.to, y.from}, "a")
	if b.Each != "" {
		p.text(point{(x.from + x.to) / 2, y.from + 34}, "l", "middle", b.Each)
	}
	return p.done()
}
