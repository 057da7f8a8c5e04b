package pagesum

import (
	"fmt"

	"github.com/coteriedb/coterie/internal/ag"
)

// CorruptError is a page whose checksum is wrong and stays wrong.
type CorruptError struct {
	File  string
	Block uint32
	LSN   ag.LSN
}

// Error names the page in a form by which an administrator can find it.
func (e *CorruptError) Error() string {
	return fmt.Sprintf("page %d of %s is damaged at the source (its checksum does not fit, its LSN is %s); repair it there, "+
		"seed from another replica, or accept damaged pages", e.Block, e.File, e.LSN)
}

// Report is the result of a verification.
type Report struct {
	Checksums bool           `json:"checksums"` // the cluster has page checksums
	Files     int            `json:"files"`     // files of pages that were read
	Pages     int64          `json:"pages"`
	Bytes     int64          `json:"bytes"`
	Damaged   int64          `json:"damaged"`         // pages whose checksum is wrong and stays wrong
	First     []CorruptError `json:"first,omitempty"` // the first of them, at most damagesNamed
}
