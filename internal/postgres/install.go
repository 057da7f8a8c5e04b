package postgres

import "context"

// Install is one set of PostgreSQL binaries on this machine.
type Install struct {
	Major   int    // 15
	Version string // "15.18"
	BinDir  string
	Num     int  // server_version_num: 150018
	Rewind  bool // pg_rewind is there (some distributions package it apart)
}

// Find returns the supported PostgreSQL installations of this machine, newest first.
func Find(ctx context.Context) ([]Install, error) { return nil, errTODO }
