// Package suite says which experiment runs on which bed and with which sizes, also all of them in one run.
//
// Start reading at Options.
package suite
