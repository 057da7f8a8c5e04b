package catalog

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"modernc.org/sqlite"

	"github.com/coteriedb/coterie/internal/admin/scalar"
	"github.com/coteriedb/coterie/internal/ag"
)

type pureFunction = func(args []driver.Value) (driver.Value, error)

func text(v driver.Value) string {
	switch x := v.(type) {
	case nil:
		return ""
	case string:
		return x
	case []byte:
		return string(x)
	}
	return fmt.Sprint(v)
}

func constant(v driver.Value) pureFunction {
	return func([]driver.Value) (driver.Value, error) { return v, nil }
}

// pure are the functions that do not need facts, by name, with their numbers of arguments (-1: any).
var pure = map[string]struct {
	args int32
	f    pureFunction
}{
	"extract_field":                   {2, extractField},
	"date_part":                       {2, extractField},
	"date_trunc":                      {2, dateTrunc},
	"to_timestamp":                    {1, toTimestamp},
	"pg_table_is_visible":             {1, constant(int64(1))},
	"pg_type_is_visible":              {1, constant(int64(1))},
	"pg_function_is_visible":          {1, constant(int64(1))},
	"pg_get_userbyid":                 {1, constant("coterie")},
	"pg_get_expr":                     {-1, constant(nil)},
	"pg_get_viewdef":                  {-1, constant("")},
	"pg_get_indexdef":                 {-1, constant("")},
	"pg_get_constraintdef":            {-1, constant("")},
	"pg_get_statisticsobjdef_columns": {-1, constant("")},
	"pg_relation_is_publishable":      {1, constant(int64(0))},
	"obj_description":                 {-1, some(description)},
	"col_description":                 {2, description},
	"shobj_description":               {2, constant(nil)},
	"has_table_privilege":             {-1, constant(int64(1))},
	"has_schema_privilege":            {-1, constant(int64(1))},
	"has_database_privilege":          {-1, constant(int64(1))},
	"has_any_column_privilege":        {-1, constant(int64(1))},
	"pg_is_in_recovery":               {0, constant(int64(0))},
	"pg_backend_pid":                  {0, constant(int64(0))},
	"pg_relation_size":                {-1, constant(int64(0))},
	"pg_table_size":                   {-1, constant(int64(0))},
	"pg_total_relation_size":          {-1, constant(int64(0))},
	"pg_database_size":                {-1, constant(nil)},
	"pg_size_pretty":                  {1, sizePretty},
	"pg_encoding_to_char":             {1, constant("UTF8")},
	"pg_tablespace_location":          {1, constant("")},
	"array_to_string":                 {-1, some(func(a []driver.Value) (driver.Value, error) { return a[0], nil })},
	"quote_ident":                     {1, quoteIdent},
	"quote_literal": {1, func(a []driver.Value) (driver.Value, error) {
		if a[0] == nil {
			return nil, nil
		}
		return "'" + strings.ReplaceAll(text(a[0]), "'", "''") + "'", nil
	}},
	"format_type":       {2, formatType},
	"to_regclass":       {1, toRegclass},
	"current_database":  {0, constant("coterie")},
	"current_catalog":   {0, constant("coterie")},
	"current_schema":    {0, constant("sys")},
	"split_part":        {3, splitPart},
	"txid_current":      {0, constant(int64(0))},
	"pg_get_partkeydef": {1, constant(nil)},
	"inet_server_addr":  {0, constant(nil)},
	"inet_server_port":  {0, constant(nil)},
}

// some refuses a call without arguments, which the engine lets through where a function takes any number of them.
func some(f pureFunction) pureFunction {
	return func(a []driver.Value) (driver.Value, error) {
		if len(a) == 0 {
			return nil, errors.New("wrong number of arguments: the function needs one")
		}
		return f(a)
	}
}

func integer(v driver.Value) int64 {
	switch x := v.(type) {
	case int64:
		return x
	case float64:
		return int64(x)
	}
	n, _ := strconv.ParseInt(text(v), 10, 64)
	return n
}

// errOver ends the calls of functions when their query has ended: the engine itself looks between rows only, and a row
// may have hundreds of calls.
var errOver = errors.New("interrupted")

// until makes a function fail when the running query has ended.
func (e *engine) until(f pureFunction) func(*sqlite.FunctionContext, []driver.Value) (driver.Value, error) {
	return func(_ *sqlite.FunctionContext, args []driver.Value) (driver.Value, error) {
		select {
		case <-e.over:
			return nil, errOver
		default:
			return f(args)
		}
	}
}

// registerPure registers the functions with the driver of an engine.
func (e *engine) registerPure(d *sqlite.Driver) error {
	for name, fn := range pure {
		err := d.RegisterFunction(name, &sqlite.FunctionImpl{
			NArgs: fn.args, Deterministic: true,
			Scalar: e.until(fn.f),
		})
		if err != nil {
			return fmt.Errorf("function %s: %w", name, err)
		}
	}
	for name, fn := range scalar.Functions {
		err := d.RegisterFunction(name, &sqlite.FunctionImpl{
			NArgs: fn.Args, Deterministic: !fn.Free,
			Scalar: e.until(fn.F),
		})
		if err != nil {
			return fmt.Errorf("function %s: %w", name, err)
		}
	}
	return nil
}

func parseTime(v driver.Value) (time.Time, bool) {
	if t, ok := v.(time.Time); ok {
		return t, true
	}
	for _, layout := range []string{"2006-01-02 15:04:05.999999-07", "2006-01-02 15:04:05.999999-07:00", "2006-01-02T15:04:05.999999Z07:00", "2006-01-02 15:04:05.999999", "2006-01-02"} {
		if t, err := time.Parse(layout, text(v)); err == nil {
			return t, true
		}
	}
	return time.Time{}, false
}

// extractField implements extract(field from x) for times and for intervals, which are numbers of seconds here.
func extractField(a []driver.Value) (driver.Value, error) {
	if a[1] == nil {
		return nil, nil
	}
	t, ok := parseTime(a[1])
	if !ok {
		if _, err := strconv.ParseFloat(text(a[1]), 64); err == nil && text(a[0]) == "epoch" {
			return a[1], nil
		}
		return nil, fmt.Errorf("%q is no time", text(a[1]))
	}
	t = t.UTC()
	switch text(a[0]) {
	case "epoch":
		return float64(t.UnixMicro()) / 1e6, nil
	case "year":
		return int64(t.Year()), nil
	case "month":
		return int64(t.Month()), nil
	case "day":
		return int64(t.Day()), nil
	case "hour":
		return int64(t.Hour()), nil
	case "minute":
		return int64(t.Minute()), nil
	case "second":
		return float64(t.Second()) + float64(t.Nanosecond())/1e9, nil
	}
	return nil, fmt.Errorf("unit %q is not known", text(a[0]))
}

func dateTrunc(a []driver.Value) (driver.Value, error) {
	t, ok := parseTime(a[1])
	if !ok {
		return nil, nil
	}
	t = t.UTC()
	y, m, d := t.Date()
	switch text(a[0]) {
	case "year":
		t = time.Date(y, 1, 1, 0, 0, 0, 0, time.UTC)
	case "quarter":
		t = time.Date(y, m-(m-1)%3, 1, 0, 0, 0, 0, time.UTC)
	case "month":
		t = time.Date(y, m, 1, 0, 0, 0, 0, time.UTC)
	case "week": // it begins on Monday
		t = time.Date(y, m, d-int(t.Weekday()+6)%7, 0, 0, 0, 0, time.UTC)
	case "day":
		t = time.Date(y, m, d, 0, 0, 0, 0, time.UTC)
	case "hour":
		t = t.Truncate(time.Hour)
	case "minute":
		t = t.Truncate(time.Minute)
	case "second":
		t = t.Truncate(time.Second)
	default:
		return nil, fmt.Errorf("unit %q is not known", text(a[0]))
	}
	return timeText(t), nil
}

func toTimestamp(a []driver.Value) (driver.Value, error) {
	if a[0] == nil {
		return nil, nil
	}
	f, err := strconv.ParseFloat(text(a[0]), 64)
	if err != nil || math.Abs(f) > 1e11 {
		return nil, fmt.Errorf("%q is no number of seconds", text(a[0]))
	}
	return timeText(time.UnixMicro(int64(f * 1e6))), nil
}

func formatType(a []driver.Value) (driver.Value, error) {
	for _, t := range columnTypes {
		if int64(t.oid) == integer(a[0]) {
			return t.name, nil
		}
	}
	return "???", nil
}

func toRegclass(a []driver.Value) (driver.Value, error) {
	name := strings.ToLower(strings.ReplaceAll(text(a[0]), `"`, ""))
	for _, v := range views {
		if name == v.full() || name == v.name || strconv.FormatInt(v.oid, 10) == name {
			return v.oid, nil
		}
	}
	return nil, nil
}

// splitPart is split_part: a negative number counts from the end.
func splitPart(a []driver.Value) (driver.Value, error) {
	if a[0] == nil || a[1] == nil || a[2] == nil {
		return nil, nil
	}
	parts := []string{text(a[0])}
	if text(a[1]) != "" {
		parts = strings.Split(text(a[0]), text(a[1]))
	}
	n := integer(a[2])
	if n < 0 {
		n += int64(len(parts)) + 1
	} else if n == 0 {
		return nil, errors.New("field position must not be zero")
	}
	if n >= 1 && n <= int64(len(parts)) {
		return parts[n-1], nil
	}
	return "", nil
}

// sizePretty is pg_size_pretty: in the largest unit in which the number is not too small, rounded.
func sizePretty(a []driver.Value) (driver.Value, error) {
	if a[0] == nil {
		return nil, nil
	}
	n := integer(a[0])
	size := func() int64 { return max(n, -n) }
	if size() < 10*1024 {
		return strconv.FormatInt(n, 10) + " bytes", nil
	}
	n /= 512 // a bit is left for rounding
	units := []string{"kB", "MB", "GB", "TB", "PB"}
	for len(units) > 1 && size() >= 20*1024-1 {
		n, units = n/1024, units[1:]
	}
	half := int64(1)
	if n < 0 {
		half = -1
	}
	return strconv.FormatInt((n+half)/2, 10) + " " + units[0], nil
}

// answers are the functions of the facts, by name, with their numbers of arguments.
var answers = map[string]struct {
	args int32
	f    func(Facts, []driver.Value) (driver.Value, error)
}{
	"now":      {0, func(f Facts, _ []driver.Value) (driver.Value, error) { return timeText(f.Now), nil }},
	"co_today": {0, func(f Facts, _ []driver.Value) (driver.Value, error) { return f.Now.UTC().Format(time.DateOnly), nil }},
	"pg_postmaster_start_time": {0, func(f Facts, _ []driver.Value) (driver.Value, error) {
		return timeText(f.Now.Add(-f.Nodes[f.Self].Uptime)), nil
	}},
	"version": {-1, func(f Facts, _ []driver.Value) (driver.Value, error) {
		return "PostgreSQL " + f.Version + " (the console of an availability group)", nil
	}},
	"servername":                          {0, func(f Facts, _ []driver.Value) (driver.Value, error) { return string(f.Self), nil }},
	"current_user":                        {0, func(f Facts, _ []driver.Value) (driver.Value, error) { return f.User, nil }},
	"session_user":                        {0, func(f Facts, _ []driver.Value) (driver.Value, error) { return f.User, nil }},
	"current_role":                        {0, func(f Facts, _ []driver.Value) (driver.Value, error) { return f.User, nil }},
	"user":                                {0, func(f Facts, _ []driver.Value) (driver.Value, error) { return f.User, nil }},
	"suser_sname":                         {-1, func(f Facts, _ []driver.Value) (driver.Value, error) { return f.User, nil }},
	"serverproperty":                      {1, serverProperty},
	"db_name":                             {-1, databaseName},
	"db_id":                               {-1, databaseID},
	"object_id":                           {-1, objectID},
	"databasepropertyex":                  {2, databaseProperty},
	"fn_hadr_distributed_ag_replica":      {2, func(Facts, []driver.Value) (driver.Value, error) { return nil, nil }},
	"current_setting":                     {-1, currentSetting},
	"backup_is_preferred_replica":         {-1, preferred},
	"fn_hadr_backup_is_preferred_replica": {1, preferred},
	"fn_hadr_is_primary_replica":          {1, isPrimary},
}

func preferred(f Facts, a []driver.Value) (driver.Value, error) {
	if len(a) > 0 && !f.has(text(a[0])) {
		return int64(1), nil // a database outside of the group is backed up on its own node
	}
	return bit(f.PreferredForBackup(f.Self)), nil
}

func isPrimary(f Facts, a []driver.Value) (driver.Value, error) {
	if !f.has(text(a[0])) {
		return nil, nil
	}
	return bit(f.Primary == f.Self && f.WriteOpen), nil
}

// has reports whether the group has the database. A name that no database has is looked for without regard to case, as
// SQL Server does; one that was dropped is none.
func (f Facts) has(database string) bool {
	d, ok := named(f.databases(), database)
	return ok && (d.OID != 0 || !f.listed())
}

// listed reports whether any node reports the databases of its server.
func (f Facts) listed() bool {
	for _, n := range f.Nodes {
		if len(n.Databases) > 0 {
			return true
		}
	}
	return false
}

// named returns the database of that name or, if there is none, the only one whose name differs in case alone.
func named(list []Database, name string) (found Database, ok bool) {
	for _, d := range list {
		if d.Name == name {
			return d, true
		}
	}
	for _, d := range list {
		if !strings.EqualFold(d.Name, name) || d.Name == found.Name {
			continue
		}
		if ok {
			return Database{}, false
		}
		found, ok = d, true
	}
	return found, ok
}

func serverProperty(f Facts, a []driver.Value) (driver.Value, error) {
	switch strings.ToLower(text(a[0])) {
	case "servername", "machinename", "computernamephysicalnetbios":
		return string(f.Self), nil
	case "ishadrenabled", "hadrmanagerstatus":
		return int64(1), nil
	case "isclustered", "issingleuser", "isintegratedsecurityonly", "isfulltextinstalled":
		return int64(0), nil
	case "productmajorversion":
		major, _, _ := strings.Cut(f.Version, ".")
		return major, nil
	case "productlevel":
		return "RTM", nil
	case "collation":
		return "C", nil
	case "productversion":
		return f.Version, nil
	case "edition":
		return "PostgreSQL", nil
	}
	return nil, nil
}

// databaseName is DB_NAME. Without an argument it is the console's own database.
func databaseName(f Facts, a []driver.Value) (driver.Value, error) {
	if len(a) == 0 {
		return "coterie", nil
	}
	for _, d := range f.allDatabases() {
		if a[0] != nil && int64(d.OID) == integer(a[0]) {
			return d.Name, nil
		}
	}
	return nil, nil
}

// databaseID is DB_ID. The console's own database is none of the views, and has no id.
func databaseID(f Facts, a []driver.Value) (driver.Value, error) {
	if len(a) == 0 || a[0] == nil {
		return nil, nil
	}
	d, ok := named(f.allDatabases(), text(a[0]))
	if !ok || d.OID == 0 {
		return nil, nil
	}
	return int64(d.OID), nil
}

// allDatabases returns the databases of the group and of this node.
func (f Facts) allDatabases() []Database {
	return append(slices.Clone(f.databases()), f.Nodes[f.Self].Databases...)
}

// objectID is OBJECT_ID: of a view, or NULL.
func objectID(_ Facts, a []driver.Value) (driver.Value, error) {
	return toRegclass([]driver.Value{strings.NewReplacer("[", "", "]", "", "master.", "").Replace(text(a[0]))})
}

// databaseProperty is DATABASEPROPERTYEX, of a database of this node. A witness has none.
func databaseProperty(f Facts, a []driver.Value) (driver.Value, error) {
	here, n := f.Nodes[f.Self].Databases, f.Nodes[f.Self]
	self, _ := f.Group.Replica(f.Self)
	_, listed := named(here, text(a[0]))
	if id, _ := databaseID(f, a); a[0] == nil || len(here) > 0 && !listed || len(here) == 0 && (id == nil || !self.HasData()) {
		return nil, nil
	}
	switch strings.ToLower(text(a[1])) {
	case "status":
		if !listed { // its server does not answer
			return databaseState(n, ag.RoleResolving).desc, nil
		}
		return "ONLINE", nil
	case "updateability":
		if f.Nodes[f.Self].Role != ag.RolePrimary {
			return "READ_ONLY", nil
		}
		return "READ_WRITE", nil
	case "useraccess":
		return "MULTI_USER", nil
	case "recovery":
		return "FULL", nil
	}
	return nil, fmt.Errorf("DATABASEPROPERTYEX with %q is not supported: Status, Updateability, UserAccess and Recovery are", text(a[1]))
}

func currentSetting(f Facts, a []driver.Value) (driver.Value, error) {
	if len(a) == 0 {
		return nil, fmt.Errorf("current_setting needs a name")
	}
	switch strings.ToLower(text(a[0])) {
	case "server_version_num":
		major, minor, _ := strings.Cut(f.Version, ".")
		m, _ := strconv.Atoi(major)
		n, _ := strconv.Atoi(minor)
		return strconv.Itoa(m*10000 + n), nil
	case "server_version":
		return f.Version, nil
	case "search_path":
		return "sys, coterie", nil
	case "timezone":
		return "UTC", nil
	case "is_superuser":
		return "off", nil
	}
	if len(a) > 1 {
		return nil, nil
	}
	return nil, fmt.Errorf("unrecognized configuration parameter %q", text(a[0]))
}

var plainName = regexp.MustCompile(`^[a-z_][a-z0-9_]*$`)

func quoteIdent(a []driver.Value) (driver.Value, error) {
	name := text(a[0])
	if plainName.MatchString(name) {
		return name, nil
	}
	return `"` + strings.ReplaceAll(name, `"`, `""`) + `"`, nil
}
