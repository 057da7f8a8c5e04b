// Package support makes the archive that a person outside gets to help with a node: what the agent says, the record,
// the configuration, the ends of the logs and facts of the host, in one file of bounded size without secrets.
//
// It owns the archive (Bundle), the removal of secrets (Redactor), and the reading of the node directory and the host.
// It must not know how an agent is asked. Start reading at Bundle.
package support
