package linkem

import (
	"strings"
	"testing"
	"time"
)

func TestParseShape(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Shape{
		"":                                   {},
		"wan-bad":                            Profiles["wan-bad"],
		"wan-bad,loss=2%":                    {Delay: 30 * time.Millisecond, RateBits: 20_000_000, Loss: 0.02},
		"rtt=60ms,loss=1 %":                  {Delay: 30 * time.Millisecond, Loss: 0.01},
		"delay=5ms, jitter=1ms":              {Delay: 5 * time.Millisecond, Jitter: time.Millisecond},
		"rate=20mbit,queue=256kb":            {RateBits: 20_000_000, Queue: 256 << 10},
		"rate=1.5Gbit/s,queue=1000":          {RateBits: 1_500_000_000, Queue: 1000},
		"rate=9600":                          {RateBits: 9600},
		"loss=0.25,burst=4":                  {Loss: 0.25, Burst: 4},
		"reorder=1%,duplicate=2%,corrupt=3%": {Reorder: 0.01, Duplicate: 0.02, Corrupt: 0.03},
		"cut":                                {Cut: true},
		"metro,reject":                       {Delay: 2500 * time.Microsecond, RateBits: 1_000_000_000, Reject: true},
		"metro,closed":                       {Delay: 2500 * time.Microsecond, RateBits: 1_000_000_000, Closed: true},
		"lan,forgot=2":                       {Delay: 100 * time.Microsecond, RateBits: 10_000_000_000, Forgot: 2},
		"lan,rate=0":                         {Delay: 100 * time.Microsecond},
		"loss=100%,cut":                      {Loss: 1, Cut: true},
		"loss=90%,burst=9":                   {Loss: 0.9, Burst: 9},
	} {
		got, err := ParseShape(text)
		if err != nil || got != want {
			t.Errorf("%q: got %+v, %v, want %+v", text, got, err, want)
		}
		if again, err := ParseShape(got.String()); err != nil || again != got {
			t.Errorf("%q: printed as %q, read as %+v, %v", text, got, again, err)
		}
	}
	for text, want := range map[string]string{
		"wan":              "lan, metro, satellite, wan-bad, wan-good",
		"loss=1%,lan":      "comes first",
		"delay=5":          "like 60ms",
		"delay=-5ms":       "choose 0 to 10s",
		"rtt=1h":           "choose 0 to 10s",
		"jitter=1ms":       "jitter",
		"loss=101%":        "share",
		"loss=-1%":         "share",
		"loss=nan":         "share",
		"burst=0.5":        "burst",
		"loss=90%,burst=2": "at least 9 packets",
		"rate=20mb":        "not a rate",
		"rate=1":           "1kbit",
		"queue=1mbit":      "not a size",
		"speed=1":          "no \"speed\"",
		"cut,reject":       "choose one",
		"forgot=-1":        "lost its table",
		"forgot=lan":       "not a number",
	} {
		if _, err := ParseShape(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want an error with %q", text, err, want)
		}
	}
	for name, s := range Profiles {
		if err := s.Validate(); err != nil {
			t.Errorf("profile %s: %v", name, err)
		}
	}
}
