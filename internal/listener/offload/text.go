package offload

import (
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// A text that the kernel passes on is seen by nobody who follows the state of the session (sessionstate.Tracker).
// So the program passes on only those that would change nothing in what is followed; others are left to the loop.
// It leaves more than that where it is cheaper: TestKernelPassesNoTextThatMatters compares the two.

// firstWords begin statements that set something, load a library, prepare, or are a program, or comments behind which
// such a statement may stand. DROP, CREATE and ALTER may need a database without other sessions
// (stmt.NeedsDatabaseAlone): the pool drops its backends for them.
var firstWords = []string{"set", "rese", "load", "prep", "do", "--", "/*", "drop", "crea", "alte"}

// These words matter wherever they stand. An ALTER may be refused. The others are parts of currval, lastval, setseed,
// set_config, dblink_connect, pg_backup_start and pg_replication_origin_session_setup, whose effects no view of the
// server shows, and the beginning of a name in Unicode escapes. Each has the length of a window, or two, but for the
// last one.
var (
	lowWords  = []string{"alte", "nk_c", "ackup_st", "n_origin"} // begin with a letter before r
	highWords = []string{"rrva", "stva", "tsee", "set_conf"}
	escaped   = `u&"`
)

// smallLetters is the bit in each byte of a window that makes a capital a small letter. A window is four bytes of the
// text, the first one in the highest place.
const smallLetters = 0x20202020

// window returns what the program finds where these bytes stand, at most four.
func window(s string) (w int32) {
	for _, c := range []byte(s) {
		w = w<<8 | int32(c|smallLetters&0xff)
	}
	return w
}

// behind is how many bits of a window are behind a word.
func behind(s string) int32 { return int32(8 * (4 - len(s))) }

// functions describes the program and its function to the kernel. The function is a global one: the verifier checks it
// once, for any arguments. As a part of the program it would be checked for every message that can have a text, in
// every state that the program can be in there, which takes more instructions than the verifier allows.
func functions() (program, text *btf.Func) {
	number := &btf.Int{Name: "unsigned int", Size: 4}
	piece := btf.FuncParam{Name: "piece", Type: &btf.Pointer{Target: &btf.Struct{Name: "__sk_buff"}}}
	whole := &btf.FuncProto{Return: number, Params: []btf.FuncParam{piece}}
	part := &btf.FuncProto{Return: number, Params: []btf.FuncParam{{Name: "slot", Type: number}, {Name: "begin", Type: number}, {Name: "length", Type: number}}}
	return &btf.Func{Name: "coterie_relay", Linkage: btf.GlobalFunc, Type: whole}, &btf.Func{Name: "text", Linkage: btf.GlobalFunc, Type: part}
}

// textFunction adds a function of the program. R1 is the index of the slot with the copy of the request, R2 where a
// text begins in that, R3 the length of the request. R0 becomes 0 if the text may pass.
//
// It looks at the first word, and at each byte up to the 0 at the end. A comment before a parenthesis may stand
// between a function's name and it. Behind a semicolon there may be nothing but space.
func (p *assembly) textFunction(slots int, described *btf.Func) {
	p.at("text")
	begin := len(p.list)
	p.add(
		asm.Mov.Reg(asm.R6, asm.R2),
		asm.Mov.Reg(asm.R7, asm.R3),
		asm.StoreMem(asm.RFP, -4, asm.R1, asm.Word),
		asm.LoadMapPtr(asm.R1, slots),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -4),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "text-matters"),
		asm.Mov.Reg(asm.R1, asm.R0),
		asm.Add.Imm(asm.R1, slotLog),
		asm.Mov.Reg(asm.R2, asm.R6),
		asm.Mov.Reg(asm.R3, asm.R7),
		asm.Mov.Imm(asm.R0, 0),
	)
	p.list[begin] = btf.WithFuncMetadata(p.list[begin], described)
	p.textBeginning()
	p.textScan()
	p.textRest()
	p.at("text-passes")
	p.add(asm.Mov.Imm(asm.R0, 0), asm.Return())
	p.at("text-matters")
	p.add(asm.Mov.Imm(asm.R0, 1), asm.Return())
}

// textBeginning steps over space and compares the first word.
func (p *assembly) textBeginning() {
	p.at("text-space")
	p.textByte()
	p.textIsSpace("text-space-next", "text-word")
	p.at("text-space-next")
	p.add(asm.Add.Imm(asm.R2, 1), asm.Ja.Label("text-space"))

	p.at("text-word")
	p.textWindow()
	for _, word := range firstWords {
		p.add(
			asm.Mov.Reg(asm.R5, asm.R4),
			asm.RSh.Imm(asm.R5, behind(word)),
			asm.JEq.Imm(asm.R5, window(word), "text-matters"),
		)
	}
}

// textScan looks at each byte. R0 is whether a comment was met.
func (p *assembly) textScan() {
	p.at("text-scan")
	p.textByte()
	p.add(asm.JEq.Imm(asm.R5, 0, "text-passes"))
	p.textWindow()
	p.add(
		asm.JGE.Imm(asm.R4, 'r'<<24, "text-high"),
		asm.JLT.Imm(asm.R4, 'a'<<24, "text-sign"),
	)
	p.textWords(lowWords)
	p.at("text-next")
	p.add(asm.Add.Imm(asm.R2, 1), asm.Ja.Label("text-scan"))

	p.at("text-high")
	p.textWords(highWords)
	p.add(
		asm.RSh.Imm(asm.R4, behind(escaped)),
		asm.JEq.Imm(asm.R4, window(escaped), "text-matters"),
		asm.Ja.Label("text-next"),
	)
	p.at("text-sign")
	p.add(
		asm.JEq.Imm(asm.R5, '(', "text-call"),
		asm.JEq.Imm(asm.R5, ';', "text-end"),
		asm.RSh.Imm(asm.R4, 16),
		asm.JEq.Imm(asm.R4, window("--"), "text-comment"),
		asm.JEq.Imm(asm.R4, window("/*"), "text-comment"),
		asm.JNE.Imm(asm.R4, window("*/"), "text-next"),
	)
	p.at("text-comment")
	p.add(asm.Mov.Imm(asm.R0, 1), asm.Ja.Label("text-next"))
	p.at("text-call")
	p.add(asm.JEq.Imm(asm.R0, 0, "text-next"), asm.Ja.Label("text-matters"))
}

// textRest looks for anything but space behind a semicolon.
func (p *assembly) textRest() {
	p.at("text-end")
	p.add(asm.Add.Imm(asm.R2, 1))
	p.textByte()
	p.add(asm.JEq.Imm(asm.R5, 0, "text-passes"))
	p.textIsSpace("text-end", "text-matters")
}

// textWords compares the window in R4 at R2 with words.
func (p *assembly) textWords(words []string) {
	for _, word := range words {
		if len(word) == 4 {
			p.add(asm.JEq.Imm(asm.R4, window(word), "text-matters"))
			continue
		}
		other := "text-not-" + word
		p.add(
			asm.JNE.Imm(asm.R4, window(word[:4]), other),
			asm.Mov.Reg(asm.R5, asm.R1),
			asm.Add.Reg(asm.R5, asm.R2),
			asm.LoadMem(asm.R5, asm.R5, 4, asm.Word),
			asm.HostTo(asm.BE, asm.R5, asm.Word),
			asm.Or.Imm(asm.R5, smallLetters),
			asm.JEq.Imm(asm.R5, window(word[4:]), "text-matters"),
		)
		p.at(other)
	}
}

// textByte loads the byte of the text at R2 to R5. Behind the request there is no text.
//
// Each turn of a loop begins here. The first instruction ends loops that do not end, which these do. It has the
// verifier look at a turn for any position at once, and not at a thousand turns, which takes a third of a second.
func (p *assembly) textByte() {
	p.add(
		asm.Instruction{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.JCOND), Src: asm.PseudoMayGoto, Offset: -1}.WithReference("text-matters"),
		asm.JGE.Imm(asm.R2, longestRequest, "text-matters"),
		asm.JGE.Reg(asm.R2, asm.R3, "text-matters"),
		asm.Mov.Reg(asm.R4, asm.R1),
		asm.Add.Reg(asm.R4, asm.R2),
		asm.LoadMem(asm.R5, asm.R4, 0, asm.Byte),
	)
}

// textWindow loads the window at R4 to R4.
func (p *assembly) textWindow() {
	p.add(
		asm.LoadMem(asm.R4, asm.R4, 0, asm.Word),
		asm.HostTo(asm.BE, asm.R4, asm.Word),
		asm.Or.Imm(asm.R4, smallLetters),
	)
}

// textIsSpace goes on at one of the labels, by whether the byte in R5 is what PostgreSQL takes for space.
func (p *assembly) textIsSpace(is, isNot string) {
	p.add(
		asm.JEq.Imm(asm.R5, ' ', is),
		asm.JLT.Imm(asm.R5, '\t', isNot),
		asm.JGT.Imm(asm.R5, '\r', isNot),
		asm.Ja.Label(is),
	)
}
