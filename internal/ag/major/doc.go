// Package major is the procedure by which a group gets another major version of PostgreSQL: its steps, where it stands
// after any interruption, and the change of the record by which the group passes to the new cluster. Pure.
//
// pg_upgrade makes a new cluster, with a system identifier, a timeline and a history of its own, beside the old one.
// The group passes from one to the other in a single transaction on configuration and record (Upgrade.Passage). Before
// it, nothing of the group has changed; after it, no copy of the old cluster counts. The package runs nothing and reads
// no file. Start reading at Upgrade.Next.
package major
