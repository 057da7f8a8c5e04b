//go:build !amd64

package pagesum

// mix adds whole rows of a page to the lanes' sums.
func mix(sums *[lanes]uint32, page []byte) { mixAnywhere(sums, page) }
