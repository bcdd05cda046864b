package care

import (
	"slices"
	"testing"

	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/cli/locks"
	"github.com/lokt-dev/lokt/internal/testkit/clitest"
)

func all() []app.Command { return slices.Concat(Commands(), locks.Commands()) }

func newDesk(t testing.TB, owner string) clitest.Desk { return clitest.New(t, owner, all()) }
