// Package standin stands in for the primary's server before pgBackRest, on a secondary of which it makes a backup.
//
// pgBackRest wants two servers for a backup of a secondary: it copies the files of the one, and asks the other, the
// primary, to begin and to end the backup. The stand-in listens on a socket of its own and gives answers in the
// primary's name. Some statements only the primary can do: each is a step of package window. Those with the same answer
// on both go to this node's own server. Any other statement is refused, so that a version of pgBackRest that asks
// something new makes no backup rather than a wrong one.
//
// It must not know where the primary is or how it is reached. Start reading at Listen and answer.
package standin
