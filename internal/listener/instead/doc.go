// Package instead is what goes to PostgreSQL otherwise than it came from the client: a statement that fails with a
// refusal, in the place of the refused one. It tells how many bytes of the client are among those that did not go.
//
// It must not know which statements are refused, or how bytes are sent.
package instead
