package main

import (
	"os"
	"testing"

	"github.com/lokt-dev/lokt/internal/testkit/parallel"
)

func TestMain(m *testing.M) { os.Exit(parallel.Run(m, 6)) } // a tool that waits takes 18 s
