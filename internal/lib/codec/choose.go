package codec

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Encoding is a codec with its level.
type Encoding struct {
	Codec ID
	Level int // of zstd, 1 to 22; 0: 1
}

func (s Encoding) level() int { return max(s.Level, 1) }

// String spells the encoding as LOG_COMPRESSION does.
func (s Encoding) String() string {
	if s.Codec == Zstd {
		return fmt.Sprintf("ZSTD:%d", s.level())
	}
	return s.Codec.String()
}

// Setting is an administrator's choice of compression: a replica's LOG_COMPRESSION or SEED_COMPRESSION.
type Setting struct {
	Auto     bool
	Encoding Encoding // if not Auto
}

// Parse reads the value of an option of a replica, whose name errors carry: AUTO (also ""), OFF, LZ4, ZSTD, which is
// ZSTD:1, or ZSTD:level, in any case.
func Parse(option, text string) (Setting, error) {
	name, level, leveled := strings.Cut(strings.ToUpper(strings.TrimSpace(text)), ":")
	w := Setting{Auto: name == "" || name == "AUTO"}
	switch {
	case name == "ZSTD":
		w.Encoding = Encoding{Codec: Zstd, Level: 1}
		if leveled {
			n, err := strconv.Atoi(level)
			if err != nil || n < 1 || n > 22 {
				return Setting{}, fmt.Errorf("%s %q: the level of ZSTD is 1 to 22", option, text)
			}
			w.Encoding.Level = n
		}
		return w, nil
	case name == "LZ4":
		w.Encoding = Encoding{Codec: LZ4}
	case name == "OFF", w.Auto:
	default:
		return Setting{}, fmt.Errorf("%s %q: choose AUTO, OFF, LZ4, ZSTD or ZSTD:level", option, text)
	}
	if leveled {
		return Setting{}, fmt.Errorf("%s %q: only ZSTD has a level", option, text)
	}
	return w, nil
}

// The limits of AUTO. Between the two round trips the encoding in use stays.
const (
	nearRTT = 1500 * time.Microsecond // up to this it is a local network, where a codec costs more time than it saves
	farRTT  = 2 * time.Millisecond    // from this on compression pays
	slow    = 50_000_000              // bits per second below which a higher level pays
)

// Path is what is known of the path between the two sides. Zero means unknown.
type Path struct {
	RTT  time.Duration
	Rate int64 // bits per second
}

// Choose returns the encoding to use: the one set, or for AUTO the one that suits the path and the encoding in use now.
// It returns only codecs in known, which are those of the other side.
func Choose(w Setting, known []ID, now Encoding, p Path) Encoding {
	s := w.Encoding
	if w.Auto {
		s = Encoding{}
		switch {
		case p.RTT >= farRTT && p.Rate > 0 && p.Rate < slow:
			s = Encoding{Codec: Zstd, Level: 3}
		case p.RTT >= farRTT:
			s = Encoding{Codec: Zstd, Level: 1}
		case p.RTT > nearRTT:
			s = now
		}
		if s.Codec == Zstd && now.Codec == Zstd {
			s = now // a new level restarts the stream, which costs more than it saves
		}
	}
	for _, id := range known {
		if id == s.Codec {
			return s
		}
	}
	return Encoding{}
}

// Known returns the codecs of this version, as the opening of a link carries them.
func Known() []ID { return []ID{Raw, LZ4, Zstd} }

// idle pauses encoding where it does not help, as with encrypted or compressed data.
type idle struct {
	raw, coded int // bytes of the current sample
	rest       int // bytes that are still sent unencoded
}

const (
	sample  = 512 << 10
	restFor = 4 << 20
)

func (i *idle) skip(n int) bool {
	if i.rest <= 0 {
		return false
	}
	i.rest -= n
	return true
}

// note counts a block; coded is 0 for one that did not shrink.
func (i *idle) note(raw, coded int) {
	if coded == 0 {
		coded = raw
	}
	i.raw += raw
	i.coded += coded
	if i.raw < sample {
		return
	}
	if i.coded > i.raw-i.raw/20 {
		i.rest = restFor
	}
	i.raw, i.coded = 0, 0
}
