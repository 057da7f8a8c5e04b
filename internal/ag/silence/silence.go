package silence

import (
	"fmt"
	"math"
	"time"
)

const (
	// enough is how many intervals must have been heard before the rhythm counts as known.
	enough = 10
	// window is over how many intervals mean and spread are taken. Older ones fade.
	window = 64
	// spreads is how many spreads above the mean an interval is still usual.
	spreads = 4
	// minute is the width of one bucket of the memory for extremes, and memory the number of buckets.
	minute, memory = time.Minute, 10
	// convalescence is the time in which the observer's own lateness comes to count half: an observer that was stopped
	// once is soon well, and one that gets too little processor time is late again and again.
	convalescence = 5 * time.Second
	// share is the part of a silence, one in share, that the observer's own lateness may reach.
	share = 10
)

// Limits bound the threshold of a silence.
type Limits struct {
	Floor time.Duration // a pause of this length, beside the usual interval, is never unusual
	Most  time.Duration // the threshold is never longer; 0: there is no bound
}

// Judgement is the finding of a detector about a silence, with what it rests on.
type Judgement struct {
	Silence   time.Duration `json:"silence"`            // since something was heard
	Threshold time.Duration `json:"threshold"`          // a silence that is longer is unusual
	Mean      time.Duration `json:"mean"`               // of the intervals between beats
	Spread    time.Duration `json:"spread"`             // their standard deviation
	Longest   time.Duration `json:"longest"`            // the longest pause of the last ten minutes
	Late      time.Duration `json:"late,omitempty"`     // by which the observer itself was late during the silence
	Ill       time.Duration `json:"ill,omitempty"`      // by which it was late at once, the less the longer ago
	Declared  string        `json:"declared,omitempty"` // why the member is expected to be silent; "": it is not
	Known     bool          `json:"known"`              // enough was heard to know the rhythm
	Suspect   bool          `json:"suspect"`            // the silence is unusual, and it is not the observer's own
}

// bucket is the longest pause that ended within one minute.
type bucket struct {
	number int64 // of the minute; a bucket of another minute is empty
	gap    time.Duration
}

// Detector is what one observer knows about the rhythm of one process of a member. The zero value has heard nothing.
// It is not safe for concurrent use.
type Detector struct {
	heard        time.Duration // when anything was heard last; 0: never
	beat         time.Duration // when the last beat was heard; 0: never
	intervals    int           // between beats, at most window
	mean, square float64       // of the intervals in seconds: their mean and the mean square of their distance from it
	late         time.Duration // of the observer, since anything was heard
	ill, illAt   time.Duration // by how much the observer was late at once, and when
	recent       [memory]bucket
	declared     time.Duration
	why          string
}

// Heard notes that something of the member arrived: WAL, a keepalive, a renewal. It ends a silence, and is no part of
// the rhythm, because it comes in bursts.
func (d *Detector) Heard(at time.Duration) {
	if at <= d.heard {
		return
	}
	if d.heard != 0 {
		b := d.bucket(at)
		b.gap = max(b.gap, at-d.heard-d.late)
	}
	d.heard, d.late = at, 0
}

// Beat notes a beat of the member's rhythm: a heartbeat.
func (d *Detector) Beat(at time.Duration) {
	if d.beat != 0 && at >= d.beat {
		d.intervals = min(d.intervals+1, window)
		x, part := (at - d.beat).Seconds(), 1/float64(d.intervals)
		away := x - d.mean
		d.mean += away * part
		d.square = (1 - part) * (d.square + part*away*away)
	}
	d.beat = max(d.beat, at)
	d.Heard(at)
}

// Late notes that the observer did at that time what it should have done so much earlier.
func (d *Detector) Late(at, by time.Duration) {
	if by <= 0 {
		return
	}
	d.late += by
	d.ill, d.illAt = max(by, d.illness(at)), at
}

// illness is how much of the observer's own lateness still counts.
func (d *Detector) illness(at time.Duration) time.Duration {
	since := max(0, at-d.illAt)
	return time.Duration(float64(d.ill) * math.Exp2(-float64(since)/float64(convalescence)))
}

// Declare notes that the member said it may be silent for so long, and why. 0 withdraws it.
func (d *Detector) Declare(silence time.Duration, why string) { d.declared, d.why = silence, why }

func (d *Detector) bucket(at time.Duration) *bucket {
	n := int64(at / minute)
	b := &d.recent[n%memory]
	if b.number != n {
		*b = bucket{number: n}
	}
	return b
}

// Judge compares the silence at that time with the usual ones. The threshold is the floor beside the mean interval and
// its spread, or a quarter more than the longest pause that the member survived lately, if that is longer. It is longer
// by the lateness of the observer itself lately, and never shorter than the silence that the member declared.
func (d *Detector) Judge(at time.Duration, l Limits) Judgement {
	j := Judgement{
		Silence: max(0, at-d.heard), Mean: seconds(d.mean), Spread: seconds(math.Sqrt(d.square)),
		Late: d.late, Ill: d.illness(at), Known: d.intervals >= enough,
	}
	for _, b := range d.recent {
		if int64(at/minute)-b.number < memory {
			j.Longest = max(j.Longest, b.gap)
		}
	}
	if d.declared > 0 {
		j.Declared = d.why
	}
	j.Threshold = max(l.Floor+j.Mean+spreads*j.Spread, j.Longest+j.Longest/4) + j.Ill
	j.Threshold = max(j.Threshold, d.declared)
	if l.Most > 0 {
		j.Threshold = max(l.Floor, min(j.Threshold, l.Most))
	}
	j.Suspect = j.Known && j.Silence > j.Threshold && j.Late*share < j.Silence
	return j
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// Words returns what was heard, and what follows from it.
func (j Judgement) Words() string {
	if !j.Known {
		return "too little was heard of it to know what is usual"
	}
	rhythm := fmt.Sprintf("it was heard every %v ± %v, with pauses of up to %v", round(j.Mean), round(j.Spread), round(j.Longest))
	switch {
	case j.Suspect:
		return fmt.Sprintf("nothing was heard of it for %v, longer than %v: %s", round(j.Silence), round(j.Threshold), rhythm)
	case j.Declared != "":
		return fmt.Sprintf("%s; a silence of %v is unusual: %s", rhythm, round(j.Threshold), j.Declared)
	case j.Silence > j.Threshold:
		return fmt.Sprintf("nothing was heard of it for %v, but this node itself was late by %v: %s", round(j.Silence), round(j.Late), rhythm)
	case j.Ill > j.Mean:
		return fmt.Sprintf("%s; a silence of %v is unusual, as this node itself was late by %v", rhythm, round(j.Threshold), round(j.Ill))
	}
	return fmt.Sprintf("%s; a silence of %v is unusual", rhythm, round(j.Threshold))
}

func round(d time.Duration) time.Duration {
	if d < 10*time.Millisecond {
		return d.Round(100 * time.Microsecond)
	}
	return d.Round(10 * time.Millisecond)
}
