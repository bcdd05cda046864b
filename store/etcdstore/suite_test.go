package etcdstore

import (
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/lokttest"
)

// longTimeout is for tests that are about something else than a machine that is too busy to answer.
const longTimeout = 30 * time.Second

func TestTheStoreKeepsWhatStoresPromise(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, false)
	lokttest.TestStore(t, func(t *testing.T) lokt.Store { return c.open(t, c.url(), Options{Timeout: longTimeout}) })
}

func TestTheStoreOutlivesItsProcess(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, false)
	lokttest.TestReopen(t, func(t *testing.T) func() lokt.Store {
		url := c.url()
		return func() lokt.Store { return c.open(t, url, Options{Timeout: longTimeout}) }
	})
}

func TestAnObserverSeesEveryChange(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, false)
	lokttest.TestObserver(t, func(t *testing.T, observe func([]lokt.Event)) lokt.Store {
		return c.open(t, c.url(), Options{Timeout: longTimeout, Observe: observe})
	})
}

func TestTheRulesHoldOverEtcd(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, false)
	lokttest.TestServiceInRealTime(t, func(t *testing.T) lokt.Service {
		return lokt.NewManager(c.open(t, c.url(), Options{Timeout: longTimeout}))
	})
}

func TestTheEventLogKeepsWhatEventLogsPromise(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, false)
	lokttest.TestEventLog(t, func(t *testing.T) lokt.Store { return c.open(t, c.url(), Options{Timeout: longTimeout}) })
}
