package pgbackrest

import (
	"fmt"
	"regexp"
)

var (
	refusal = regexp.MustCompile(`HTTP request failed with (\d{3})`)
	code    = regexp.MustCompile(`<Code>([A-Za-z0-9]{1,64})</Code>`)
)

// meanings are what the codes of an S3 store mean for the configuration of a repository.
var meanings = map[string]string{
	"SignatureDoesNotMatch":        "the secret of the key is wrong; coterie backup enable --secrets FILE gives another one",
	"InvalidAccessKeyId":           "it does not know the key; coterie backup enable --secrets FILE gives another one",
	"AccessDenied":                 "the key has no right to that; it needs to list, read, write and delete objects below the prefix",
	"NoSuchBucket":                 "it has no such bucket: make it there",
	"RequestTimeTooSkewed":         "the clock of this machine differs from that of the store",
	"AuthorizationHeaderMalformed": "the region is probably another one; coterie backup enable --repo with --s3-region gives it",
	"PermanentRedirect":            "the bucket is in another region, or at another endpoint",
}

// brief returns an error of the program in one line where an S3 store has refused a request: the program prints the
// request and the whole answer.
func brief(text string) string {
	status := refusal.FindStringSubmatch(text)
	if status == nil {
		return text
	}
	said := "the S3 store answered " + status[1]
	if c := code.FindStringSubmatch(text); c != nil {
		said += " " + c[1]
		if m := meanings[c[1]]; m != "" {
			said += fmt.Sprintf(" (%s)", m)
		}
	}
	return said
}
