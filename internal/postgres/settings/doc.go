// Package settings knows the syntax of PostgreSQL's settings: lines of a configuration file, synchronous_standby_names
// with the names that Coterie gives its members, and how values are quoted.
//
// It is text in, text out. Start reading at EditAutoConf and Sync.
package settings
