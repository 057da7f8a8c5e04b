// Package scalar has the functions of the console's queries that the embedded engine lacks or has otherwise: those of
// T-SQL and PostgreSQL on texts, numbers and times, and the conversions between them.
//
// Every function is pure: values in, a value or an error out. It knows no tables and no engine. Times are texts in the
// form of TimeLayout, which sort by time. Start reading at Functions.
package scalar
