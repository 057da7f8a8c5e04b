// Package release decides in which order sessions that have left their server get the next one: those first whose
// clients wait for an answer.
//
// It must not know servers, routes, or how a session is opened.
package release
