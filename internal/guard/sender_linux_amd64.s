#include "textflag.h"

// A signal handler in C's convention: the signal is in DI, its siginfo at SI. si_code, at 8, is above 0 if the kernel itself
// sent the signal.
TEXT ·handler(SB), NOSPLIT|NOFRAME, $0-0
	CMPL 8(SI), $0
	JGT  on
	MOVL DI, AX
	LEAQ ·sent(SB), CX
	LOCK
	INCL (CX)(AX*4)

on:
	MOVQ ·next(SB), AX
	JMP  AX

TEXT ·handlerPC(SB), NOSPLIT, $0-8
	LEAQ ·handler(SB), AX
	MOVQ AX, ret+0(FP)
	RET
