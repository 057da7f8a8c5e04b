package seeding

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/coteriedb/coterie/internal/ag"
)

// maxManifest bounds the manifest in memory: about a million and a half files.
const maxManifest = 256 << 20

// fileSum is what a file must be, or was when it arrived.
type fileSum struct {
	size int64
	sum  [sha256.Size]byte
}

// manifest is the source's list of every file of the backup (PostgreSQL's backup_manifest, versions 1 and 2).
type manifest struct {
	systemID string // from version 2 on
	files    map[string]fileSum
	end      ag.LSN // of the WAL that the backup needs
}

type manifestJSON struct {
	Version  int         `json:"PostgreSQL-Backup-Manifest-Version"`
	SystemID json.Number `json:"System-Identifier"`
	Files    []struct {
		Path        string `json:"Path"`
		EncodedPath string `json:"Encoded-Path"` // hex, where the name is not UTF-8
		Size        int64  `json:"Size"`
		Algorithm   string `json:"Checksum-Algorithm"`
		Checksum    string `json:"Checksum"`
	} `json:"Files"`
	WAL []struct {
		Timeline uint32 `json:"Timeline"`
		End      string `json:"End-LSN"`
	} `json:"WAL-Ranges"`
	Checksum string `json:"Manifest-Checksum"`
}

// readManifest reads a whole manifest and proves it against its own checksum.
func readManifest(r io.Reader) (*manifest, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxManifest+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxManifest {
		return nil, fmt.Errorf("the manifest is larger than %d bytes", maxManifest)
	}
	return parseManifest(text)
}

func parseManifest(text []byte) (*manifest, error) {
	var j manifestJSON
	if err := json.Unmarshal(text, &j); err != nil {
		return nil, fmt.Errorf("the manifest is not readable: %w", err)
	}
	// The checksum covers everything up to the last line, which holds it.
	body := bytes.TrimSuffix(text, []byte("\n"))
	body = body[:bytes.LastIndexByte(body, '\n')+1]
	sum := sha256.Sum256(body)
	if j.Checksum != hex.EncodeToString(sum[:]) {
		return nil, errors.New("the manifest does not match its own checksum")
	}
	if j.Version < 1 || j.Version > 2 {
		return nil, fmt.Errorf("the manifest has version %d; 1 and 2 are known", j.Version)
	}
	m := &manifest{systemID: j.SystemID.String(), files: make(map[string]fileSum, len(j.Files))}
	for _, f := range j.Files {
		path := f.Path
		if f.EncodedPath != "" {
			raw, err := hex.DecodeString(f.EncodedPath)
			if err != nil {
				return nil, fmt.Errorf("the manifest has an unreadable path: %w", err)
			}
			path = string(raw)
		}
		sum, err := hex.DecodeString(f.Checksum)
		if err != nil || len(sum) != sha256.Size || f.Algorithm != "SHA256" {
			return nil, fmt.Errorf("the manifest has no SHA-256 checksum for %q", path)
		}
		if _, twice := m.files[path]; twice {
			return nil, fmt.Errorf("the manifest names %q twice", path)
		}
		m.files[path] = fileSum{size: f.Size, sum: [sha256.Size]byte(sum)}
	}
	for _, w := range j.WAL {
		end, err := ag.ParseLSN(w.End)
		if err != nil {
			return nil, fmt.Errorf("the manifest's WAL range: %w", err)
		}
		m.end = max(m.end, end)
	}
	return m, nil
}

// verify compares what arrived with the manifest: the same files, no more, no fewer, each of the same size and content.
func (m *manifest) verify(got map[string]fileSum) error {
	var wrong []string
	for path, want := range m.files {
		have, ok := got[path]
		switch {
		case !ok:
			wrong = append(wrong, path+" is missing")
		case have.size != want.size:
			wrong = append(wrong, path+" has "+strconv.FormatInt(have.size, 10)+" bytes instead of "+strconv.FormatInt(want.size, 10))
		case have.sum != want.sum:
			wrong = append(wrong, path+" has another checksum")
		}
	}
	for path := range got {
		if _, ok := m.files[path]; !ok {
			wrong = append(wrong, path+" is not in the manifest")
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	slices.Sort(wrong)
	return fmt.Errorf("%d of %d files differ from the manifest; the first: %s; run the seeding again",
		len(wrong), len(m.files), wrong[0])
}
