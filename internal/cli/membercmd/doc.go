// Package membercmd has the commands about the members of a group: list, add-token, join, remove and replace. They ask
// the agent of this node; the group decides. Start reading at Member.
package membercmd
