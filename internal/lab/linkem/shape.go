package linkem

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Shape is what one direction of a link is like. The zero value is a perfect link. Probabilities are per packet, 0 to
// 1.
type Shape struct {
	Delay     time.Duration `json:"delay,omitempty"`     // one way; a round trip has it twice
	Jitter    time.Duration `json:"jitter,omitempty"`    // uniform, around Delay; packets stay in order
	Loss      float64       `json:"loss,omitempty"`      // in the long run, also when it comes in bursts
	Burst     float64       `json:"burst,omitempty"`     // mean length of a run of losses in packets (Gilbert-Elliott); 0 and 1: independent
	RateBits  int64         `json:"rate_bits,omitempty"` // bits of IP packets per second; 0: unlimited
	Queue     int           `json:"queue,omitempty"`     // bytes that wait for the rate before the tail is dropped; 0: 50 ms of RateBits
	Reorder   float64       `json:"reorder,omitempty"`   // held back for a while, so that later ones overtake
	Duplicate float64       `json:"duplicate,omitempty"` // arrives twice
	Corrupt   float64       `json:"corrupt,omitempty"`   // one bit flipped
	Cut       bool          `json:"cut,omitempty"`       // no packet arrives, including those under way
	Reject    bool          `json:"reject,omitempty"`    // like Cut, with a notice to the sender: TCP is reset, all else gets ICMP port unreachable
	// As by a firewall that accepts no connection: TCP connections cannot begin in this direction, and UDP does not get
	// through.
	Closed bool `json:"closed,omitempty"`

	// Forgot is how often a stateful firewall on the link has lost its table. Packets of TCP connections that began
	// before the last loss are dropped without a notice; all others pass. 0: the link has no such firewall. Set it in
	// both directions, as one firewall sees both.
	Forgot int `json:"forgot,omitempty"`
}

// Limits of what Validate takes: a larger value is more likely a typing error than intended.
const (
	maxDelay = 10 * time.Second
	minRate  = 1000
	maxRate  = 100_000_000_000
	maxQueue = 1 << 30

	maxForgot = 1 << 30
)

// Profiles are the named links. Each is one direction of two alike: wan-good has a round trip of 30 ms.
var Profiles = map[string]Shape{
	"lan":       {Delay: 100 * time.Microsecond, RateBits: 10_000_000_000},
	"metro":     {Delay: 2500 * time.Microsecond, RateBits: 1_000_000_000},
	"wan-good":  {Delay: 15 * time.Millisecond, RateBits: 100_000_000, Loss: 0.001},
	"wan-bad":   {Delay: 30 * time.Millisecond, RateBits: 20_000_000, Loss: 0.01},
	"satellite": {Delay: 300 * time.Millisecond, Jitter: 10 * time.Millisecond, RateBits: 20_000_000, Loss: 0.005, Burst: 5},
}

// ProfileNames returns the names of Profiles in order.
func ProfileNames() []string { return slices.Sorted(maps.Keys(Profiles)) }

// Validate returns an error that names what is wrong with s.
func (s Shape) Validate() error {
	for name, p := range map[string]float64{"loss": s.Loss, "reorder": s.Reorder, "duplicate": s.Duplicate, "corrupt": s.Corrupt} {
		if math.IsNaN(p) || p < 0 || p > 1 {
			return fmt.Errorf("%s %v: choose a share of the packets from 0%% to 100%%", name, p)
		}
	}
	switch {
	case s.Delay < 0 || s.Delay > maxDelay:
		return fmt.Errorf("delay %v: choose 0 to %v", s.Delay, maxDelay)
	case s.Jitter < 0 || s.Jitter > s.Delay:
		return fmt.Errorf("jitter %v: it can be at most the delay of one direction, %v", s.Jitter, s.Delay)
	case math.IsNaN(s.Burst) || s.Burst != 0 && (s.Burst < 1 || s.Burst > 1e6):
		return fmt.Errorf("burst %v: choose a mean run of 1 packet or more", s.Burst)
	case s.Burst > 1 && s.Loss < 1 && s.Loss/(1-s.Loss) > s.Burst*(1+1e-9):
		return fmt.Errorf("loss %s in bursts of %v: so much loss needs bursts of at least %.3g packets", percent(s.Loss), s.Burst, s.Loss/(1-s.Loss))
	case s.RateBits != 0 && (s.RateBits < minRate || s.RateBits > maxRate):
		return fmt.Errorf("rate %d bit/s: choose 1kbit to 100gbit, or 0 for no limit", s.RateBits)
	case s.Queue < 0 || s.Queue > maxQueue:
		return fmt.Errorf("queue %d: choose 0 (50 ms of the rate) to %d bytes", s.Queue, maxQueue)
	case s.Forgot < 0 || s.Forgot > maxForgot:
		return fmt.Errorf("forgot %d: choose 0, for no firewall, or how often it has lost its table", s.Forgot)
	case s.Cut && s.Reject:
		return fmt.Errorf("a link is cut or rejects: choose one")
	}
	return nil
}

// queue is the bound that holds.
func (s Shape) queue() int64 {
	if s.Queue > 0 {
		return int64(s.Queue)
	}
	return max(s.RateBits/8/20, 32*1024)
}

// Set sets the property of a key to value, both as the command line spells them. The keys are rtt, delay and jitter
// (60ms), loss, reorder, duplicate and corrupt (1%), burst (5), rate (20mbit), queue (256kb), forgot (1). rtt sets the
// delay of one direction to half of the value.
func (s *Shape) Set(key, value string) (err error) {
	switch key {
	case "rtt":
		s.Delay, err = parseTime(value)
		s.Delay /= 2
	case "delay":
		s.Delay, err = parseTime(value)
	case "jitter":
		s.Jitter, err = parseTime(value)
	case "loss":
		s.Loss, err = ParseShare(value)
	case "reorder":
		s.Reorder, err = ParseShare(value)
	case "duplicate":
		s.Duplicate, err = ParseShare(value)
	case "corrupt":
		s.Corrupt, err = ParseShare(value)
	case "burst":
		s.Burst, err = strconv.ParseFloat(value, 64)
	case "rate":
		s.RateBits, err = ParseRate(value)
	case "queue":
		s.Queue, err = ParseSize(value)
	case "forgot":
		if s.Forgot, err = strconv.Atoi(value); err != nil {
			err = errors.New("not a number")
		}
	default:
		return fmt.Errorf("a link has no %q: rtt, delay, jitter, loss, burst, rate, queue, reorder, duplicate, corrupt or forgot", key)
	}
	if err != nil {
		return fmt.Errorf("%s %q: %w", key, value, err)
	}
	return nil
}

// ParseShape reads a profile's name, or key=value pairs with commas, or both: "wan-bad,loss=2%". See Set for the keys;
// cut, reject and closed stand alone.
func ParseShape(text string) (Shape, error) {
	var s Shape
	for i, word := range strings.Split(text, ",") {
		word = strings.TrimSpace(word)
		key, value, pair := strings.Cut(word, "=")
		profile, known := Profiles[word]
		switch {
		case known && i == 0:
			s = profile
		case word == "" && text == "":
		case word == "cut":
			s.Cut = true
		case word == "reject":
			s.Reject = true
		case word == "closed":
			s.Closed = true
		case !pair:
			return s, fmt.Errorf("link %q: %q is neither key=value nor a profile (%s), which comes first", text, word, strings.Join(ProfileNames(), ", "))
		default:
			if err := s.Set(key, value); err != nil {
				return s, fmt.Errorf("link %q: %w", text, err)
			}
		}
	}
	if err := s.Validate(); err != nil {
		return s, fmt.Errorf("link %q: %w", text, err)
	}
	return s, nil
}

// String returns s as ParseShape reads it.
func (s Shape) String() string {
	var b []string
	add := func(set bool, key, value string) {
		if set {
			b = append(b, key+"="+value)
		}
	}
	add(s.Delay > 0, "delay", s.Delay.String())
	add(s.Jitter > 0, "jitter", s.Jitter.String())
	add(s.Loss > 0, "loss", percent(s.Loss))
	add(s.Burst > 1, "burst", strconv.FormatFloat(s.Burst, 'g', -1, 64))
	add(s.RateBits > 0, "rate", formatRate(s.RateBits))
	add(s.Queue > 0, "queue", strconv.Itoa(s.Queue))
	add(s.Forgot > 0, "forgot", strconv.Itoa(s.Forgot))
	add(s.Reorder > 0, "reorder", percent(s.Reorder))
	add(s.Duplicate > 0, "duplicate", percent(s.Duplicate))
	add(s.Corrupt > 0, "corrupt", percent(s.Corrupt))
	if s.Cut {
		b = append(b, "cut")
	}
	if s.Reject {
		b = append(b, "reject")
	}
	if s.Closed {
		b = append(b, "closed")
	}
	return strings.Join(b, ",")
}

func parseTime(text string) (time.Duration, error) {
	d, err := time.ParseDuration(strings.TrimSpace(text))
	if err != nil {
		return 0, fmt.Errorf("not a time, like 60ms")
	}
	return d, nil
}

// ParseShare reads "1%", "0.5 %" or "0.01" as a share between 0 and 1. A plain 1 could mean either 1% or 100%, and is
// an error.
func ParseShare(text string) (float64, error) {
	number, isPercent := strings.CutSuffix(strings.TrimSpace(text), "%")
	v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if isPercent {
		v /= 100
	}
	if err == nil && !isPercent && v >= 1 && v <= 100 {
		return 0, fmt.Errorf("of what? Say %s%% for a share of the packets", strings.TrimSpace(number))
	}
	if err != nil || math.IsNaN(v) || v < 0 || v > 1 {
		return 0, fmt.Errorf("not a share of the packets, like 1%%")
	}
	return v, nil
}

var rateUnits = []unit{{"gbit", 1e9}, {"mbit", 1e6}, {"kbit", 1e3}, {"bit", 1}}

// ParseRate reads "20mbit", "1gbit", "500kbit" or a plain number of bits per second; "0" is no limit.
func ParseRate(text string) (int64, error) {
	v, err := parseUnits(strings.TrimSuffix(strings.ToLower(strings.TrimSpace(text)), "/s"), rateUnits, maxRate)
	if err != nil {
		return 0, fmt.Errorf("not a rate, like 20mbit")
	}
	return v, nil
}

var sizeUnits = []unit{{"mb", 1 << 20}, {"kb", 1 << 10}, {"m", 1 << 20}, {"k", 1 << 10}, {"b", 1}}

// ParseSize reads "256kb", "1mb" or a plain number of bytes.
func ParseSize(text string) (int, error) {
	v, err := parseUnits(strings.ToLower(strings.TrimSpace(text)), sizeUnits, maxQueue)
	if err != nil {
		return 0, fmt.Errorf("not a size, like 256kb")
	}
	return int(v), nil
}

type unit struct {
	name   string
	factor float64
}

func parseUnits(text string, units []unit, most float64) (int64, error) {
	factor := 1.0
	for _, u := range units {
		if number, ok := strings.CutSuffix(text, u.name); ok {
			text, factor = strings.TrimSpace(number), u.factor
			break
		}
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(v) || v < 0 || v*factor > most {
		return 0, strconv.ErrSyntax
	}
	return int64(math.Round(v * factor)), nil
}

func percent(share float64) string { return strconv.FormatFloat(share*100, 'g', 12, 64) + "%" }

func formatRate(bits int64) string {
	for _, u := range rateUnits {
		if f := int64(u.factor); bits%f == 0 {
			return strconv.FormatInt(bits/f, 10) + u.name
		}
	}
	return strconv.FormatInt(bits, 10)
}

// ShapeHelp describes how a shape is written on a command line.
var ShapeHelp = "a profile (" + strings.Join(ProfileNames(), ", ") + `), or as in "rtt=60ms,loss=1%,rate=20mbit"`
