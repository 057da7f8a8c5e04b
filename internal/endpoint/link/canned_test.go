package link

import (
	"io"
	"net"
	"time"
)

// canned is a transport from which fixed bytes are read.
type canned struct{ r io.Reader }

func (c *canned) Read(p []byte) (int, error)                       { return c.r.Read(p) }
func (c *canned) Write(p []byte) (int, error)                      { return len(p), nil }
func (c *canned) Close() error                                     { return nil }
func (c *canned) LocalAddr() net.Addr                              { return &net.TCPAddr{} }
func (c *canned) RemoteAddr() net.Addr                             { return &net.TCPAddr{} }
func (c *canned) SetDeadline(time.Time) error                      { return nil }
func (c *canned) SetReadDeadline(time.Time) error                  { return nil }
func (c *canned) SetWriteDeadline(time.Time) error                 { return nil }
func (c *canned) Kind() string                                     { return TCP }
func (c *canned) Congestion() string                               { return "" }
func (c *canned) Counters() (rtt time.Duration, sent, lost uint64) { return 0, 0, 0 }
