// Package planguard checks what Decide returns before anything is done about it.
//
// It owns the rules of safety that a plan can be held against by itself, whichever rule of Decide made it. It says each
// of them a second time, from the view and without the functions of Decide, so that a mistake would have to be made
// twice. It is as pure as package ag. It must not know how a plan is carried out. A plan that it refuses is a mistake
// in this program: the agent ends the epoch, and the simulator reports it.
//
// Start reading at Check.
package planguard
