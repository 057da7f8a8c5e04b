// Package workload is the clients of the experiments: a query with parameters in any format, logins, and inserts by the
// statement.
//
// It owns what one operation is, which server answered it, and the tables that the experiments need, which are in a
// schema of their own that it made and marked. It must not know how often an operation is asked for, nor what is
// concluded.
//
// Start reading at Query, then Prepare in data.go.
package workload
