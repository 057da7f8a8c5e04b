package tpcc

import (
	"context"
	"errors"
	"time"
)

var errNotReady = errors.New("not built yet")

// RunOptions says what Run runs.
type RunOptions struct {
	DSN        string         // libpq URI of the read-write address; several hosts are tried in turn
	ReadDSN    string         // where Order-Status and Stock-Level go; default DSN
	Clients    int            // terminals; default 8
	Seed       uint64         // of the terminals' inputs
	Warehouses int            // default: what is loaded
	Timeout    time.Duration  // after which an operation's outcome is unknown; default 5 s
	Tick       func(Interval) // called every second
}

// Interval is what happened in one second.
type Interval struct {
	At      time.Duration // since the start of the run, at the interval's end
	Length  time.Duration // normally one second
	TPS     float64       // transactions that ended well, per second
	P50     time.Duration
	P99     time.Duration
	Errors  map[string]int64 // by SQLSTATE
	Unknown int64
	Reads   map[string]int64 // read-only transactions by the server that answered
}

// Result is what happened in a run.
type Result struct{}

// Run runs the mix until ctx ends.
func Run(ctx context.Context, o RunOptions) (Result, error) { return Result{}, errNotReady }

// Condition is one consistency condition and the rows that break it.
type Condition struct {
	Number     int
	Name       string
	Violations int64
	Sample     string
}

// Check evaluates the twelve conditions in one snapshot.
func Check(ctx context.Context, dsn string) ([]Condition, error) { return nil, errNotReady }

// Digest returns a digest of every user table that does not depend on the order of rows.
func Digest(ctx context.Context, dsn string) (string, error) { return "", errNotReady }
