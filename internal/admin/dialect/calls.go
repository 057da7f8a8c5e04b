package dialect

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// function is a function that a query may call: its numbers of arguments, its name in the engine, the kinds of its
// arguments (n a number, s a text, t a time, x anything; the last one stands for all that follow) and its result.
type function struct {
	min, max int
	engine   string
	args     string
	result   string // int, bigint, float, text, time, date, bit, uuid, same (as the first argument), or ?
}

// functionTable has a line for each function: name, arguments at least and at most, name in the engine, kinds, result.
const functionTable = `
len 1 1 co_len s int
length 1 1 co_length s int
char_length 1 1 co_length s int
character_length 1 1 co_length s int
octet_length 1 1 octet_length s int
upper 1 1 co_upper s text
lower 1 1 co_lower s text
ltrim 1 2 co_ltrim s text
rtrim 1 2 co_rtrim s text
btrim 1 2 co_trim s text
left 2 2 co_left sn text
right 2 2 co_right sn text
substring 2 3 co_substring snn text
substr 2 3 co_substring snn text
charindex 2 3 co_charindex ssn int
position 2 2 co_position ss int
strpos 2 2 co_strpos ss int
patindex 2 2 co_patindex ss int
replace 3 3 co_replace s text
replicate 2 2 co_repeat sn text
repeat 2 2 co_pgrepeat sn text
space 1 1 co_space n text
reverse 1 1 co_reverse s text
stuff 4 4 co_stuff snns text
translate 3 3 co_translate s text
ascii 1 1 co_ascii s int
unicode 1 1 co_ascii s int
char 1 1 co_char n text
nchar 1 1 co_chr n text
chr 1 1 co_chr n text
quotename 1 2 co_quotename s text
parsename 2 2 co_parsename sn text
str 1 3 co_fixed n text
lpad 2 3 co_lpad sns text
rpad 2 3 co_rpad sns text
initcap 1 1 co_initcap s text
abs 1 1 abs n same
sign 1 1 sign n whole
ceiling 1 1 ceil n whole
ceil 1 1 ceil n whole
floor 1 1 floor n whole
round 1 3 co_round n round
power 2 2 co_pow n power
pow 2 2 co_pow n power
sqrt 1 1 co_sqrt n float
square 1 1 co_square n float
exp 1 1 co_exp n float
ln 1 1 co_ln n float
log10 1 1 co_log10 n float
pi 0 0 pi x float
isnumeric 1 1 co_isnumeric x int
isdate 1 1 co_isdate x int
getdate 0 0 now x time
getutcdate 0 0 now x time
sysdatetime 0 0 now x datetime2
sysutcdatetime 0 0 now x datetime2
sysdatetimeoffset 0 0 now x offset
now 0 0 now x time
clock_timestamp 0 0 now x time
statement_timestamp 0 0 now x time
transaction_timestamp 0 0 now x time
current_timestamp 0 0 now x time
localtimestamp 0 0 now x time
current_date 0 0 co_today x date
datediff 3 3 co_datediff stt int
datediff_big 3 3 co_datediff_big stt bigint
dateadd 3 3 co_dateadd snt time
datepart 2 2 co_datepart st int
datename 2 2 co_datename st text
datetrunc 2 2 co_datetrunc st time
date_trunc 2 2 date_trunc st time
date_part 2 2 extract_field x float
extract_field 2 2 extract_field x float
year 1 1 co_year t int
month 1 1 co_month t int
day 1 1 co_day t int
eomonth 1 2 co_eomonth tn date
datefromparts 3 3 co_datefromparts n date
to_timestamp 1 1 to_timestamp n time
format 2 3 co_format xs text
newid 0 0 co_newid x uuid
gen_random_uuid 0 0 co_newid x uuid
db_name 0 1 db_name n text
db_id 0 1 db_id s int
object_id 1 2 object_id s int
serverproperty 1 1 serverproperty s ?
databasepropertyex 2 2 databasepropertyex s text
suser_name 0 0 suser_sname x text
suser_sname 0 0 suser_sname x text
user_name 0 0 suser_sname x text
original_login 0 0 suser_sname x text
system_user 0 0 suser_sname x text
current_user 0 0 current_user x text
session_user 0 0 session_user x text
current_role 0 0 current_role x text
user 0 0 user x text
@@servername 0 0 servername x text
@@version 0 0 version x text
@@spid 0 0 pg_backend_pid x int
@@servicename 0 0 co_servicename x text
@@language 0 0 co_language x text
count 0 1 count x bigint
count_big 0 1 count x bigint
sum 1 1 sum n sum
avg 1 1 avg n mean
min 1 1 min x same
max 1 1 max x same
total 1 1 total n float
string_agg 2 2 string_agg xs text
bool_and 1 1 min x same
bool_or 1 1 max x same
every 1 1 min x same
row_number 0 0 row_number x bigint
rank 0 0 rank x bigint
dense_rank 0 0 dense_rank x bigint
percent_rank 0 0 percent_rank x float
cume_dist 0 0 cume_dist x float
ntile 1 1 ntile n bigint
lag 1 3 lag x same
lead 1 3 lead x same
first_value 1 1 first_value x same
last_value 1 1 last_value x same
nth_value 2 2 nth_value x same
pg_backend_pid 0 0 pg_backend_pid x int
fn_hadr_backup_is_preferred_replica 1 1 fn_hadr_backup_is_preferred_replica s bitint
fn_hadr_is_primary_replica 1 1 fn_hadr_is_primary_replica s bitint
fn_hadr_distributed_ag_replica 2 2 fn_hadr_distributed_ag_replica x text
`

var functions = sync.OnceValue(func() map[string]function {
	out := map[string]function{}
	for line := range strings.Lines(functionTable) {
		f := strings.Fields(line)
		if len(f) != 6 {
			continue
		}
		least, _ := strconv.Atoi(f[1])
		most, _ := strconv.Atoi(f[2])
		out[f[0]] = function{least, most, f[3], f[4], f[5]}
	}
	return out
})

// EngineFunctions returns the names of the functions of the engine that a translation may contain.
func EngineFunctions() []string {
	out := strings.Fields(`co_number co_add co_plus co_minus co_times co_exact co_only co_div co_mod co_text co_str co_cut co_int co_dec co_float co_bit co_date co_time co_clock co_uuid co_elapsed
		co_like co_xml co_rows co_greatest co_least co_concat co_isnull regexp to_regclass json_each json_extract json_array json_group_array group_concat
		ifnull nullif coalesce iif lower`)
	for _, f := range functions() {
		out = append(out, f.engine)
	}
	return out
}

// refusedFunctions are functions of both languages that are refused by name, with what to do instead.
var refusedFunctions = map[string]string{
	"log": "it is the natural logarithm in T-SQL and the decimal one in PostgreSQL: use LN or LOG10", "datalength": "it depends on the encoding: use LEN or octet_length",
	"is_srvrolemember": "there are no server roles: coterie_viewer, coterie_operator and coterie_admin decide, and superusers do everything",
	"is_rolemember":    "membership of coterie_viewer, coterie_operator and coterie_admin decides: ask pg_has_role in another database",
	"host_name":        "coterie.sessions has the clients' addresses", "app_name": "", "checksum": "", "binary_checksum": "", "rand": "", "random": "", "object_name": "",
	"stdev": "", "stdevp": "", "var": "", "varp": "", "stddev": "", "variance": "", "soundex": "", "hashbytes": "", "switchoffset": "all times are UTC", "todatetimeoffset": "all times are UTC",
	"parse": "use CAST or CONVERT", "try_parse": "use TRY_CAST or TRY_CONVERT", "json_value": "use json_extract",
	"json_query": "use json_extract", "openjson": "", "string_split": "", "generate_series": "", "unnest": "an array is not there", "to_char": "use FORMAT or CONVERT",
	"age": "use DATEDIFF", "array_agg": "use STRING_AGG", "percentile_cont": "", "percentile_disc": "", "approx_count_distinct": "use COUNT(DISTINCT x)", "formatmessage": "",
	"session_context": "", "permissions": "", "has_perms_by_name": "", "col_name": "", "schema_name": "", "type_name": "", "ident_current": "", "scope_identity": "",
	"regexp_replace": "", "regexp_matches": "", "to_number": "use CAST", "to_date": "use CAST", "make_interval": "use DATEADD", "isjson": "", "compress": "", "crypt_gen_random": "",
	"quote_nullable": "", "grouping": "", "grouping_id": "", "opendatasource": "", "openrowset": "", "openquery": "", "file_name": "", "filegroup_name": "", "loginproperty": "",
	"pg_promote": "coterie failover --to NAME, or ALTER AVAILABILITY GROUP ... FAILOVER", "pg_reload_conf": "coterie settings set puts a setting in force on every replica",
	"pg_switch_wal": "in any other database", "pg_terminate_backend": "in any other database; coterie.sessions has the pids", "pg_cancel_backend": "in any other database; coterie.sessions has the pids",
	"pg_wal_replay_pause": "ALTER AVAILABILITY GROUP ... SUSPEND, on the replica", "pg_wal_replay_resume": "ALTER AVAILABILITY GROUP ... RESUME, on the replica",
}

// call writes the call of a function.
func (w *writer) call(e *expr, s *scope) (string, Type) {
	if e.call == nil {
		e.call = &callParts{}
	}
	switch e.text {
	case "isnull", "ifnull":
		return w.isNull(e, s)
	case "coalesce", "nullif", "greatest", "least":
		return w.oneType(e, s)
	case "iif":
		w.arity(e, 3, 3)
		return w.caseOf(&expr{kind: exCase, args: []*expr{nil, e.args[0], e.args[1], e.args[2]}}, s)
	case "choose":
		return w.choose(e, s)
	case "mod":
		w.arity(e, 2, 2)
		return w.expr(binary("%", e.args[0], e.args[1]), s)
	case "concat", "concat_ws":
		return w.concat(e, s)
	case "current_setting", "current_schemas":
	case "@@error", "@@rowcount", "@@trancount", "xact_state", "error_number", "error_severity", "error_state", "error_line", "error_message", "error_procedure":
		return w.told(e)
	}
	f, ok := functions()[e.text]
	switch hint, refused := refusedFunctions[e.text]; {
	case ok:
	case refused:
		panic(unsupported(strings.ToUpper(e.text), hint))
	case !strings.HasPrefix(e.text, "co_") && w.env.Function != nil && w.env.Function(e.text):
		f = function{0, 100, e.text, "x", "?"}
	default:
		panic(&Error{State: "42883", Message: "no such function: " + strings.ToUpper(e.text), Hint: "docs/views.md lists the functions of the console"})
	}
	if e.call.star && e.text != "count" && e.text != "count_big" {
		panic(Errorf("42601", "%s(*)", strings.ToUpper(e.text)))
	}
	if !e.call.star || len(e.args) > 0 {
		w.arity(e, f.min, f.max)
	}
	if e.aggregate() {
		defer s.eachRow()()
	}
	var texts []string
	var types []Type
	for i, x := range e.args {
		text, t := w.expr(x, s)
		texts, types = append(texts, w.argument(e, i, text, t)), append(types, t)
	}
	switch {
	case e.text == "string_agg" && types[0].Kind == Unknown:
		texts[0] = w.asText(texts[0], types[0])
	case e.text == "string_agg":
		texts[0] = w.asString(texts[0], types[0])
	case e.text == "format":
		texts = append(append(texts, "NULL")[:3], types[0].digits())
	case (e.text == "lag" || e.text == "lead") && len(texts) == 3:
		texts[2] = w.converted(texts[2], types[2], types[0])
	}
	return w.result(e, f.result, w.around(e, f.engine, texts, s), types)
}

// told writes what T-SQL tells of the last statement, of the transaction, and in CATCH of the error.
func (w *writer) told(e *expr) (string, Type) {
	w.arity(e, 0, 0)
	name := e.text
	if !strings.HasPrefix(name, "@@") {
		name += "()"
	}
	whole := Type{Kind: Int, OID: 23}
	v, ok := w.env.Variables[name]
	switch {
	case ok:
		return v.write()
	case name == "@@rowcount":
		panic(unsupported("@@ROWCOUNT before the first statement of a session", "it counts the rows of the statement before it: write both into one text"))
	case name == "error_message()" || name == "error_procedure()":
		return "NULL", Type{Kind: Text}
	case strings.HasPrefix(name, "error_"):
		return "NULL", whole
	}
	return "0", whole
}

// caseMatters are the functions that look for a text in another one.
var caseMatters = map[string]bool{"charindex": true, "patindex": true, "position": true, "strpos": true, "replace": true, "translate": true, "ltrim": true, "rtrim": true, "btrim": true}

// argument writes an argument as a value of the kind that the function takes.
func (w *writer) argument(e *expr, i int, text string, t Type) string {
	f := functions()[e.text]
	kind := byte('x')
	if f.args != "" {
		kind = f.args[min(i, len(f.args)-1)]
	}
	if e.args[i].kind == exCollate && e.args[i].text == "NOCASE" && caseMatters[e.text] {
		panic(unsupported("COLLATE within "+strings.ToUpper(e.text), "use UPPER on both texts"))
	}
	if e.args[i].kind == exParam {
		w.guess(e.args[i], map[byte]Type{'n': {Kind: Int}, 's': {Kind: Text}, 't': {Kind: Time}}[kind])
		return text
	}
	switch {
	case kind == 'n':
		return w.asNumber(text, t)
	case kind == 's' && t.Kind != Text && t.Kind != Unknown && t.Kind != Null:
		return w.asString(text, t)
	case kind == 't' && t.Kind != Time:
		hasPart(e, t)
		return fmt.Sprintf("co_time(%s, %d, 0)", text, zoneless)
	case e.text == "isdate" && (t.Kind == Date || t.Kind == Clock || t.Kind == Time && t.Scale >= 10):
		panic(unsupported("ISDATE of a value that is not a text or a datetime", "the value is a "+kindNames[t.Kind]+" already"))
	case kind == 'x' && e.text == "format":
		if t.Kind == Text || t.Kind == Clock || t.Kind == Bit || t.Kind == UUID {
			panic(unsupported("FORMAT of a "+kindNames[t.Kind], "PostgreSQL's format() is not there; CONCAT joins texts"))
		}
	case kind == 'x' && t.Kind == Elapsed && e.text != "extract_field" && e.text != "date_part":
		panic(unsupported("the difference of two times as an argument of "+strings.ToUpper(e.text), "use DATEDIFF"))
	}
	return text
}

func (w *writer) arity(e *expr, least, most int) {
	if len(e.args) < least || len(e.args) > most {
		panic(Errorf("42883", "wrong number of arguments to function %s()", strings.ToUpper(e.text)))
	}
}

// around writes a call with DISTINCT, FILTER and OVER.
func (w *writer) around(e *expr, name string, texts []string, s *scope) string {
	args := strings.Join(texts, ", ")
	switch {
	case e.call.star:
		args = "*"
	case e.call.distinct:
		if e.text == "string_agg" {
			panic(unsupported("STRING_AGG(DISTINCT ...)", "take DISTINCT in a query of its own"))
		}
		args = "DISTINCT " + args
	}
	if len(e.call.order) > 0 {
		args += " ORDER BY " + w.keys(e.call.order, s)
	}
	out := name + "(" + args + ")"
	if e.call.filter != nil {
		out += " FILTER (WHERE " + w.condition(e.call.filter, s) + ")"
	}
	if e.call.overName != "" {
		return out + " OVER " + quoteName(e.call.overName)
	}
	if e.call.over != nil {
		return out + " OVER " + w.window(e.call.over, s)
	}
	return out
}

func (w *writer) window(x *window, s *scope) string {
	var parts []string
	if x.base != "" {
		parts = append(parts, quoteName(x.base))
	}
	if x.partition != nil {
		parts = append(parts, "PARTITION BY "+w.list2(x.partition, s))
	}
	if len(x.order) > 0 {
		parts = append(parts, "ORDER BY "+w.keys(x.order, s))
	}
	return "(" + strings.Join(append(parts, x.frame...), " ") + ")"
}

// isNull writes ISNULL, whose result is of the first value's type and length.
func (w *writer) isNull(e *expr, s *scope) (string, Type) {
	w.arity(e, 2, 2)
	a, ta := w.expr(e.args[0], s)
	b, tb := w.expr(e.args[1], s)
	to := w.agree(ta, tb)
	if ta.Kind != Null && ta.Kind != Unknown {
		to = ta
	}
	switch {
	case to.Kind == Int && (tb.Kind == Text || tb.Kind == Decimal || tb.Kind == Float):
		b = "co_int(" + b + ", 64, 0, 0)"
	case to.Kind == Text && tb.Kind != Text:
		b = w.asString(b, tb)
	case to.Kind == Bit && tb.Kind != Bit:
		b = "co_bit(" + b + ", 0, 0)"
	case to.Kind == Decimal && tb.numeric() && tb.Kind != Int:
		b = "co_exact(" + b + ", " + to.digits() + ")"
	default:
		b = w.converted(b, tb, to)
	}
	if to.Kind == Text && to.Len > 0 {
		b = fmt.Sprintf("co_cut(%s, %d, %d, 0)", b, to.Len, 2*to.Scale)
	}
	return "ifnull(" + a + ", " + b + ")", to
}

// oneType writes a function whose arguments are of one type, which is that of its result.
func (w *writer) oneType(e *expr, s *scope) (string, Type) {
	w.arity(e, 1, 100)
	var texts []string
	var types []Type
	for _, x := range e.args {
		text, t := w.expr(x, s)
		if x.kind == exParam {
			t = Type{Kind: Null}
		}
		texts, types = append(texts, text), append(types, t)
	}
	to := w.agree(types...)
	for i := range texts {
		if e.args[i].kind != exParam {
			texts[i] = w.converted(texts[i], types[i], to)
		}
		w.guess(e.args[i], to)
	}
	name := map[string]string{"greatest": "co_greatest", "least": "co_least"}[e.text]
	switch {
	case e.text == "nullif":
		w.arity(e, 2, 2)
		name = e.text
		if types[0].Kind != Null && types[0].Kind != Unknown && types[0].Kind == to.Kind {
			to = types[0]
		}
	case e.text == "coalesce" && len(texts) == 1:
		return texts[0], to
	case e.text == "coalesce":
		name = e.text
	}
	return name + "(" + strings.Join(texts, ", ") + ")", to
}

func (w *writer) choose(e *expr, s *scope) (string, Type) {
	w.arity(e, 2, 100)
	c := &expr{kind: exCase, args: []*expr{e.args[0]}}
	if e.args[0].kind != exParam { // a fraction is cut off
		c.args[0] = &expr{kind: exCast, text: "CAST", args: []*expr{e.args[0]}, typ: typeName{name: "int"}}
	}
	for i, x := range e.args[1:] {
		c.args = append(c.args, &expr{kind: exNumber, text: strconv.Itoa(i + 1)}, x)
	}
	c.args = append(c.args, nil)
	return w.caseOf(c, s)
}

// concat writes CONCAT and CONCAT_WS, for which NULL is an empty text or none.
func (w *writer) concat(e *expr, s *scope) (string, Type) {
	w.arity(e, 1, 100)
	var texts []string
	for _, x := range e.args {
		text, t := w.expr(x, s)
		w.guess(x, Type{Kind: Text})
		texts = append(texts, w.asText(text, t))
	}
	separator := "''"
	if e.text == "concat_ws" {
		separator, texts = texts[0], texts[1:]
	}
	return "co_concat(" + strings.Join(append([]string{separator, quoteText(e.text)}, texts...), ", ") + ")", Type{Kind: Text}
}

// FunctionNames returns the names of the functions that a query may call, sorted, without those of PostgreSQL's
// catalog.
func FunctionNames() []string {
	out := strings.Fields(`mod isnull coalesce nullif greatest least iif choose concat concat_ws cast try_cast convert try_convert extract
		@@error @@rowcount @@trancount xact_state error_number error_severity error_state error_line error_message error_procedure`)
	for name := range functions() {
		if !strings.HasPrefix(name, "extract_") {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}
