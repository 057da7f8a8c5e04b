package link

import (
	"slices"
	"time"
)

// Event is something that happened to a link, and why.
type Event struct {
	At     time.Time `json:"at"`
	What   string    `json:"what"`
	Reason string    `json:"reason"`
}

const keptEvents = 32

// note records and logs an event; mu is held.
func (c *Conn) note(what, reason string) {
	if len(c.events) >= keptEvents {
		c.events = slices.Delete(c.events, 0, len(c.events)-keptEvents+1)
	}
	c.events = append(c.events, Event{time.Now(), what, reason})
	c.log.Info("link changed", "what", what, "reason", reason)
}

// LegStatus is one leg of a link.
type LegStatus struct {
	Kind       string        `json:"kind"`
	Congestion string        `json:"congestion"`
	Main       bool          `json:"main"`
	RTT        time.Duration `json:"rtt_ns"`
	Rate       int64         `json:"rate"` // bytes per second that the transport estimates; 0: unknown
	Remote     string        `json:"remote"`
	Via        string        `json:"via,omitempty"` // the member that relays it
	Sent       uint64        `json:"sent"`          // bytes of numbered frames that it carried, without copies
}

// Status describes a link at one moment.
type Status struct {
	Peer    string        `json:"peer"`
	Dialled bool          `json:"dialled"` // by this side
	Legs    []LegStatus   `json:"legs"`
	RTT     time.Duration `json:"rtt_ns"`
	Packets uint64        `json:"packets"` // of the last ten heartbeats, both directions
	Lost    uint64        `json:"lost"`    // of those
	Twice   bool          `json:"small_frames_twice"`
	Reason  string        `json:"reason,omitempty"` // of the choice; the dialling side's
	Carried int64         `json:"carried"`          // bytes per second, of this link or earlier ones to the peer, when there was more to send; 0: never

	Codec         string        `json:"codec"`          // of what this side sends
	Sent          uint64        `json:"sent"`           // bytes before encoding
	SentEncoded   uint64        `json:"sent_encoded"`   // and after
	SendBusy      time.Duration `json:"send_busy_ns"`   // spent encoding
	Received      uint64        `json:"received"`       // bytes after decoding
	ReceivedCoded uint64        `json:"received_coded"` // and before
	ReceiveBusy   time.Duration `json:"receive_busy_ns"`
	SentTwice     uint64        `json:"sent_twice"` // bytes of second copies, and of shards beyond the frames' own
	Resent        uint64        `json:"resent"`     // bytes sent again after a leg was lost
	Doubles       uint64        `json:"doubles"`    // frames that arrived more than once
	Repaired      uint64        `json:"repaired"`   // frames of which a part was lost and made again from the rest
	Events        []Event       `json:"events"`
}

// Ratio returns the compression ratio of the sent bytes; 1 if nothing was sent.
func (s Status) Ratio() float64 {
	if s.SentEncoded == 0 {
		return 1
	}
	return float64(s.Sent) / float64(s.SentEncoded)
}

// Status returns the link's status now.
func (c *Conn) Status() Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := Status{
		Peer: c.peer, Dialled: c.chosen.Main != "", RTT: c.trip(), Twice: c.hedging, Reason: c.chosen.Reason, Carried: c.cfg.Bandwidth.Rate(c.peer), Codec: c.setting.String(),
		Sent: c.encoded.Raw, SentEncoded: c.encoded.Encoded, SendBusy: c.encoded.Busy, Received: c.in.raw.Load(),
		ReceivedCoded: c.in.encoded.Load(), ReceiveBusy: time.Duration(c.in.busy.Load()), SentTwice: uint64(max(c.copied, 0)), Resent: c.resent,
		Doubles: c.in.doubles.Load(), Repaired: c.in.repaired.Load(), Events: slices.Clone(c.events),
	}
	s.Packets, s.Lost = c.loss.sum()
	for _, l := range c.legs {
		s.Legs = append(s.Legs, LegStatus{l.Kind(), l.Congestion(), l == c.main, l.trip(), l.rate(), l.RemoteAddr().String(), l.via(), l.carried})
	}
	return s
}
