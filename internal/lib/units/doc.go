// Package units writes sizes for people and reads them.
package units
