#include "textflag.h"

// A signal handler in C's convention: the signal is in R0, its siginfo at R1. si_code, at 8, is above 0 if the kernel itself
// sent the signal.
TEXT ·handler(SB), NOSPLIT|NOFRAME, $0-0
	MOVW 8(R1), R9
	CMPW $0, R9
	BGT  on
	MOVD $·sent(SB), R10
	ADD  R0<<2, R10

again:
	LDAXRW (R10), R11
	ADDW   $1, R11
	STLXRW R11, (R10), R12
	CBNZW  R12, again

on:
	MOVD ·next(SB), R9
	JMP  (R9)

TEXT ·handlerPC(SB), NOSPLIT, $0-8
	MOVD $·handler(SB), R9
	MOVD R9, ret+0(FP)
	RET
