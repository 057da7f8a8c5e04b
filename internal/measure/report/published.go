package report

import (
	"bytes"
	"embed"
	"encoding/csv"
	"fmt"
	"strconv"
	"strings"
	"sync"
)

//go:embed published/*.csv
var publishedFiles embed.FS

// Source describes where published figures are from, and how far they can be trusted.
type Source struct {
	File   string `json:"file"`
	Origin string `json:"origin"`
	What   string `json:"what"`
	Trust  string `json:"trust"`
}

// Figures is one published table.
type Figures struct {
	Source
	Columns []string
	Rows    [][]string
}

// published holds every table by its name.
var published = sync.OnceValues(func() (map[string]Figures, error) {
	index, err := readCSV("source.csv")
	if err != nil {
		return nil, err
	}
	all := map[string]Figures{}
	var last Source
	for _, row := range index[1:] {
		s := Source{row[0], row[1], row[2], row[3]}
		if len(s.Origin) >= 4 && s.Origin[:4] == "same" { // as the line before, with a remark
			s.Origin = last.Origin
			if remark := row[1][4:]; remark != "" { // instead of the one that the origin had
				origin, _, _ := strings.Cut(last.Origin, " (")
				s.Origin = origin + remark
			}
		} else {
			last = s
		}
		text, err := readCSV(s.File)
		if err != nil {
			return nil, err
		}
		all[s.File] = Figures{s, text[0], text[1:]}
	}
	return all, nil
})

func readCSV(name string) ([][]string, error) {
	text, err := publishedFiles.ReadFile("published/" + name)
	if err != nil {
		return nil, err
	}
	rows, err := csv.NewReader(bytes.NewReader(text)).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("published/%s: %w", name, err)
	}
	return rows, nil
}

// Published returns a published table by the name of its file.
func Published(file string) (Figures, error) {
	all, err := published()
	if err != nil {
		return Figures{}, err
	}
	f, ok := all[file]
	if !ok {
		return f, fmt.Errorf("no published table %s", file)
	}
	return f, nil
}

// Value is the cell of column in the row whose first column is key; nil if there is none.
func (f Figures) Value(key, column string) any {
	for i, name := range f.Columns {
		for _, row := range f.Rows {
			if name == column && row[0] == key {
				if v, err := strconv.ParseFloat(row[i], 64); err == nil {
					return v
				}
				return row[i]
			}
		}
	}
	return nil
}
