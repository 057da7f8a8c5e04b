// Package units formats and parses sizes in bytes.
package units
