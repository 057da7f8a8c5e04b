// Package marks keeps the durable facts of a node outside its data directory. They are its promise, the copy that it
// holds, a promotion or a repair under way, the record that it has seen, its stand-downs and a quarantine.
//
// It owns the format and the names of these files in the node's state directory. It must not know the use of the facts.
//
// Start reading at Marks.
package marks
