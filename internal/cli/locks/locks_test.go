package locks

import (
	"testing"

	"github.com/lokt-dev/lokt/internal/testkit/clitest"
)

func newDesk(t testing.TB, owner string) clitest.Desk { return clitest.New(t, owner, Commands()) }
