// Package wire is the protocol between the two ends of a copy: frames, their messages, and the codecs of chunks.
//
// It must not know how either end works, nor what the messages are for. Start reading at the constants of protocol.go;
// Conn sends and receives frames. ProtocolVersion is raised with every change that an older end would misread.
package wire
