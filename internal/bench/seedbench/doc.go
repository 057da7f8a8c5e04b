// Package seedbench measures copies, resumed and mended ones beside pg_basebackup over the same link.
package seedbench
