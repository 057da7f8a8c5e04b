package agsim

func (w *World) stopLeading(i int) {
	n := &w.nodes[i]
	n.leading, n.streams, n.doubled = 0, 0, 0
	n.got, n.gotCopy = [maxMembers]uint16{}, [maxMembers]copyID{}
}

// stop ends the server of node i, which keeps its log.
func (w *World) stop(i int) {
	n := &w.nodes[i]
	w.stopLeading(i)
	w.dropStreams(i)
	n.server, n.endOfRec, n.proven, n.barrier = down, 0, false, 0
	n.sync, n.older, n.olders = setting{}, [3]setting{}, 0
	n.foreign, n.attached, n.restart = false, false, 0
}

// fence makes writes impossible on node i and ends what it was doing.
func (w *World) fence(i int) {
	n := &w.nodes[i]
	if n.server == writable {
		w.stop(i)
	}
	n.armed, n.lease = 0, 0
	if n.busy.kind != committing {
		n.busy = pending{}
	}
}

// crash ends everything of node i but its disk; its agent starts again.
func (w *World) crash(i int) {
	n := &w.nodes[i]
	n.halfPromoted()
	w.stop(i)
	w.hold(i)
	n.busy, n.armed, n.lease, n.opened, n.inPlace = pending{}, 0, 0, 0, settled
	n.seals, n.unfit, n.sealEp = 0, 0, 0
	n.sealLog, n.sealCpy = [maxMembers]wal{}, [maxMembers]copyID{}
	n.noRewind = false
	n.feeds, n.feedTo = 0, 0
	n.withheld, n.known, n.fresh = 0, 0, true
}

// halfPromoted leaves the mark of a promotion that ends before it has done anything.
func (n *node) halfPromoted() {
	if n.busy.kind == promoting && n.promised <= n.busy.at && n.data == present {
		n.began = n.busy.tli
	}
}

// wipe loses the disk's data of node i, but for the marks.
func (w *World) wipe(i int) {
	w.crash(i)
	w.nodes[i].data, w.nodes[i].log = empty, 0
	w.nodes[i].quarantine, w.nodes[i].renew = false, false
}

// restore replaces the data of node i by those of an earlier moment, which are another copy.
func (m *Model) restore(w *World, i int, depth uint16) {
	w.crash(i)
	w.copies++
	w.nodes[i].log, w.nodes[i].copy = m.logs.at(w.nodes[i].log, depth), w.copies
}
