// Package codec compresses a byte stream block by block, so that every block can be decoded as soon as it has arrived.
//
// It owns the codecs that a link may use, the spelling of LOG_COMPRESSION, the rule by which AUTO chooses, and the
// limits that keep a decoder's memory bounded for any input. It must not know what the bytes mean, nor the connection.
//
// Start reading at Encoder.Encode and Decoder.Decode, then choose.go.
package codec
