// Package codec makes a byte stream smaller, block by block, so that every block can be understood as soon as it has arrived.
//
// It owns the codecs a link may use, the spelling of LOG_COMPRESSION, the rule by which AUTO chooses, and the limits that keep a
// decoder's memory bounded whatever it is sent. It must not know what flows, nor over which connection.
//
// Start reading at Encoder.Encode and Decoder.Decode, then choose.go.
package codec
