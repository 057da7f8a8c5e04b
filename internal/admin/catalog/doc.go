// Package catalog answers SQL on the state of the group: the availability-group views with the names, columns and codes
// that administrators know, and plainer ones of our own.
//
// It owns the views (views_*.go), the meanings of their columns (columns.txt), the states that their codes stand for
// (states.go) and the embedded SQL engine. The facts come from a function, so that it knows neither node nor store;
// nodes with the same facts give the same answers. Package dialect writes the engine's text of a query. Start reading
// at Facts, then Catalog.Query.
package catalog
