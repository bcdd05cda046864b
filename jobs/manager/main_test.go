package manager_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/lokt-dev/lokt/internal/testkit/parallel"
)

func TestMain(m *testing.M) {
	_ = parallel.Default(8) // most wait
	goleak.VerifyTestMain(m)
}
