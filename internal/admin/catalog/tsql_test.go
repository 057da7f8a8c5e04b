package catalog

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// showRow returns a row as a client sees it, values joined by |.
func showRow(row []any) string {
	var out []string
	for _, v := range row {
		switch x := v.(type) {
		case time.Time:
			out = append(out, x.UTC().Format("2006-01-02 15:04:05.999999-07"))
		case bool:
			out = append(out, map[bool]string{true: "t", false: "f"}[x])
		case nil:
			out = append(out, "NULL")
		default:
			out = append(out, fmt.Sprint(x))
		}
	}
	return strings.Join(out, "|")
}

// script runs a query and returns its heading and its rows as lines.
func script(t *testing.T, c *Catalog, text string) (heading, rows string) {
	t.Helper()
	columns, list, err := query(t.Context(), c, text)
	if err != nil {
		return "", "error: " + err.Error()
	}
	var names, lines []string
	for _, col := range columns {
		names = append(names, col.Name)
	}
	for _, row := range list {
		lines = append(lines, showRow(row))
	}
	return strings.Join(names, "|"), strings.Join(lines, "\n")
}

// tsql are expressions where T-SQL differs from PostgreSQL, or which only T-SQL has, with T-SQL's results. The time t
// is 2026-03-05 09:07:03.123.
var tsql = []struct{ expression, want string }{
	// + joins texts, and adds numbers; a text that meets a number becomes one.
	{`'Lag: ' + CAST(1 AS varchar(10))`, "Lag: 1"},
	{`N'a' + N'b' + 'c'`, "abc"},
	{`'5' + 3`, "8"},
	{`'Lag: ' + 5`, "error: conversion failed when converting the value \"Lag: \" to a number: CAST the number, or use CONCAT"},
	{`'a' + NULL`, "NULL"},
	{`CAST(1 AS nvarchar(5)) + '/' + CONVERT(varchar(5), 2)`, "1/2"},
	// CAST and CONVERT.
	{`CAST(5/3.0 AS DECIMAL(10,2))`, "1.67"},
	{`CAST(5 AS DECIMAL(10,2))`, "5.00"},
	{`CAST(2.345 AS DECIMAL(10,2))`, "2.35"},
	{`CAST(-2.345 AS numeric(10,2))`, "-2.35"},
	{`CAST(12345 AS DECIMAL(4,2))`, "error: numeric field overflow: 12345 does not fit decimal(4, 2)"},
	{`CAST(1.6 AS int)`, "1"},
	{`CAST(-1.6 AS int)`, "-1"},
	{`CAST('42' AS int) + 1`, "43"},
	{`CAST('4x' AS int)`, "error: conversion failed when converting the value \"4x\" to an integer"},
	{`TRY_CAST('4x' AS int)`, "NULL"},
	{`TRY_CONVERT(int, '4')`, "4"},
	{`CAST(300 AS tinyint)`, "error: integer out of range: 300"},
	{`CAST('SYNCHRONIZED' AS varchar(4))`, "SYNC"},
	{`CAST('abcdefghijklmnopqrstuvwxyzabcdefghijk' AS varchar)`, "abcdefghijklmnopqrstuvwxyzabcd"},
	{`CAST(12345 AS varchar(3))`, "*"},
	{`CAST(12345 AS nvarchar(3))`, "error: arithmetic overflow error converting the number 12345 to a string of 3 characters"},
	{`CAST('a' AS char(3)) + '|'`, "a  |"},
	{`LEN(CAST('a' AS char(3)))`, "1"},
	{`CAST(5 AS bit)`, "t"},
	{`CAST('true' AS bit)`, "t"},
	{`CONVERT(DECIMAL(10,2), 7/2.0)`, "3.50"},
	{`CONVERT(varchar(20), CAST(3.14159 AS decimal(10,3)))`, "3.142"},
	{`CONVERT(nvarchar(max), 1)`, "1"},
	{`CAST(1.50 AS varchar(10)) + ' MB'`, "1.50 MB"},
	{`CONVERT(varchar(19), t, 120)`, "2026-03-05 09:07:03"},
	{`CONVERT(varchar(23), t, 121)`, "2026-03-05 09:07:03.123"},
	{`CONVERT(varchar(30), t, 126)`, "2026-03-05T09:07:03.123"},
	{`CONVERT(char(8), t, 112)`, "20260305"},
	{`CONVERT(char(10), t, 101)`, "03/05/2026"},
	{`CONVERT(varchar(10), t, 103)`, "05/03/2026"},
	{`CONVERT(varchar(10), t, 104)`, "05.03.2026"},
	{`CONVERT(varchar(11), t, 106)`, "05 Mar 2026"},
	{`CONVERT(varchar(8), t, 108)`, "09:07:03"},
	{`CONVERT(varchar(5), t, 108)`, "09:07"},
	{`CONVERT(varchar(10), t, 110)`, "03-05-2026"},
	{`CONVERT(varchar(12), t, 114)`, "09:07:03:123"},
	{`CONVERT(varchar(10), t, 23)`, "2026-03-05"},
	{`CONVERT(varchar(30), t)`, "Mar  5 2026  9:07AM"},
	{`CAST(t AS varchar(30))`, "Mar  5 2026  9:07AM"},
	{`CONVERT(varchar(30), t, 109)`, "Mar  5 2026  9:07:03:123AM"},
	{`CONVERT(varchar(30), CAST(t AS datetime2))`, "2026-03-05 09:07:03.1230000"},
	{`CONVERT(varchar(30), t, 999)`, "error: 999 is not a style of CONVERT that is supported for a time"},
	{`CONVERT(date, t)`, "2026-03-05"},
	{`CAST(t AS date)`, "2026-03-05"},
	{`CAST(t AS time(0))`, "09:07:03"},
	{`CAST('2026-03-05T10:00:00' AS datetime)`, "2026-03-05 10:00:00+00"},
	{`CAST('yesterday' AS datetime)`, `error: conversion failed when converting "yesterday" to a time: write it as 2026-11-21 12:00:00`},
	{`CAST(1e0/3 AS varchar(20))`, "0.333333"},
	{`CAST('0D9C6D8E-7E47-4B8A-8A4E-0123456789AB' AS uniqueidentifier)`, "0d9c6d8e-7e47-4b8a-8a4e-0123456789ab"},
	// ISNULL, IIF, CHOOSE.
	{`ISNULL(NULL, 0)`, "0"},
	{`ISNULL(CAST(NULL AS int), '')`, "0"},
	{`ISNULL(CAST(NULL AS int), '7')`, "7"},
	{`ISNULL(CAST(NULL AS varchar(2)), 'abc')`, "ab"},
	{`ISNULL(CAST(NULL AS varchar(10)), 5)`, "5"},
	{`ISNULL(NULL, 'x')`, "x"},
	{`IIF(1 = 1, 'yes', 'no')`, "yes"},
	{`IIF(NULL = 1, 'yes', 'no')`, "no"},
	{`CHOOSE(2, 'a', 'b', 'c')`, "b"},
	{`CHOOSE(9, 'a')`, "NULL"},
	{`CASE WHEN 1 = 0 THEN 'x' ELSE 5 END`, "5"},
	{`CASE WHEN 1 = 1 THEN 'x' ELSE 5 END`, "error: conversion failed when converting the value \"x\" to an integer"},
	{`COALESCE(NULL, 3, 4)`, "3"},
	// Texts.
	{`LEN('ab  ')`, "2"},
	{`LEN(N'é ')`, "1"},
	{`LEFT('SYNCHRONIZED', 4)`, "SYNC"},
	{`RIGHT('SYNCHRONIZED', 3)`, "ZED"},
	{`LEFT(t, 11)`, "Mar  5 2026"},
	{`LEFT(12345, 2) + RIGHT(1.50, 2)`, "1250"},
	{`REPLACE(CAST(t AS date), '-', '/')`, "2026/03/05"},
	{`LEN(12345)`, "5"},
	{`CASE WHEN t LIKE 'Mar%' THEN 1 ELSE 0 END`, "1"},
	{`SUBSTRING('abcdef', 2, 3)`, "bcd"},
	{`SUBSTRING('abcdef', 0, 3)`, "ab"},
	{`CHARINDEX('c', 'abcabc')`, "3"},
	{`CHARINDEX('c', 'abcabc', 4)`, "6"},
	{`CHARINDEX('x', 'abc')`, "0"},
	{`PATINDEX('%[0-9]%', 'ab3')`, "3"},
	{`STUFF('abcdef', 2, 3, 'X')`, "aXef"},
	{`STUFF(',a,b', 1, 1, '')`, "a,b"},
	{`REPLICATE('-', 5)`, "-----"},
	{`REPLICATE('0', 3 - LEN('7')) + '7'`, "007"},
	{`SPACE(2) + 'x'`, "  x"},
	{`REVERSE('abc')`, "cba"},
	{`QUOTENAME('a]b')`, "[a]]b]"},
	{`QUOTENAME('a', '''')`, "'a'"},
	{`PARSENAME('srv.db.dbo.t', 1)`, "t"},
	{`UPPER('é') + LOWER('É')`, "Éé"},
	{`LTRIM('  a ') + '|' + RTRIM('b  ')`, "a |b"},
	{`CONCAT('a', NULL, 1, 2.50)`, "a12.50"},
	{`CONCAT_WS('-', 'a', NULL, 'b')`, "a-b"},
	{`CHAR(65) + NCHAR(233)`, "Aé"},
	{`STR(3.14159, 6, 2)`, "  3.14"},
	{`ASCII('A')`, "65"},
	{`ISNUMERIC('12.5') + ISNUMERIC('x')`, "1"},
	{`TRANSLATE('2*[3]', '[]', '()')`, "2*(3)"},
	// Times.
	{`DATEDIFF(MINUTE, '2026-01-01 10:00:59', '2026-01-01 10:01:01')`, "1"},
	{`DATEDIFF(hour, '2026-01-01 10:59', '2026-01-01 11:01')`, "1"},
	{`DATEDIFF(day, '2026-01-01 23:59', '2026-01-02 00:01')`, "1"},
	{`DATEDIFF(year, '2025-12-31', '2026-01-01')`, "1"},
	{`DATEDIFF(month, '2026-01-31', '2026-02-01')`, "1"},
	{`DATEDIFF(week, '2026-03-07', '2026-03-08')`, "1"},
	{`DATEDIFF(ms, '2026-01-01 00:00:00', '2026-01-01 00:00:01.5')`, "1500"},
	{`DATEDIFF(s, '1990-01-01', '2090-01-01')`, "error: the datediff function resulted in an overflow: use DATEDIFF_BIG, or a larger unit"},
	{`DATEDIFF_BIG(s, '1990-01-01', '2090-01-01')`, "3155760000"},
	{`DATEDIFF(s, '2026-01-01 00:00:10', '2026-01-01')`, "-10"},
	{`DATEADD(day, 1, t)`, "2026-03-06 09:07:03.123+00"},
	{`DATEADD(MONTH, 1, '2026-01-31')`, "2026-02-28 00:00:00+00"},
	{`DATEADD(mi, -5, t)`, "2026-03-05 09:02:03.123+00"},
	{`DATEADD(second, 90, 0 + '2026-01-01')`, `error: conversion failed when converting the value "2026-01-01" to a number: CAST the number, or use CONCAT`},
	{`DATEPART(hour, t)`, "9"},
	{`DATEPART(dw, t)`, "5"},
	{`DATEPART(wk, t)`, "10"},
	{`DATEPART(q, t)`, "1"},
	{`DATENAME(month, t)`, "March"},
	{`DATENAME(weekday, t)`, "Thursday"},
	{`YEAR(t) * 10000 + MONTH(t) * 100 + DAY(t)`, "20260305"},
	{`EOMONTH(t)`, "2026-03-31"},
	{`DATEFROMPARTS(2026, 2, 28)`, "2026-02-28"},
	{`1 + t`, "2026-03-06 09:07:03.123+00"},
	{`CONVERT(varchar(30), CAST('2026-03-05' AS datetime), 126)`, "2026-03-05T00:00:00"},
	{`t - 1`, "2026-03-04 09:07:03.123+00"},
	{`t + ' o''clock'`, "error: + with a time is not supported in the console"},
	{`GETDATE() - t`, "error: the difference of two times is not supported as a column"},
	{`FORMAT(t, 'yyyy-MM-dd HH:mm:ss')`, "2026-03-05 09:07:03"},
	{`FORMAT(t, 'yyyy')`, "2026"},
	{`FORMAT(t, 'd')`, "3/5/2026"},
	{`FORMAT(t, 'dd MMM yy h:mm tt')`, "05 Mar 26 9:07 AM"},
	{`FORMAT(t, 'dddd, MMMM d')`, "Thursday, March 5"},
	{`FORMAT(t, 'HH:mm:ss.fff')`, "09:07:03.123"},
	{`FORMAT(1234567.891, 'N2')`, "1,234,567.89"},
	{`FORMAT(1234567, 'N0')`, "1,234,567"},
	{`FORMAT(0.1234, 'P1')`, "12.3%"},
	{`FORMAT(7, '000')`, "007"},
	{`FORMAT(1234.5, '#,##0.00')`, "1,234.50"},
	{`FORMAT(0.5, '#.##')`, ".5"},
	{`FORMAT(-3, '0;(0)')`, "(3)"},
	{`FORMAT(255, 'X')`, "FF"},
	{`FORMAT(5, 'D3')`, "005"},
	{`FORMAT(12.5, 'C')`, "$12.50"},
	{`FORMAT(t, 'd', 'de-de')`, `error: FORMAT with the culture "de-de" is not supported: leave it out, or write 'en-US'`},
	{`FORMAT('x', 'd')`, "error: FORMAT of a text is not supported in the console"},
	// Patterns.
	{`CASE WHEN 'query' LIKE '[q-s]%' THEN 1 ELSE 0 END`, "1"},
	{`CASE WHEN 'query' LIKE '[^q-s]%' THEN 1 ELSE 0 END`, "0"},
	{`CASE WHEN 'a_b' LIKE 'a[_]b' THEN 1 ELSE 0 END`, "1"},
	{`CASE WHEN 'axb' LIKE 'a[_]b' THEN 1 ELSE 0 END`, "0"},
	{`CASE WHEN '50%' LIKE '50!%' ESCAPE '!' THEN 1 ELSE 0 END`, "1"},
	{`CASE WHEN 'PRIMARY' COLLATE SQL_Latin1_General_CP1_CI_AS = 'primary' THEN 1 ELSE 0 END`, "1"},
	{`CASE WHEN 'PRIMARY' COLLATE Latin1_General_CI_AS LIKE 'pri%' THEN 1 ELSE 0 END`, "1"},
	{`CASE WHEN 'srv\x' LIKE 'srv\x%' THEN 1 ELSE 0 END`, `error: a backslash before "x" in LIKE is an ordinary character in T-SQL and none in PostgreSQL: double it, or add ESCAPE`},
	// Numbers.
	{`5 / 2`, "2"},
	{`5 / 2.0`, "2.5"},
	{`5 % 3`, "2"},
	{`1 / 0`, "error: division by zero"},
	{`ROUND(2.345, 2)`, "2.35"},
	{`ROUND(1234, -2)`, "1200"},
	{`ROUND(2.9, 0, 1)`, "2"},
	{`CEILING(2.1)`, "3"},
	{`ABS(-3)`, "3"},
	{`POWER(2, 10)`, "1024"},
	{`SQUARE(3)`, "9"},
	{`LOG(10)`, "error: LOG is not supported in the console"},
	// Functions of the group.
	{`DB_NAME(16384)`, "shop"},
	{`DB_NAME(1)`, "NULL"},
	{`DB_ID('shop')`, "16384"},
	{`DB_ID(N'none')`, "NULL"},
	{`@@SERVERNAME`, "a"},
	{`SERVERPROPERTY('IsHadrEnabled')`, "1"},
	{`DATABASEPROPERTYEX('shop', 'Updateability')`, "READ_WRITE"},
	{`SUSER_SNAME() + ORIGINAL_LOGIN() + SYSTEM_USER`, "mememe"},
	{`CASE WHEN LEN(CAST(NEWID() AS varchar(36))) = 36 AND NEWID() <> NEWID() THEN 'ok' END`, "ok"},
	{`HOST_NAME()`, "error: HOST_NAME is not supported in the console"},
	{`FROBNICATE(1)`, "error: no such function: FROBNICATE"},
	{`FORMATMESSAGE('x')`, "error: FORMATMESSAGE is not supported in the console"},
}

// TestTSQLExpressions holds the results of T-SQL where it differs from PostgreSQL.
func TestTSQLExpressions(t *testing.T) {
	f := demo()
	c := open(t, &f)
	for _, tt := range tsql {
		_, got := script(t, c, "SELECT "+tt.expression+" FROM (SELECT CAST('2026-03-05 09:07:03.123' AS datetime) AS t) AS x")
		if got != tt.want {
			t.Errorf("%s\n got %s\nwant %s", tt.expression, got, tt.want)
		}
	}
}
