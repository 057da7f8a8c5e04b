// Package catalog answers SQL on the state of the group: the availability-group views with the names, columns and codes that
// administrators know, and plainer ones of our own.
//
// It owns the views (views_*.go), what their codes mean (codes.go), the embedded SQL engine, and the translation of what PostgreSQL
// and SQL Server clients write into what that engine reads (rewrite.go). The facts come from a function, so that it knows neither
// node nor store; every node that has the same facts gives the same answer. Start reading at Facts, then Catalog.Query.
package catalog
