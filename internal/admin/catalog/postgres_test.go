package catalog

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/lab/pgtest"
)

// agreed are expressions with the same meaning in PostgreSQL, by lines. The time t is 2026-03-05 09:07:03.123.
const agreed = `
1 + 2 * 3 - 4
7 / 2
-7 / 2
-7 % 3
7.5 / 2.5 > 2
2.50 + 1
1.5 * 2.25
1.10 - 0.2
10 - 2 - 3
- (2 - 5)
1 = 1 AND NOT 2 < 1
NULL = NULL
NULL OR true
NULL AND false
1 <> 2 OR NULL
3 BETWEEN 1 AND 3
3 NOT BETWEEN 1 AND 2
2 IN (1, 2, 3)
2 NOT IN (1, 3)
'b' IN ('a', 'b')
NULL IN (1)
2 = ANY (ARRAY[1, 2])
2 <> ALL (ARRAY[1, 3])
'a' = ANY ('{a,b}'::text[])
1 IS NULL
NULL IS NOT NULL
1 IS DISTINCT FROM NULL
NULL IS NOT DISTINCT FROM NULL
(1 = 2) IS FALSE
'abc' LIKE 'a%'
'abc' LIKE 'A%'
'abc' ILIKE 'A%'
'abc' NOT LIKE '_b_'
'a%c' LIKE 'a\%c'
'abc' LIKE 'a\%c'
'a!c' LIKE 'a!!c' ESCAPE '!'
'' LIKE '%'
'aXbXc' LIKE 'a%X_'
'abc' ~ '^a'
'abc' ~* 'B'
'abc' !~ 'x'
'a' || 'b' || 'c'
'a' || 1
'n: ' || 2.50
'a' || NULL
concat('a', NULL, 1, 2.50)
concat_ws('-', 'a', NULL, 'b')
upper('ab')
lower('AB')
length('ab  ')
length('é')
char_length('abc')
octet_length('é')
left('abcdef', 2)
left('abcdef', -2)
right('abcdef', 2)
right('abcdef', -2)
left('ab', 9)
substring('abcdef', 2, 3)
substring('abcdef', 0, 3)
substring('abcdef' FROM 3)
substring('abcdef' FROM 2 FOR 2)
substr('abcdef', 5)
position('c' IN 'abc')
strpos('abc', 'c')
replace('aXbX', 'X', '-')
repeat('ab', 3)
reverse('abc')
btrim('  a  ')
ltrim('  a')
rtrim('a  ')
trim(both 'x' from 'xax')
trim('  a ')
lpad('7', 3, '0')
rpad('a', 3)
initcap('hello wORLD')
translate('12345', '143', 'abc')
ascii('A')
chr(65)
split_part('a,b,c', ',', 2)
coalesce(NULL, 2, 3)
coalesce(NULL, 'x')
nullif(1, 1)
nullif('a', 'b')
greatest(1, NULL, 3)
least('b', 'a')
CASE WHEN 1 = 2 THEN 'a' WHEN 1 = 1 THEN 'b' END
CASE 3 WHEN 1 THEN 'x' ELSE 'y' END
CASE WHEN false THEN 1 END
abs(-5)
abs(-2.5)
ceil(2.1)
floor(-2.1)
sign(-3)
round(2.5)
round(-2.5)
sqrt(16)
mod(7, 3)
exp(0)
1.6::int
2.5::int
(-1.5)::int
'42'::int + 1
42::text || 'x'
'abc'::varchar(2)
1.005::numeric(10,2)
2::numeric(10,2)
true::text
'true'::boolean
1::boolean
'2026-03-05'::date
t::date
t = '2026-03-05 09:07:03.123+00'
t > '2026-03-05'
t BETWEEN '2026-03-05' AND '2026-03-06'
date_trunc('hour', t)
date_trunc('month', t)
extract(year from t)::int
extract(epoch from t)::bigint
extract(epoch from (t - '2026-03-05 09:00:00+00'::timestamptz))::int
t
t::timestamptz
date '2026-03-05'
'0D9C6D8E-7E47-4B8A-8A4E-0123456789AB'::uuid
EXISTS (SELECT 1)
(SELECT 5)
(1, 2) = (1, 2)
5 & 3
5 | 3
sum(1) OVER ()
row_number() OVER (ORDER BY t)
count(*)
`

// agreedQueries are queries with the same rows in PostgreSQL, on a table s.t(name text, n bigint, ok boolean).
var agreedQueries = []string{
	"SELECT name, n FROM {t} ORDER BY n NULLS LAST, name",
	"SELECT DISTINCT ok FROM {t} WHERE ok ORDER BY 1",
	"SELECT ok, count(*), sum(n), min(name), max(n) FROM {t} WHERE ok IS NOT NULL GROUP BY ok HAVING count(*) > 1 ORDER BY ok",
	"SELECT a.name, b.name FROM {t} a JOIN {t} b ON a.n = b.n AND a.name < b.name ORDER BY 1, 2",
	"SELECT a.name, b.n FROM {t} a LEFT JOIN {t} b ON b.n = a.n + 1 ORDER BY a.name, b.n NULLS LAST",
	"SELECT a.name FROM {t} a WHERE EXISTS (SELECT 1 FROM {t} b WHERE b.n > a.n) ORDER BY 1",
	"SELECT name FROM {t} WHERE n IN (SELECT max(n) FROM {t})",
	"SELECT name FROM {t} WHERE n = (SELECT min(n) FROM {t}) ORDER BY name",
	"WITH x AS (SELECT n, count(*) AS c FROM {t} GROUP BY n), y(m) AS (SELECT max(c) FROM x) SELECT x.n, x.c FROM x JOIN y ON x.c = y.m ORDER BY 1",
	"WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < 5) SELECT sum(i), string_agg(i::text, ',' ORDER BY i DESC) FROM c",
	"SELECT name, row_number() OVER (PARTITION BY ok ORDER BY name) AS r FROM {t} WHERE ok IS NOT NULL ORDER BY ok, r",
	"SELECT name, lag(name) OVER (ORDER BY name), sum(n) OVER (ORDER BY name ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) FROM {t} ORDER BY name",
	"SELECT name FROM {t} ORDER BY name OFFSET 1 ROWS FETCH NEXT 2 ROWS ONLY",
	"SELECT name, n FROM {t} ORDER BY n NULLS LAST FETCH FIRST 2 ROWS WITH TIES",
	"SELECT n FROM {t} UNION SELECT 100 ORDER BY n NULLS LAST",
	"SELECT name FROM {t} EXCEPT SELECT name FROM {t} WHERE n > 1 ORDER BY 1",
	"SELECT name FROM {t} INTERSECT SELECT 'b' ORDER BY 1",
	"(SELECT 1 AS x) UNION ALL (SELECT 2) ORDER BY x DESC",
	"SELECT a.name, x.m FROM {t} a CROSS JOIN LATERAL (SELECT max(b.n) AS m FROM {t} b WHERE b.n < a.n) x ORDER BY a.name",
	"SELECT a.name, x.name AS other FROM {t} a LEFT JOIN LATERAL (SELECT b.name FROM {t} b WHERE b.n > a.n ORDER BY b.n, b.name LIMIT 1) x ON true ORDER BY a.name",
	"SELECT v.a, v.b FROM (VALUES (1, 'x'), (2, 'y')) AS v(a, b) ORDER BY a DESC",
	"SELECT count(*) FILTER (WHERE ok), count(ok), count(DISTINCT n) FROM {t}",
	"SELECT upper(name) AS u, count(*) FROM {t} GROUP BY u ORDER BY u",
	"SELECT name FROM {t} WHERE name LIKE 'b%' OR name ~ '^c' ORDER BY name",
	"SELECT CASE WHEN n > 1 THEN 'many' ELSE 'one' END AS k, count(*) FROM {t} GROUP BY 1 ORDER BY 1",
	"SELECT bool_and(ok), bool_or(ok) FROM {t}",
	"SELECT name FROM {t} a NATURAL JOIN (SELECT name FROM {t} WHERE ok) b ORDER BY 1",
	"SELECT sum(n) OVER w FROM {t} WINDOW w AS (ORDER BY name) ORDER BY 1",
}

const rowsOfT = "(VALUES ('a', 1, true), ('b', 2, false), ('b2', 2, true), ('c', 3, NULL), ('d', NULL, true))"

// TestAgreesWithPostgres holds that expressions and queries whose meaning is PostgreSQL's have the results that a real
// server has.
func TestAgreesWithPostgres(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a server")
	}
	server, err := pgtest.New()
	if errors.Is(err, pgtest.ErrNoServer) {
		t.Skip("NOT RUN: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Remove() })
	config, err := pgx.ParseConfig(server.DSN())
	if err != nil {
		t.Fatal(err)
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	config.RuntimeParams["timezone"] = "UTC"
	pg, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = pg.Close(t.Context()) }()
	f := demo()
	c := open(t, &f)
	if _, err := pg.Exec(t.Context(), "CREATE TEMP TABLE rows AS SELECT name COLLATE \"C\", n::bigint, ok FROM "+rowsOfT+" AS v(name, n, ok)"); err != nil {
		t.Fatal(err)
	}
	n := 0
	compare := func(text, ours string) {
		n++
		_, want := postgresRows(t, pg, text)
		if _, got := script(t, c, ours); got != want {
			t.Errorf("%s\n      here %s\nPostgreSQL %s", text, got, want)
		}
	}
	for line := range strings.Lines(agreed) {
		if e := strings.TrimSpace(line); e != "" {
			from := " FROM (SELECT '2026-03-05 09:07:03.123+00'::timestamptz AS t) AS x"
			if strings.Contains(e, "count(") {
				from = ""
			}
			compare("SELECT ("+e+") AS v"+from, "SELECT ("+e+") AS v"+from)
		}
	}
	for _, q := range agreedQueries {
		// NULL sorts first here, as in T-SQL: the queries say where it belongs.
		compare(strings.ReplaceAll(q, "{t}", "rows"),
			strings.ReplaceAll(q, "{t}", "(SELECT name, n, CAST(ok AS bit) AS ok FROM "+rowsOfT+" AS v(name, n, ok))"))
	}
	t.Logf("%d compared", n)
}

// postgresRows returns the rows of a query as PostgreSQL writes them.
func postgresRows(t *testing.T, pg *pgx.Conn, text string) (heading, rows string) {
	t.Helper()
	list, err := pg.Query(t.Context(), text)
	if err != nil {
		return "", "error: " + err.Error()
	}
	defer list.Close()
	var lines []string
	for list.Next() {
		var values []string
		for _, raw := range list.RawValues() {
			if raw == nil {
				values = append(values, "NULL")
				continue
			}
			values = append(values, string(raw))
		}
		lines = append(lines, strings.Join(values, "|"))
	}
	if err := list.Err(); err != nil {
		return "", fmt.Sprint("error: ", err)
	}
	return "", strings.Join(lines, "\n")
}
