package lokttest_test

import (
	"testing"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/lokttest"
	"github.com/lokt-dev/lokt/store/memstore"
)

func open(*testing.T) lokt.Service { return lokt.NewManager(memstore.New()) }

func TestManagerOverMemoryKeepsEveryPromise(t *testing.T) { lokttest.TestService(t, open) }

func TestManagerOverMemoryKeepsItsPromisesInRealTime(t *testing.T) {
	t.Parallel()
	lokttest.TestServiceInRealTime(t, open)
}
