package dialect

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// find returns the column of that name, and its source. Inner scopes hide outer ones.
func (s *scope) find(names []string) (Column, *bound, bool) {
	name := names[len(names)-1]
	for ; s != nil; s = s.parent {
		for _, b := range s.sources {
			if len(names) > 1 && !strings.EqualFold(b.name, names[len(names)-2]) {
				continue
			}
			for _, c := range b.columns {
				if strings.EqualFold(c.Name, name) {
					return c, b, true
				}
			}
			if len(names) > 1 {
				return Column{Name: name}, b, false
			}
		}
		if len(names) == 1 && s.open() {
			break
		}
	}
	return Column{Name: name}, nil, false
}

func (s *scope) open() bool {
	for _, b := range s.sources {
		if b.open {
			return true
		}
	}
	return false
}

// grouping is GROUP BY of a query, or the single group of one that has aggregates only.
type grouping struct {
	keys    []*expr
	columns []groupColumn // of the keys that are columns
	rows    int           // more than 0: the part that is written sees the rows and not the groups
}

type groupColumn struct {
	of   *bound
	name string
}

// newGrouping returns the grouping of a query, whose sources are in the scope; nil: it has none.
func newGrouping(sel *selection, s *scope) *grouping {
	if !sel.grouped && sel.group == nil && sel.having == nil && !slices.ContainsFunc(sel.items, func(i item) bool { return i.e.hasAggregate() }) {
		return nil
	}
	g := &grouping{}
	for _, k := range sel.group {
		if n, err := strconv.Atoi(k.text); k.kind == exNumber && err == nil && n >= 1 && n <= len(sel.items) && sel.items[n-1].e != nil {
			k = sel.items[n-1].e
		}
		if name := k.bare(); name != "" {
			_, of, _ := s.find(k.names)
			i := slices.IndexFunc(sel.items, func(i item) bool { return strings.EqualFold(i.alias, name) })
			if of == nil && i >= 0 { // PostgreSQL takes names of the result, too
				k = sel.items[i].e
			}
		}
		g.keys = append(g.keys, k)
		if k.kind == exColumn {
			if c, of, _ := s.find(k.names); of != nil {
				g.columns = append(g.columns, groupColumn{of, c.Name})
			}
		}
	}
	return g
}

// key reports whether the expression is one of GROUP BY, so that its columns need not be there.
func (g *grouping) key(e *expr, s *scope) bool {
	return g != nil && g.rows == 0 && slices.ContainsFunc(g.keys, func(k *expr) bool { return same(k, e, s) })
}

// eachRow begins a part of the query that sees each row of a group. The caller calls the result behind that part.
func (s *scope) eachRow() (done func()) {
	if s == nil || s.group == nil {
		return func() {}
	}
	g := s.group
	g.rows++
	return func() { g.rows-- }
}

// grouped refuses a column that is neither in GROUP BY nor in an aggregate function. The engine takes its value from
// any row of the group, and both servers refuse it.
func (s *scope) grouped(of *bound, name string) {
	for s != nil && !slices.Contains(s.sources, of) {
		s = s.parent
	}
	if s == nil || s.group == nil || s.group.rows > 0 {
		return
	}
	if !slices.ContainsFunc(s.group.columns, func(c groupColumn) bool { return strings.EqualFold(c.name, name) && (c.of == of || s.merges) }) {
		panic(Errorf("42803", "the column %.60s must be in GROUP BY, or in an aggregate function", of.name+"."+name))
	}
}

// unambiguous refuses a name that several columns of a source have or, where it is not qualified, several sources. The
// engine takes the first column of a query in FROM.
func (s *scope) unambiguous(of *bound, names []string) {
	for s != nil && !slices.Contains(s.sources, of) {
		s = s.parent
	}
	if s == nil || len(names) == 1 && s.merges {
		return
	}
	n := 0
	for _, b := range s.sources {
		for _, c := range b.columns {
			if (b == of || len(names) == 1) && strings.EqualFold(c.Name, names[len(names)-1]) {
				n++
			}
		}
	}
	if n > 1 {
		panic(Errorf("42702", "the column %.60s is ambiguous", strings.Join(names, ".")))
	}
}

// cteOf returns the query of WITH of that name.
func (s *scope) cteOf(name string) (columns []Column, ok bool) {
	for ; s != nil; s = s.parent {
		if columns, ok = s.ctes[strings.ToLower(name)]; ok {
			return columns, true
		}
	}
	return nil, false
}

// source writes an entry of FROM, and adds what it names to the scope.
func (w *writer) source(f *source, s *scope) string {
	switch {
	case f.join != "":
		return w.join(f, s)
	case f.query != nil && f.lateral:
		return w.lateral(f, s)
	case f.query != nil:
		text, columns := w.query(f.query, s.parent)
		b := &bound{name: f.alias, columns: columns, open: columns == nil}
		if b.name == "" {
			b.name = w.newName()
		}
		if f.columns != nil {
			text = w.renamed(text, f.columns, b)
		}
		s.add(b)
		return w.note("(" + text + ") AS " + quoteName(b.name))
	}
	return w.table(f, s)
}

func (s *scope) add(b *bound) {
	for _, other := range s.sources {
		if strings.EqualFold(other.name, b.name) {
			panic(Errorf("42712", "table name %.40q specified more than once", b.name))
		}
	}
	s.sources = append(s.sources, b)
}

// renamed gives the columns of a query other names.
func (w *writer) renamed(text string, names []string, b *bound) string {
	if b.columns != nil && len(names) != len(b.columns) {
		panic(Errorf("42P10", "table %.40q has %d columns available but %d columns specified", b.name, len(b.columns), len(names)))
	}
	var list []string
	columns := make([]Column, len(names))
	for i, n := range names {
		list = append(list, quoteName(n))
		columns[i].Name = n
		if i < len(b.columns) {
			columns[i].Type = b.columns[i].Type
		}
	}
	b.columns, b.open = columns, false
	inner := quoteName(w.newName())
	return w.note("WITH " + inner + "(" + strings.Join(list, ", ") + ") AS (" + text + ") SELECT * FROM " + inner)
}

// table writes a table's name.
func (w *writer) table(f *source, s *scope) string {
	name := f.names[len(f.names)-1]
	alias := f.alias
	if alias == "" {
		alias = name
	}
	b := &bound{name: alias}
	text := quoteName(name)
	if columns, ok := s.cteOf(name); ok && len(f.names) == 1 {
		b.columns, b.open = columns, columns == nil
	} else {
		schema := ""
		if len(f.names) > 1 {
			schema = f.names[len(f.names)-2]
		}
		if len(f.names) == 3 && !strings.EqualFold(f.names[0], "master") && !strings.EqualFold(f.names[0], "coterie") {
			panic(unsupported("the database "+f.names[0]+" of a table's name", "the views are in this database; connect to another one for its tables"))
		}
		full, columns, ok := w.env.Table(schema, name)
		if !ok {
			panic(w.noTable(schema, name))
		}
		w.tables = append(w.tables, full+"."+name)
		text, b.columns = quoteName(full)+"."+text, columns
	}
	if f.columns != nil {
		text = "(" + w.renamed("SELECT * FROM "+text, f.columns, b) + ")"
	}
	s.add(b)
	return text + " AS " + quoteName(alias)
}

// instead are objects of SQL Server that scripts read and that have no counterpart, with what to use: the console does
// not know the rows of such a view.
var instead = map[string]string{
	"server_principals": rolesElsewhere, "sql_logins": rolesElsewhere, "syslogins": rolesElsewhere, "database_principals": rolesElsewhere, "server_role_members": rolesElsewhere,
	"server_permissions": rolesElsewhere, "server_triggers": "there are no triggers of a server",
	"master_files": filesElsewhere, "database_files": filesElsewhere, "sysfiles": filesElsewhere, "dm_os_volume_stats": filesElsewhere,
	"dm_io_virtual_file_stats": "pg_stat_io and pg_stat_database are in any other database",
	"dm_exec_requests":         activityElsewhere, "dm_os_waiting_tasks": activityElsewhere, "sysprocesses": activityElsewhere, "dm_exec_query_stats": activityElsewhere,
	"dm_os_schedulers":        "the operating system has the load of its processors",
	"dm_os_sys_memory":        "the operating system has its memory",
	"dm_os_ring_buffers":      "coterie.events has what happened, coterie.decisions and coterie explain why",
	"messages":                "docs/reference/exit-codes.md has the numbers of messages",
	"dm_server_services":      "systemctl status coterie, or SELECT name, connected FROM coterie.replicas",
	"dm_os_host_info":         "the operating system says what it is",
	"dm_os_cluster_nodes":     "SELECT * FROM sys.dm_hadr_cluster_members",
	"database_mirroring":      "there is no mirroring beside the group: sys.dm_hadr_database_replica_states",
	"availability_replica":    "sys.availability_replicas",
	"availability_group":      "sys.availability_groups",
	"dm_db_index_usage_stats": activityElsewhere,
	"pg_stat_replication":     "SELECT * FROM coterie.replicas and coterie.links; PostgreSQL's own view is in any other database, on the primary",
	"pg_stat_wal_receiver":    "SELECT * FROM coterie.replicas and coterie.links; PostgreSQL's own view is in any other database, on a secondary",
	"pg_replication_slots":    "the agents keep the slots of the group; those of yours are in PostgreSQL's own view, in any other database",
	"pg_stat_statements":      activityElsewhere,
}

const (
	rolesElsewhere    = "roles are PostgreSQL's: SELECT * FROM pg_roles, in any other database"
	filesElsewhere    = "the files are PostgreSQL's own: pg_database_size() in any other database; coterie.storage has the devices"
	activityElsewhere = "SELECT * FROM coterie.sessions; what they execute is in pg_stat_activity and pg_stat_statements of any other database"
)

// noTable returns the error of a table that does not exist, with one that is spelled almost like it.
func (w *writer) noTable(schema, name string) *Error {
	e := &Error{
		State: "42P01", Message: "no such table: " + strings.TrimPrefix(schema+"."+name, "."),
		Hint: "SELECT table_schema, table_name FROM information_schema.tables lists what there is; the data is in other databases",
	}
	if hint, ok := instead[strings.ToLower(name)]; ok && slices.Contains([]string{"", "sys", "dbo", "pg_catalog"}, strings.ToLower(schema)) {
		e.Hint = hint
		return e
	}
	for _, full := range w.env.Names {
		of, known, _ := strings.Cut(full, ".")
		if (schema == "" || strings.EqualFold(schema, of)) && Alike(known, strings.ToLower(name)) {
			e.Hint = "perhaps " + full
			break
		}
	}
	return e
}

func (w *writer) join(f *source, s *scope) string {
	left := w.source(f.left, s)
	right := w.source(f.right, s)
	if f.right.join != "" {
		right = "(" + right + ")"
	}
	join := " " + f.join + " "
	if f.natural {
		join, s.merges = " NATURAL"+join, true
	}
	out := left + join + right
	switch {
	case f.on != nil:
		out += " ON " + w.condition(f.on, s)
	case f.using != nil:
		s.merges = true
		var names []string
		for _, n := range f.using {
			names = append(names, quoteName(n))
		}
		out += " USING (" + strings.Join(names, ", ") + ")"
	}
	return w.note(out)
}

// lateral writes a query that sees the sources before it: APPLY and LATERAL. The engine has only functions that do, so
// the query's rows are made an array, which json_each gives back row by row.
func (w *writer) lateral(f *source, s *scope) string {
	text, columns := w.query(f.query, s)
	if columns == nil {
		panic(unsupported("* of a table whose columns are unknown, within APPLY,", "name the columns"))
	}
	inner := w.newName()
	b := &bound{name: f.alias, columns: columns, json: w.newName()}
	if b.name == "" {
		b.name = b.json
	}
	if f.columns == nil {
		f.columns = make([]string, len(columns))
		for i := range columns {
			f.columns[i] = columns[i].Name
		}
	}
	if len(f.columns) != len(columns) {
		panic(Errorf("42P10", "table %.40q has %d columns available but %d columns specified", b.name, len(columns), len(f.columns)))
	}
	var names, list []string
	b.columns = make([]Column, len(columns))
	for i, n := range f.columns {
		b.columns[i] = Column{n, columns[i].Type}
		names = append(names, quoteName("c"+strconv.Itoa(i)))
		list = append(list, quoteName(inner)+"."+names[i])
	}
	s.add(b)
	return w.note(fmt.Sprintf("json_each((WITH %s(%s) AS (%s) SELECT json_group_array(json_array(%s)) FROM %s)) AS %s",
		quoteName(inner), strings.Join(names, ", "), text, strings.Join(list, ", "), quoteName(inner), quoteName(b.json)))
}

// withTies writes a query that takes the first rows and those that sort like the last of them.
func (w *writer) withTies(q *query, limit *expr, outer *scope) (string, []Column) {
	sel := q.body.sel
	switch {
	case sel == nil || sel.distinct:
		panic(unsupported("WITH TIES with DISTINCT or UNION", "put that into a query of its own: SELECT TOP ... FROM (...) AS x"))
	case len(q.order) == 0:
		panic(Errorf("42601", "WITH TIES needs ORDER BY"))
	case q.offset != nil:
		panic(unsupported("WITH TIES with OFFSET", ""))
	}
	s := &scope{parent: outer}
	from := w.from(sel, s)
	s.group = newGrouping(sel, s)
	var texts []string
	var columns []Column
	byName := map[string]int{}
	for _, it := range sel.items {
		if it.star {
			panic(unsupported("* with WITH TIES", "name the columns"))
		}
		text, t := w.expr(it.e, s)
		name := it.alias
		if name == "" {
			name = w.nameOf(it.e, s)
		} else {
			byName[strings.ToLower(name)] = len(texts)
		}
		texts, columns = append(texts, text), append(columns, Column{name, t})
	}
	var keys, inner, names []string
	for _, k := range q.order {
		if _, named := byName[strings.ToLower(k.e.bare())]; named {
			k.e = &expr{kind: exResult, text: k.e.bare()}
		}
		text, _ := w.expr(k.e, s)
		if i, err := strconv.Atoi(k.e.text); k.e.kind == exNumber && err == nil && i >= 1 && i <= len(texts) {
			text = texts[i-1]
		} else if k.e.kind == exResult {
			text = texts[byName[strings.ToLower(k.e.text)]]
		}
		key := quoteName("k" + strconv.Itoa(len(keys))) // in a query of its own, as it may have a window, too
		inner = append(inner, text+" AS "+key)
		if k.desc {
			key += " DESC"
		}
		if k.nulls != "" {
			key += " NULLS " + k.nulls
		}
		keys = append(keys, key)
	}
	for i, text := range texts {
		c := quoteName("c" + strconv.Itoa(i))
		inner = append(inner, text+" AS "+c)
		names = append(names, c+" AS "+quoteName(columns[i].Name))
	}
	where := ""
	if sel.where != nil {
		done := s.eachRow()
		where = " WHERE " + w.condition(sel.where, s)
		done()
	}
	rank := quoteName(w.newName())
	ranked := "rank() OVER (ORDER BY " + strings.Join(keys, ", ") + ") AS " + rank
	return w.note("SELECT " + strings.Join(names, ", ") + " FROM (SELECT *, " + ranked + " FROM (SELECT " + strings.Join(inner, ", ") + from + where + w.tail(sel, s) + ")) WHERE " +
		rank + " <= " + w.count(limit, outer) + " ORDER BY " + rank), columns
}

// joined writes FOR XML PATH(”), by which T-SQL joined the texts of several rows before it had STRING_AGG.
func (w *writer) joined(q *query, outer *scope) string {
	sel := q.body.sel
	if sel == nil || len(sel.items) != 1 || sel.items[0].star || sel.items[0].alias != "" && sel.items[0].alias != "text()" {
		panic(unsupported("FOR XML PATH('') of more than one column without a name", "STRING_AGG joins texts"))
	}
	if sel.items[0].alias == "" && sel.items[0].e.kind == exColumn { // T-SQL makes an element of it
		panic(unsupported("FOR XML PATH('') of a column with its name", "write '' + name, or name AS [text()]; STRING_AGG joins texts"))
	}
	plain := *q
	plain.xml, plain.with = false, nil
	c := *sel
	c.items = []item{{e: sel.items[0].e, alias: "~x"}}
	plain.body = &body{sel: &c}
	text, columns := w.query(&plain, outer)
	if k := columns[0].Type.Kind; k != Text && k != Int && k != Null && k != Unknown {
		panic(unsupported("FOR XML PATH('') of a "+kindNames[k], "CAST it to a varchar"))
	}
	return w.note(`SELECT group_concat(co_xml("~x"), '') AS "?column?" FROM (` + text + ")")
}

func (w *writer) limit(limit, offset *expr, s *scope) string {
	if limit == nil && offset == nil {
		return ""
	}
	text := "-1"
	if limit != nil {
		text = w.count(limit, s)
	}
	if offset != nil {
		return " LIMIT " + text + " OFFSET " + w.count(offset, s)
	}
	return " LIMIT " + text
}

// count writes a number of rows.
func (w *writer) count(e *expr, s *scope) string {
	if e.kind == exParam {
		n, _ := strconv.Atoi(e.text)
		w.limits = append(w.limits, n)
		if w.params[n] == 0 {
			w.params[n] = 20
		}
		return "?" + e.text
	}
	if e.kind == exNumber {
		n, err := strconv.ParseUint(e.text, 10, 31)
		if err != nil {
			panic(Errorf("42601", "a number of rows is a whole number, not %.40q", e.text))
		}
		return strconv.FormatUint(n, 10)
	}
	text, _ := w.expr(e, &scope{parent: s})
	return "co_rows(" + text + ")"
}
