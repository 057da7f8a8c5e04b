package config

import (
	"errors"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
)

// The errors of the package that reads YAML which have words of the language that the program is written in.
var (
	wrongType    = regexp.MustCompile(`cannot unmarshal \S+ into Go (?:struct field \S+|value) of type (\S+)`)
	wrongTime    = regexp.MustCompile(`time: (?:invalid duration|missing unit in duration|unknown unit .* in duration) ("[^"]*")`)
	wrongPlace   = regexp.MustCompile(`\S+ was used where (mapping|sequence) is expected`)
	unknownKey   = regexp.MustCompile(`unknown field "([^"]*)"`)
	notATab      = "found character '\t' that cannot start any token"
	keysAre      = "docs/reference/configuration.md has the keys"
	expectations = map[string]string{
		"time.Duration": "a time is expected, as a number with its unit: 500ms, 30s or 2m", "bool": "true or false is expected", "string": "a text is expected",
		"mapping": "keys with values are expected, each on a line of its own that is indented", "sequence": "a list is expected, each entry on a line of its own behind a -",
	}
)

// notHere are keys of other programs' files, and of the group, with where they belong.
var notHere = map[string]string{
	"parameters": "coterie settings set has PostgreSQL's settings, for every replica", "replicas": "coterie member list has the members; coterie join adds one",
	"scope": "the group's name is group, this node's name node", "name": "this node's name is node", "restapi": "the HTTP port is http", "bootstrap": "coterie init makes the group, and coterie group set changes its options",
	"etcd": "an etcd outside is quorum", "etcd3": "an etcd outside is quorum", "tags": "coterie replica set has the options of a replica",
	"synchronous_mode": "coterie group set has the options of commits", "ttl": "coterie group set lease_profile has the times of a lease", "pg_hba": "hba names a file of rules",
}

// decode reads a configuration, in which keys with those beginnings may be unknown.
func decode(b []byte, c *Config, allowed ...string) error {
	return yaml.UnmarshalWithOptions(b, c, yaml.Strict(), yaml.DisallowUnknownField(), yaml.AllowFieldPrefixes(allowed...))
}

// maxUnknown bounds the unknown keys that are compared.
const maxUnknown = 100

// firstUnknown returns the error about the first unknown key of a file, where the package that reads YAML names any of
// them, at each reading another one. Other errors are returned as they are.
func firstUnknown(b []byte, err error) error {
	var first *yaml.UnknownFieldError
	var known []string
	for next := err; len(known) < maxUnknown; {
		var unknown *yaml.UnknownFieldError
		if !errors.As(next, &unknown) || unknown.GetToken() == nil {
			break
		}
		if first == nil || unknown.GetToken().Position.Line < first.GetToken().Position.Line {
			first = unknown
		}
		key := unknownKey.FindStringSubmatch(unknown.GetMessage())
		if key == nil || key[1] == "" {
			break
		}
		known = append(known, key[1])
		next = decode(b, &Config{}, known...)
	}
	if first == nil {
		return err
	}
	return first
}

// plain returns the text of an error of YAML in words that a person can act on.
func plain(text string) string {
	text = wrongType.ReplaceAllStringFunc(text, func(s string) string {
		want := wrongType.FindStringSubmatch(s)[1]
		if known, ok := expectations[want]; ok {
			return known
		}
		return "a whole number is expected"
	})
	text = wrongTime.ReplaceAllString(text, "$1 is no time: "+expectations["time.Duration"])
	text = wrongPlace.ReplaceAllStringFunc(text, func(s string) string { return expectations[wrongPlace.FindStringSubmatch(s)[1]] })
	text = strings.ReplaceAll(text, notATab, "a line is indented by a tab: use spaces")
	return unknownKey.ReplaceAllStringFunc(text, func(s string) string {
		hint, ok := notHere[unknownKey.FindStringSubmatch(s)[1]]
		if !ok {
			hint = keysAre
		}
		return s + ": " + hint
	})
}

// checkPort returns the error of an address that is not HOST:PORT.
func checkPort(address string) error {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("%q is no address: write HOST:PORT, or :PORT for all addresses of this machine", address)
	}
	if n, err := strconv.Atoi(port); err == nil && (n < 0 || n > 65535) {
		return fmt.Errorf("%q has no port from 1 to 65535", address)
	}
	return nil
}
