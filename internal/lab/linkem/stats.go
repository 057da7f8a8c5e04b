package linkem

import "sync/atomic"

// counters are written by one thread and read by all.
type counters struct {
	packets, bytes, lost, queueDrops, duplicated, reordered, corrupted, blocked, rejected, failed, late atomic.Uint64

	free     atomic.Int64 // copy of path.free
	underWay atomic.Int64 // copy of path.underWay
}

// Stats are the counters of one direction of a link since it was made.
type Stats struct {
	From       string `json:"from"`
	To         string `json:"to"`
	Shape      Shape  `json:"shape"`
	Packets    uint64 `json:"packets"`     // delivered, duplicates included
	Bytes      uint64 `json:"bytes"`       // of those, IP headers included
	Lost       uint64 `json:"lost"`        // by Loss
	QueueDrops uint64 `json:"queue_drops"` // found the queue full
	Duplicated uint64 `json:"duplicated"`
	Reordered  uint64 `json:"reordered"`
	Corrupted  uint64 `json:"corrupted"`
	Blocked    uint64 `json:"blocked"`     // by Cut, on arrival or under way, by Closed and by Forgot
	Rejected   uint64 `json:"rejected"`    // by Reject
	Failed     uint64 `json:"failed"`      // the receiving device did not take it
	Late       uint64 `json:"late"`        // delivered more than 1 ms after its time: this machine is too busy for these links
	QueueBytes int64  `json:"queue_bytes"` // waiting for the rate now
	UnderWay   int64  `json:"under_way"`   // packets queued or on the wire now
}

func (p *path) stats(from, to string, now nanos) Stats {
	c, s := &p.count, p.want.Load()
	return Stats{
		From: from, To: to, Shape: *s,
		Packets: c.packets.Load(), Bytes: c.bytes.Load(), Lost: c.lost.Load(), QueueDrops: c.queueDrops.Load(),
		Duplicated: c.duplicated.Load(), Reordered: c.reordered.Load(), Corrupted: c.corrupted.Load(),
		Blocked: c.blocked.Load(), Rejected: c.rejected.Load(), Failed: c.failed.Load(), Late: c.late.Load(),
		QueueBytes: s.waiting(nanos(c.free.Load()) - now), UnderWay: c.underWay.Load(),
	}
}
