// Package pool keeps sessions of the local server that wait for a client: opened ahead, or left by another client, and
// tells by what a client sends whether its backend may be left to another one (Use).
//
// It must not know clients, or which of them may take a backend: the caller describes the one that would fit.
package pool
