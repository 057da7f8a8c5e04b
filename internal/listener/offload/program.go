package offload

import (
	"fmt"

	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// The kernel runs this program for each piece of a stream that arrives on one of the two sockets of a known session.
// It passes the piece on to the other socket if the piece is a whole simple request, or the whole answer to one.
// Everything else it leaves to the event loop, and reports an event. It updates the counters in the slot, which the
// loop takes over then. docs/adr/0094-the-kernels-path.md has who decides what, and why nothing can overtake anything
// else.
//
// The kernel's verifier checks the assembly when it is loaded: no access outside of the slot, no endless loop.

// Offsets in a slot, for the program. slot.go has the same as a struct, and a test compares them.
const (
	slotArmed      = 0
	slotFlags      = 4
	slotInside     = 8
	slotGeneration = 12
	slotUps        = 16
	slotDowns      = 24
	slotUpBytes    = 32
	slotDownBytes  = 40
	slotUpLeft     = 48
	slotUpTaken    = 56
	slotDownLeft   = 64
	slotDownTaken  = 72
	slotDownLimit  = 80
	slotLogged     = 88
	slotStatus     = 92
	slotWhy        = 96
	slotSingle     = 100
	slotParsed     = 104
	slotLog        = 128
	slotSize       = 2048
)

// Offsets in what all sessions share.
const (
	commonDeadline   = 0
	commonLogSizeAt  = 8  // the kernel's address of the size of the server's log; 0: there is none
	commonLogReached = 16 // the size up to which it was read and found harmless
	commonSize       = 24
)

// Flags of a session.
const (
	FlagGuarded  = 1 // an answer passes only while everything in the server's log is known to be harmless
	FlagUngated  = 2 // answers pass without a deadline
	FlagDeadline = 4 // answers pass until the deadline
)

const (
	longestRequest = 1024 // bytes
	longestAnswer  = 4096 // bytes
	requestParts   = 8    // messages in a request
	messagesAtMost = 64   // in an answer
)

// Why a session came back to its loop.
const (
	WhyCalled uint32 = iota // the loop reclaimed it
	whyOrder                // an earlier piece was still with the loop
	whyPipelined
	whyLong
	whyRead
	whyPart  // not whole
	whyOther // a message that the loop has to decide about
	whyText  // a statement that the loop has to decide about
	whySlow  // the client does not read
	whyGate
	whyUnasked
	WhyLog   // the server has logged something
	WhyCount // how many there are
)

// WhyNames are the reasons for which a session came back from the kernel, as metrics name them.
var WhyNames = [WhyCount]string{
	"called", "order", "pipelined", "long", "unreadable", "in parts", "message", "statement", "slow client", "gate", "unasked", "log",
}

// Registers and stack slots with a fixed meaning.
const (
	rCtx  = asm.R6
	rBase = asm.R7 // the copy of the request in the slot
	rSlot = asm.R8
	rLen  = asm.R9

	atCookie = -8
	atIndex  = -12 // of the slot
	atWay    = -16
	atGen    = -20
	atHead   = -33 // five bytes, the length of them aligned
	atOffset = -48
	atCount  = -56
)

// descriptors are the file descriptors of the maps.
type descriptors struct{ ways, slots, peers, common, bell int }

// program returns the instructions for these maps.
func program(maps descriptors) asm.Instructions {
	var p assembly
	p.enter(maps.ways, maps.slots)
	p.request()
	p.answer(maps.common)
	p.leave(maps.peers, maps.bell)
	whole, text := functions()
	p.textFunction(maps.slots, text)
	p.list[0] = btf.WithFuncMetadata(p.list[0].WithSymbol(whole.Name), whole)
	return p.list
}

// assembly is a program that is being written.
type assembly struct {
	list  asm.Instructions
	label string
}

func (p *assembly) add(list ...asm.Instruction) {
	if p.label != "" {
		list[0] = list[0].WithSymbol(p.label)
		p.label = ""
	}
	p.list = append(p.list, list...)
}

// at names the next instruction.
func (p *assembly) at(label string) {
	if p.label != "" {
		p.add(asm.Mov.Reg(asm.R0, asm.R0)) // two labels for one place
	}
	p.label = label
}

// back returns the label that leaves the piece to the loop for that reason.
func (p *assembly) back(why uint32) string { return fmt.Sprintf("back-%d", why) }

// enter finds the session: rSlot, rLen, and the direction on the stack.
func (p *assembly) enter(ways, slots int) {
	p.add(
		asm.Mov.Reg(rCtx, asm.R1),
		asm.FnGetSocketCookie.Call(),
		asm.StoreMem(asm.RFP, atCookie, asm.R0, asm.DWord),
		asm.LoadMapPtr(asm.R1, ways),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, atCookie),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "stranger"),
		asm.LoadMem(asm.R1, asm.R0, 0, asm.Word),
		asm.StoreMem(asm.RFP, atWay, asm.R1, asm.Word),
		asm.LoadMem(asm.R2, asm.R0, 4, asm.Word),
		asm.StoreMem(asm.RFP, atGen, asm.R2, asm.Word),
		asm.RSh.Imm(asm.R1, 1),
		asm.StoreMem(asm.RFP, atIndex, asm.R1, asm.Word),
		asm.LoadMapPtr(asm.R1, slots),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, atIndex),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "stranger"),
		asm.Mov.Reg(rSlot, asm.R0),
		// Reclaiming clears Armed and waits until inside is 0. Each side writes its own word before it reads the
		// other's, and the addition is a barrier.
		asm.Mov.Imm(asm.R1, 1),
		asm.FetchAdd.Mem(rSlot, asm.R1, asm.Word, slotInside),
		asm.LoadMem(asm.R1, rSlot, slotGeneration, asm.Word),
		asm.LoadMem(asm.R2, asm.RFP, atGen, asm.Word),
		asm.JNE.Reg(asm.R1, asm.R2, "outside"), // the slot belongs to another session by now
		asm.LoadMem(rLen, rCtx, 0, asm.Word),
		asm.LoadMem(asm.R1, asm.RFP, atWay, asm.Word),
		asm.And.Imm(asm.R1, 1),
		asm.JNE.Imm(asm.R1, 0, "answer"),
	)
}

// request checks what the client has sent.
func (p *assembly) request() {
	p.add(
		asm.LoadMem(asm.R1, rSlot, slotArmed, asm.Word),
		asm.JEq.Imm(asm.R1, 0, "pass"),
		asm.LoadMem(asm.R1, rSlot, slotUpLeft, asm.DWord),
		asm.LoadMem(asm.R2, rSlot, slotUpTaken, asm.DWord),
		asm.JNE.Reg(asm.R1, asm.R2, p.back(whyOrder)),
		asm.LoadMem(asm.R1, rSlot, slotUps, asm.DWord),
		asm.LoadMem(asm.R2, rSlot, slotDowns, asm.DWord),
		asm.JNE.Reg(asm.R1, asm.R2, p.back(whyPipelined)),
		asm.JGT.Imm(rLen, longestRequest, p.back(whyLong)),
		asm.JLT.Imm(rLen, 5, p.back(whyPart)),
		asm.Mov.Reg(rBase, rSlot), // the previous request was answered, so its copy is no longer needed
		asm.Add.Imm(rBase, slotLog),
		asm.Mov.Imm(asm.R1, 0),
		asm.StoreMem(rSlot, slotLogged, asm.R1, asm.Word),
		asm.Mov.Reg(asm.R1, rCtx),
		asm.Mov.Imm(asm.R2, 0),
		asm.Mov.Reg(asm.R3, rBase),
		asm.Mov.Reg(asm.R4, rLen),
		asm.FnSkbLoadBytes.Call(),
		asm.JNE.Imm(asm.R0, 0, p.back(whyRead)),
		asm.Mov.Imm(asm.R0, 0), // where the current message begins
	)
	for i := range requestParts {
		p.requestPart(i)
	}
	p.add(asm.LongJump(p.back(whyPart)))

	p.at("query")
	p.add(asm.Mov.Imm(asm.R2, 5))
	p.text()
	p.parsed(0)
	p.add(asm.Mov.Imm(asm.R1, 1), asm.LongJump("single"))
	p.at("executed")
	p.add(asm.Mov.Imm(asm.R1, 0))
	p.at("single")
	p.add(asm.StoreMem(rSlot, slotSingle, asm.R1, asm.Word), asm.StoreMem(rSlot, slotLogged, rLen, asm.Word))
	p.count(slotUps, slotUpBytes)
	p.add(asm.LongJump("redirect"))
}

// text leaves the request to the loop if the text matters that begins at R2.
func (p *assembly) text() {
	p.add(
		asm.LoadMem(asm.R1, asm.RFP, atIndex, asm.Word),
		asm.Mov.Reg(asm.R3, rLen),
		asm.Call.Label("text"),
		asm.JNE.Imm(asm.R0, 0, p.back(whyText)),
	)
}

// parsed notes whether the unnamed statement was parsed and not bound since. It may be noted of a request that is left
// to the loop: that follows the same messages then.
func (p *assembly) parsed(waits int32) {
	p.add(asm.Mov.Imm(asm.R1, waits), asm.StoreMem(rSlot, slotParsed, asm.R1, asm.Word))
}

// bind checks a Bind, whose header and portal's name requestPart has loaded, and goes on at plain.
func (p *assembly) bind(plain string) {
	p.add(
		asm.JNE.Imm(asm.R4, 0, p.back(whyOther)),
		asm.JLT.Imm(asm.R1, 6, p.back(whyOther)),
		asm.LoadMem(asm.R4, asm.R2, 6, asm.Byte), // the first byte of the statement's name
		asm.JNE.Imm(asm.R4, 0, plain),
	)
	p.parsed(0)
	p.add(asm.LongJump(plain))
}

// requestPart checks one message of a request, which begins at R0.
func (p *assembly) requestPart(i int) {
	next := fmt.Sprintf("part-%d", i+1)
	p.at(fmt.Sprintf("part-%d", i))
	p.add(
		asm.Mov.Reg(asm.R1, rLen),
		asm.Sub.Imm(asm.R1, 5),
		asm.JGT.Reg(asm.R0, asm.R1, p.back(whyPart)),
		asm.JGT.Imm(asm.R0, longestRequest-5, p.back(whyPart)),
		asm.Mov.Reg(asm.R2, rBase),
		asm.Add.Reg(asm.R2, asm.R0),
		asm.LoadMem(asm.R3, asm.R2, 0, asm.Byte),
		asm.LoadMem(asm.R1, asm.R2, 1, asm.Word),
		asm.HostTo(asm.BE, asm.R1, asm.Word),
		asm.JLT.Imm(asm.R1, 4, p.back(whyOther)),
		asm.JGT.Imm(asm.R1, longestRequest, p.back(whyPart)),
		asm.StoreMem(asm.RFP, atOffset, asm.R0, asm.DWord),
		asm.Add.Reg(asm.R0, asm.R1),
		asm.Add.Imm(asm.R0, 1),
		asm.JGT.Reg(asm.R0, rLen, p.back(whyPart)),
	)
	if i == 0 {
		p.add(
			asm.JNE.Imm(asm.R3, 'Q', "part-0-other"),
			asm.JEq.Reg(asm.R0, rLen, "query"),
			asm.LongJump(p.back(whyPipelined)),
		)
		p.at("part-0-other")
	}
	sync, bind, named, parse, plain := next+"-sync", next+"-bind", next+"-named", next+"-parse", next+"-plain"
	p.add(
		asm.JEq.Imm(asm.R3, 'S', sync),
		asm.JLT.Imm(asm.R1, 5, p.back(whyOther)), // no body
		asm.LoadMem(asm.R4, asm.R2, 5, asm.Byte), // the first byte of a name
		asm.JEq.Imm(asm.R3, 'B', bind),
		asm.JEq.Imm(asm.R3, 'E', named),
		asm.JEq.Imm(asm.R3, 'P', parse),
		asm.JEq.Imm(asm.R3, 'D', plain),
		asm.JEq.Imm(asm.R3, 'C', plain),
		asm.LongJump(p.back(whyOther)),
	)
	p.at(sync)
	p.add(asm.JNE.Reg(asm.R0, rLen, p.back(whyPipelined)), asm.LongJump("executed"))
	p.at(parse) // of the unnamed statement; a COPY may ask for more than this request, and a text that begins without a letter may be one
	p.add(
		asm.JNE.Imm(asm.R4, 0, p.back(whyOther)),
		asm.LoadMem(asm.R1, asm.R2, 6, asm.Word),
		asm.HostTo(asm.BE, asm.R1, asm.Word),
		asm.Or.Imm(asm.R1, smallLetters),
		asm.JEq.Imm(asm.R1, window("copy"), p.back(whyText)),
		asm.RSh.Imm(asm.R1, 24),
		asm.JLT.Imm(asm.R1, 'a', p.back(whyText)),
		asm.JGT.Imm(asm.R1, 'z', p.back(whyText)),
		asm.LoadMem(asm.R2, asm.RFP, atOffset, asm.DWord),
		asm.Add.Imm(asm.R2, 6),
		asm.StoreMem(asm.RFP, atOffset, asm.R0, asm.DWord),
	)
	p.text()
	p.parsed(1)
	p.add(asm.LoadMem(asm.R0, asm.RFP, atOffset, asm.DWord), asm.LongJump(plain))
	p.at(bind)
	p.bind(plain)
	p.at(named) // a named portal stays open
	p.add(asm.JNE.Imm(asm.R4, 0, p.back(whyOther)))
	p.at(plain)
	p.add(asm.Mov.Reg(asm.R0, asm.R0))
}

// answer checks what PostgreSQL has sent.
func (p *assembly) answer(common int) {
	p.at("answer")
	p.add(
		asm.LoadMem(asm.R1, rSlot, slotArmed, asm.Word),
		asm.JEq.Imm(asm.R1, 0, "pass"),
		asm.LoadMem(asm.R1, rSlot, slotDownLeft, asm.DWord),
		asm.LoadMem(asm.R2, rSlot, slotDownTaken, asm.DWord),
		asm.JNE.Reg(asm.R1, asm.R2, p.back(whyOrder)),
		asm.LoadMem(asm.R1, rSlot, slotDowns, asm.DWord),
		asm.LoadMem(asm.R2, rSlot, slotUps, asm.DWord),
		asm.Add.Imm(asm.R1, 1),
		asm.JNE.Reg(asm.R1, asm.R2, p.back(whyUnasked)),
		asm.JGT.Imm(rLen, longestAnswer, p.back(whyLong)),
		asm.LoadMem(asm.R1, rSlot, slotDownBytes, asm.DWord),
		asm.LoadMem(asm.R2, rSlot, slotDownLimit, asm.DWord),
		asm.Add.Reg(asm.R1, rLen),
		asm.JGT.Reg(asm.R1, asm.R2, p.back(whySlow)),
		// The gate: if the deadline is not over, PostgreSQL has sent these bytes before it.
		asm.LoadMem(asm.R1, rSlot, slotFlags, asm.Word),
		asm.Mov.Reg(asm.R2, asm.R1),
		asm.And.Imm(asm.R2, FlagUngated|FlagDeadline),
		asm.JEq.Imm(asm.R2, 0, "open"),
		asm.LoadMapValue(asm.R3, common, 0),
		asm.LoadMem(asm.R3, asm.R3, commonDeadline, asm.DWord),
		asm.And.Imm(asm.R1, FlagDeadline),
		asm.JNE.Imm(asm.R1, 0, "deadline"),
		asm.JNE.Imm(asm.R3, 0, p.back(whyGate)),
		asm.LongJump("open"),
	)
	p.at("deadline")
	p.add(
		asm.StoreMem(asm.RFP, atOffset, asm.R3, asm.DWord),
		asm.FnKtimeGetBootNs.Call(),
		asm.LoadMem(asm.R3, asm.RFP, atOffset, asm.DWord),
		asm.JGE.Reg(asm.R0, asm.R3, p.back(whyGate)),
	)
	p.at("open")
	p.watchLog(common)
	p.answerParts()
}

// answerParts checks the messages of an answer.
func (p *assembly) answerParts() {
	p.add(
		asm.Mov.Imm(asm.R1, 0),
		asm.StoreMem(asm.RFP, atOffset, asm.R1, asm.DWord),
		asm.StoreMem(asm.RFP, atCount, asm.R1, asm.DWord),
	)
	p.at("message")
	p.load(atOffset, 0, 5)
	p.add(
		asm.LoadMem(asm.R1, asm.RFP, atHead+1, asm.Word),
		asm.HostTo(asm.BE, asm.R1, asm.Word),
		asm.JLT.Imm(asm.R1, 4, p.back(whyOther)),
		asm.JGT.Imm(asm.R1, longestAnswer, p.back(whyPart)),
		asm.LoadMem(asm.R2, asm.RFP, atOffset, asm.DWord),
		asm.Add.Reg(asm.R1, asm.R2),
		asm.Add.Imm(asm.R1, 1), // where the message ends
		asm.JGT.Reg(asm.R1, rLen, p.back(whyPart)),
		asm.LoadMem(asm.R3, asm.RFP, atHead, asm.Byte),
		asm.JEq.Imm(asm.R3, 'Z', "ready"),
	)
	for _, typ := range "DTC12n3tI" {
		p.add(asm.JEq.Imm(asm.R3, typ, "next"))
	}
	p.add(asm.LongJump(p.back(whyOther)))
	p.at("next")
	p.add(
		asm.StoreMem(asm.RFP, atOffset, asm.R1, asm.DWord),
		asm.LoadMem(asm.R1, asm.RFP, atCount, asm.DWord),
		asm.Add.Imm(asm.R1, 1),
		asm.StoreMem(asm.RFP, atCount, asm.R1, asm.DWord),
		asm.JLT.Imm(asm.R1, messagesAtMost, "message"),
		asm.LongJump(p.back(whyLong)),
	)
	p.at("ready")
	p.add(
		asm.JNE.Reg(asm.R1, rLen, p.back(whyOther)),
		asm.Sub.Reg(asm.R1, asm.R2),
		asm.JNE.Imm(asm.R1, 6, p.back(whyOther)),
	)
	p.load(atOffset, 5, 1)
	p.add(
		asm.LoadMem(asm.R1, asm.RFP, atHead, asm.Byte),
		asm.StoreMem(rSlot, slotStatus, asm.R1, asm.Word),
	)
	p.count(slotDowns, slotDownBytes)
	p.add(asm.LongJump("redirect"))
}

// load copies n bytes of the piece to atHead, from that far behind the offset on the stack.
func (p *assembly) load(offset int16, behind, n int32) {
	p.add(
		asm.Mov.Reg(asm.R1, rCtx),
		asm.LoadMem(asm.R2, asm.RFP, offset, asm.DWord),
		asm.Add.Imm(asm.R2, behind),
		asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, atHead),
		asm.Mov.Imm(asm.R4, n),
		asm.FnSkbLoadBytes.Call(),
		asm.JNE.Imm(asm.R0, 0, p.back(whyPart)),
	)
}

// count counts a piece that is passed on.
func (p *assembly) count(pieces, bytes int16) {
	p.add(
		asm.LoadMem(asm.R1, rSlot, pieces, asm.DWord),
		asm.Add.Imm(asm.R1, 1),
		asm.StoreMem(rSlot, pieces, asm.R1, asm.DWord),
		asm.LoadMem(asm.R1, rSlot, bytes, asm.DWord),
		asm.Add.Reg(asm.R1, rLen),
		asm.StoreMem(rSlot, bytes, asm.R1, asm.DWord),
	)
}

// leave ends the program: on to the other socket, or to the loop.
func (p *assembly) leave(peers, bell int) {
	p.at("redirect")
	p.add(
		asm.Mov.Reg(asm.R1, rCtx),
		asm.LoadMapPtr(asm.R2, peers),
		asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, atWay),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnSkRedirectHash.Call(),
		asm.Mov.Imm(asm.R1, -1),
		asm.FetchAdd.Mem(rSlot, asm.R1, asm.Word, slotInside),
		asm.Return(),
	)
	for why := whyOrder; why < WhyCount; why++ {
		p.at(p.back(why))
		p.add(asm.Mov.Imm(asm.R1, int32(why)), asm.LongJump("back"))
	}
	p.at("back")
	p.add(
		asm.StoreMem(rSlot, slotWhy, asm.R1, asm.Word),
		asm.Mov.Imm(asm.R1, 0),
		asm.StoreMem(rSlot, slotArmed, asm.R1, asm.Word),
		asm.LoadMapPtr(asm.R1, bell),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, atIndex),
		asm.Mov.Imm(asm.R3, 4),
		asm.Mov.Imm(asm.R4, 2), // BPF_RB_FORCE_WAKEUP
		asm.FnRingbufOutput.Call(),
	)
	p.at("pass")
	left, up := int16(slotDownLeft), int16(slotUpLeft)
	p.add(
		asm.LoadMem(asm.R1, asm.RFP, atWay, asm.Word),
		asm.And.Imm(asm.R1, 1),
		asm.JEq.Imm(asm.R1, 0, "pass-up"),
		asm.LoadMem(asm.R1, rSlot, left, asm.DWord),
		asm.Add.Reg(asm.R1, rLen),
		asm.StoreMem(rSlot, left, asm.R1, asm.DWord),
		// The loop reads the remaining bytes from a socket of its own, the other end of one to which they are
		// redirected here. If it read PostgreSQL's socket itself, newly arrived bytes could overtake those that are
		// still on their way through the program.
		asm.LoadMem(asm.R1, asm.RFP, atIndex, asm.Word),
		asm.Or.Imm(asm.R1, -1<<31), // returnFlag
		asm.StoreMem(asm.RFP, atWay, asm.R1, asm.Word),
		asm.LongJump("redirect"),
	)
	p.at("pass-up")
	p.add(
		asm.LoadMem(asm.R1, rSlot, up, asm.DWord),
		asm.Add.Reg(asm.R1, rLen),
		asm.StoreMem(rSlot, up, asm.R1, asm.DWord),
	)
	p.at("outside")
	p.add(
		asm.Mov.Imm(asm.R1, -1),
		asm.FetchAdd.Mem(rSlot, asm.R1, asm.Word, slotInside),
	)
	p.at("stranger")
	p.add(asm.Mov.Imm(asm.R0, 1), asm.Return()) // SK_PASS
}
