package httpapi_test

import (
	"os"
	"testing"

	"github.com/lokt-dev/lokt/internal/testkit/parallel"
)

func TestMain(m *testing.M) { os.Exit(parallel.Run(m, 6)) }
