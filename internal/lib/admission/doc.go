// Package admission bounds the work that callers can cause before they have proved anything.
//
// It owns what is remembered per caller: budgets of work (Budget), failed attempts (Backoff), and the keys under which
// callers are told apart (Key). Memory is bounded: beyond the limit the entry that was not used for longest is
// forgotten, so that a caller with many addresses cannot make the state of all others vanish at once. It knows no
// protocol, has no clock and never waits. Start reading at Budget.
package admission
