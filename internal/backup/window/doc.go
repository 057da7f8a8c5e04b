// Package window is the primary's part in a backup that is made of a secondary: it keeps the session in which the
// primary's server is in backup mode, and answers the few questions that only the primary can.
//
// A backup of a secondary copies nothing of the primary. The secondary asks by name for one of a fixed set of steps;
// nothing that it sends becomes part of a statement, of a path or of a command. There is one window at a time. It ends
// when its member has been silent for a while, when the primary leads no more, and after a day at the latest.
//
// It must not know how the steps come from one node to the other. Start reading at Service.Do.
package window
