package link

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/lib/codec"
)

// Preference is a replica's TRANSPORT.
type Preference string

// The values of TRANSPORT.
const (
	PreferAuto Preference = "AUTO"
	PreferTCP  Preference = "TCP"
	PreferQUIC Preference = "QUIC"
)

// ParsePreference reads TRANSPORT, in any case; "" is AUTO.
func ParsePreference(text string) (Preference, error) {
	p := Preference(strings.ToUpper(strings.TrimSpace(text)))
	switch p {
	case "":
		return PreferAuto, nil
	case PreferAuto, PreferTCP, PreferQUIC:
		return p, nil
	}
	return "", fmt.Errorf("TRANSPORT %q: choose AUTO, TCP or QUIC", text)
}

// The limits of AUTO. Between two limits nothing changes, so that a link near a limit does not switch back and forth.
const (
	nearTrip  = 1500 * time.Microsecond // a round trip up to this is a local network
	farTrip   = 2 * time.Millisecond    // one from this on is not
	lossySome = 0.003                   // share of packets lost from which on a link is lossy
	lossyNone = 0.001                   // share below which it is not, after chooser.calm
	lossySure = 100                     // packets that an estimate of loss needs at least
	minLost   = 2                       // losses it needs at least: one may be chance
)

// measure is what is known of a link at one moment.
type measure struct {
	trip       time.Duration // 0: unknown
	sent, lost uint64        // packets of the last heartbeats
	udp        udpState
	congestion string // of TCP
}

type udpState int

const (
	udpUnknown udpState = iota
	udpWorks
	udpBlocked
)

func (m measure) share() float64 {
	if m.sent == 0 {
		return 0
	}
	return float64(m.lost) / float64(m.sent)
}

// choice is a decision of the chooser.
type choice struct {
	Main   string   // the transport that new frames take
	Legs   []string // the transports to keep open
	Hedge  bool     // short frames travel twice
	Reason string
}

func (c choice) same(d choice) bool {
	return c.Main == d.Main && c.Hedge == d.Hedge && slices.Equal(c.Legs, d.Legs)
}

// chooser decides how a link is carried. It gets a measure every heartbeat, keeps its state between links to the same
// peer, and has no clock.
type chooser struct {
	prefer Preference
	calm   time.Duration // how long a link must be free of loss before it counts as such again

	far       bool
	lossy     bool
	calmSince time.Duration
}

func (ch *chooser) next(now time.Duration, m measure) choice {
	ch.learn(now, m)
	why := ch.describe(m)
	switch {
	case ch.prefer == PreferQUIC && m.udp == udpBlocked:
		return choice{Main: TCP, Legs: []string{TCP}, Reason: "QUIC was asked for, but UDP does not get through"}
	case ch.prefer == PreferQUIC:
		return choice{Main: QUIC, Legs: []string{QUIC}, Hedge: ch.lossy, Reason: "QUIC was asked for; " + why}
	case ch.prefer == PreferTCP:
		return choice{Main: TCP, Legs: ch.tcp(m), Hedge: ch.lossy, Reason: "TCP was asked for; " + why}
	case !ch.far:
		return choice{Main: TCP, Legs: []string{TCP}, Reason: why}
	case ch.lossy && m.udp == udpBlocked:
		return choice{Main: TCP, Legs: ch.tcp(m), Hedge: true, Reason: why + "; UDP does not get through"}
	case ch.lossy && m.congestion == "bbr": // the window of one QUIC connection, halved by each loss, is often too small for a burst
		return choice{Main: TCP, Legs: append(ch.tcp(m), QUIC, QUIC, QUIC), Hedge: true, Reason: why}
	case ch.lossy:
		return choice{Main: QUIC, Legs: append(ch.tcp(m), QUIC), Hedge: true, Reason: why}
	}
	return choice{Main: TCP, Legs: append(ch.tcp(m), QUIC), Reason: why}
}

// tcp returns the TCP legs: one, a second one for copies on a lossy path, and on a far path without BBR as many as make
// up for the losses together.
func (ch *chooser) tcp(m measure) []string {
	switch {
	case ch.far && m.congestion != "bbr":
		return slices.Repeat([]string{TCP}, stripes)
	case ch.lossy:
		return []string{TCP, TCP}
	}
	return []string{TCP}
}

// PathStats is what was measured of the path to a peer that has no link.
type PathStats struct {
	RTT        time.Duration // 0: unknown
	Sent, Lost uint64        // packets
	Congestion string        // the congestion controller of TCP
	Carried    int64         // bytes per second that earlier links carried; 0: unknown
}

// Options are the options of the replica that decide how a link to it is carried.
type Options struct {
	Prefer      Preference
	Compression codec.Setting
}

// Predict returns the status that a new link over the path would have: its legs, the main one, the codec and the
// reason.
func Predict(p PathStats, o Options) Status {
	ch := chooser{prefer: o.Prefer}
	lost := min(p.Lost, p.Sent)
	c := ch.next(0, measure{trip: p.RTT, sent: p.Sent, lost: lost, congestion: p.Congestion})
	encoding := codec.Choose(o.Compression, codec.Known(), codec.Encoding{}, codec.Path{RTT: p.RTT, Rate: 8 * p.Carried})
	s := Status{
		RTT: p.RTT, Packets: p.Sent, Lost: lost, Twice: c.Hedge, Reason: c.Reason, Codec: encoding.String(), Carried: p.Carried,
	}
	for _, kind := range c.Legs {
		l := LegStatus{Kind: kind, Main: kind == c.Main && len(s.Legs) == 0}
		if kind == TCP {
			l.Congestion = p.Congestion
		}
		s.Legs = append(s.Legs, l)
	}
	if c.Main == QUIC {
		s.Legs[0].Main, s.Legs[len(s.Legs)-1].Main = len(s.Legs) == 1, true
	}
	return s
}

// learn updates the states far and lossy, each with a gap between its limits.
func (ch *chooser) learn(now time.Duration, m measure) {
	switch {
	case m.trip >= farTrip:
		ch.far = true
	case m.trip > 0 && m.trip <= nearTrip:
		ch.far = false
	}
	switch {
	case m.sent >= lossySure && m.lost >= minLost && m.share() >= lossySome:
		ch.lossy, ch.calmSince = true, 0
	case !ch.lossy:
	case m.share() >= lossyNone:
		ch.calmSince = 0
	case ch.calmSince == 0:
		ch.calmSince = now
	case now-ch.calmSince >= ch.calm:
		ch.lossy, ch.calmSince = false, 0
	}
}

func (ch *chooser) describe(m measure) string {
	where := "unknown round trip"
	if m.trip > 0 {
		where = fmt.Sprintf("round trip %.3g ms", float64(m.trip.Microseconds())/1000)
	}
	switch {
	case m.sent == 0:
	case m.lost > 0:
		where += fmt.Sprintf(", %.2g %% of %d packets lost", m.share()*100, m.sent)
	default:
		where += fmt.Sprintf(", none of %d packets lost", m.sent)
	}
	switch {
	case !ch.far:
		return where + ": a local network"
	case ch.lossy:
		return where + ": lossy"
	}
	return where + ": far, not lossy"
}

// share returns the share of the packets that were lost.
func (w *lossWindow) share() float64 {
	sent, lost := w.sum()
	return measure{sent: sent, lost: lost}.share()
}

// lossWindow adds up the packets of the last heartbeats; of more heartbeats while few packets are sent.
type lossWindow struct {
	sent, lost [lossKept]uint64
	at         int
	closely    int // heartbeats for which a far path was measured closely
}

const (
	lossKept = 10
	lossPart = 2 * lossySure / lossKept // packets from which on a heartbeat fills a slot of its own

	watchClosely = 20 // datagrams per heartbeat that measure loss where there is too little traffic
	watchIdly    = 2  // the same once the result is stable
)

func (w *lossWindow) add(sent, lost uint64) {
	if w.sent[w.at] >= lossPart {
		w.at = (w.at + 1) % lossKept
		w.sent[w.at], w.lost[w.at] = 0, 0
	}
	w.sent[w.at] += sent
	w.lost[w.at] += lost
}

// watch returns how many datagrams to send only to measure loss, after a heartbeat in which sent packets went. A path
// is measured closely at first, and whenever recent losses contradict the mode in force: a loss while nothing is
// hedged, none while frames are. Otherwise a few datagrams suffice, or none.
func (w *lossWindow) watch(far bool, sent uint64, hedging bool) int {
	_, lost := w.sum()
	switch {
	case !far:
		w.closely = 0
		return 0
	case w.closely < lossKept:
		w.closely++
	case hedging && lost > 0:
		return 0
	case !hedging && lost == 0:
		return watchIdly
	}
	if sent >= lossPart {
		return 0
	}
	return watchClosely
}

func (w *lossWindow) sum() (sent, lost uint64) {
	for i := range lossKept {
		sent, lost = sent+w.sent[i], lost+w.lost[i]
	}
	return sent, min(lost, sent)
}
