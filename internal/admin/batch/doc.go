// Package batch divides scripts of T-SQL and PostgreSQL into what is run one after the other.
//
// It owns the ends of statements, with semicolons or without, GO with a number, and the control flow of a batch:
// DECLARE, SET and SELECT of variables, IF, WHILE, BEGIN … END, TRY and CATCH, PRINT, RAISERROR, THROW and RETURN.
// Conditions and expressions stay text, which package dialect parses when they are evaluated. It runs nothing. Start
// reading at Split, then Parse.
package batch
