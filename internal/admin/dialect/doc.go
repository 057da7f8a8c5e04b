// Package dialect translates the queries of PostgreSQL and SQL Server clients into those of the embedded engine.
//
// It owns the lexer, the grammar, the tree and the types of expressions. The engine's text is written from the tree
// alone: a construct that the grammar does not have is refused by its name and never reaches the engine. Where T-SQL
// and PostgreSQL give a construct different meanings, this package decides which one holds. It knows neither the views
// nor their rows: an Env names the tables, the functions and the values of variables. Start reading at Translate.
package dialect
