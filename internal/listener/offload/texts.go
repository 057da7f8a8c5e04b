package offload

import "github.com/cilium/ebpf/asm"

// ofDatabases leaves statements to the loop that may need a database without other sessions
// (stmt.NeedsDatabaseAlone): the pool drops its backends for them. R1 has the first four letters in lower case.
func (p *assembly) ofDatabases() {
	p.add(
		asm.JEq.Imm32(asm.R1, 0x64726f70, p.back(whyText)), // drop
		asm.JEq.Imm32(asm.R1, 0x63726561, p.back(whyText)), // create
		asm.JEq.Imm32(asm.R1, 0x616c7465, p.back(whyText)), // alter
	)
}

// ofLetters leaves texts to the loop that begin with no letter, or with LOAD, SET or DO: they may change a state of the
// session that no view shows (package sessionstate). R1 has the first four letters in lower case, and is lost.
func (p *assembly) ofLetters() {
	p.add(
		asm.JEq.Imm32(asm.R1, 0x6c6f6164, p.back(whyText)), // load
		asm.LSh.Imm(asm.R1, 32),
		asm.RSh.Imm(asm.R1, 40),
		asm.JEq.Imm32(asm.R1, 0x736574, p.back(whyText)), // set
		asm.RSh.Imm(asm.R1, 8),
		asm.JEq.Imm32(asm.R1, 0x646f, p.back(whyText)), // do
		asm.RSh.Imm(asm.R1, 8),
		asm.JLT.Imm(asm.R1, 'a', p.back(whyText)),
		asm.JGT.Imm(asm.R1, 'z', p.back(whyText)),
	)
}

// ofState leaves texts to the loop that call what changes such a state, and texts of several statements. R1 has four
// bytes of the text as small letters, by which an underscore is 0x7f, and is lost. R5 is whether the request has a
// Parse.
func (p *assembly) ofState() {
	for _, part := range []int32{
		0x7f636f6e, // _con: set_config
		0x72727661, // rrva: currval
		0x61737476, // astv: lastval
		0x74736565, // tsee: setseed
		0x7f6f7269, // _ori: a replication origin
	} {
		p.add(asm.JEq.Imm32(asm.R1, part, p.back(whyText)))
	}
	p.add(
		asm.JNE.Imm(asm.R5, 0, "no-statement"), // a Parse has one statement
		asm.LSh.Imm(asm.R1, 32),
		asm.RSh.Imm(asm.R1, 56),
		asm.JNE.Imm(asm.R1, ';', "no-statement"),
		asm.Mov.Reg(asm.R2, asm.R0),
		asm.Add.Imm(asm.R2, 2),
		asm.JLT.Reg(asm.R2, rLen, p.back(whyText)), // more follows than the end
	)
	p.at("no-statement")
}
