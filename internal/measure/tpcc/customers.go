package tpcc

import (
	"io"
	"strings"
	"sync/atomic"
)

// CustomersPerPart is how many rows of table customer a part has: those of one district.
const CustomersPerPart = customersPerDistrict

// CustomerTable returns what stands behind "create table NAME" for a table like customer, which has no key yet.
func CustomerTable() string {
	_, rest, _ := strings.Cut(schemaSQL, "create table tpcc.customer ")
	columns, _, _ := strings.Cut(rest, ";")
	return columns
}

// Customers returns the rows of a part of table customer, counted from 0, the same for the same seed, as COPY reads them into such columns.
func Customers(seed uint64, part int) (columns string, rows io.Reader) {
	c := customers(seed, part/districts+1, part%districts+1)
	_, columns, _ = strings.Cut(c.table, " ")
	return columns, &chunkReader{chunk: c, done: new(atomic.Int64)}
}
