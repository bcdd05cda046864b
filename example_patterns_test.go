package lokt_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/store/memstore"
)

// Trying again and again, with growing pauses, is what programs do whose locks cannot queue. It is slow to notice that the
// lock is free, and whoever happens to try at the right moment gets it, however long others have been trying. Waiting is
// one option instead of a loop: the lock is handed over the moment it is released, to whoever has waited longest.
func Example_waitInsteadOfRetrying() {
	ctx := context.Background()
	service := lokt.NewManager(memstore.New())
	locker := func(id string) *lokt.Locker {
		k, err := lokt.NewLocker(service, lokt.Owner{ID: id}, lokt.LockerOptions{})
		if err != nil {
			log.Fatal(err)
		}
		return k
	}

	// With a loop.
	retry := func(k *lokt.Locker, name string, attempts int) (*lokt.Lease, error) {
		for i := range attempts {
			lease, ok, err := k.TryAcquire(ctx, name, lokt.Options{})
			if ok || err != nil {
				return lease, err
			}
			time.Sleep(time.Millisecond << i)
		}
		return nil, fmt.Errorf("%s: still held after %d attempts", name, attempts)
	}
	holder, err := locker("holder").Acquire(ctx, "printer", lokt.Options{})
	if err != nil {
		log.Fatal(err)
	}
	_, err = retry(locker("polling"), "printer", 3)
	fmt.Println(err)

	// Without one.
	granted := make(chan *lokt.Lease)
	go func() {
		lease, err := locker("waiting").Acquire(ctx, "printer", lokt.Options{Wait: time.Minute})
		if err != nil {
			log.Fatal(err)
		}
		granted <- lease
	}()
	awaitQueue(ctx, service, "printer")
	if err := holder.Release(ctx); err != nil {
		log.Fatal(err)
	}
	lease := <-granted
	fmt.Println("now held by", lease.Holder().Owner)
	if err := lease.Release(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// printer: still held after 3 attempts
	// now held by waiting
}

// awaitQueue returns when somebody waits for the lock.
func awaitQueue(ctx context.Context, service lokt.Service, name string) {
	for {
		s, err := service.Get(ctx, name)
		if err == nil && len(s.Lock.Queue) > 0 {
			return
		}
		if err == nil {
			err = service.Wait(ctx, lokt.Watch{Name: name, Seen: s.Lock.Revision})
		}
		if err != nil {
			log.Fatal(err)
		}
	}
}

// One of several instances leads. When it is cut off, another takes over; it comes back as a candidate.
func ExampleLocker_Lead() {
	ctx, stop := context.WithCancel(context.Background())
	service := lokt.NewManager(memstore.New())
	var running sync.WaitGroup
	leads := make(chan string)
	for _, id := range []string{"alpha", "beta"} {
		k, err := lokt.NewLocker(service, lokt.Owner{ID: id}, lokt.LockerOptions{Defaults: lokt.Options{Interval: 10 * time.Millisecond}})
		if err != nil {
			log.Fatal(err)
		}
		running.Go(func() {
			err := k.Lead(ctx, "scheduler", lokt.Options{}, func(ctx context.Context, token uint64) error {
				select {
				case leads <- id:
				case <-ctx.Done():
				}
				<-ctx.Done() // lead until the lead is lost
				return ctx.Err()
			})
			if !errors.Is(err, context.Canceled) {
				log.Fatal(err)
			}
		})
		if id == "alpha" {
			fmt.Println(<-leads, "leads")
		}
	}
	awaitQueue(ctx, service, "scheduler") // beta is a candidate
	// An operator ends alpha's term.
	if _, err := service.Release(ctx, lokt.Target{Name: "scheduler", Force: true, Owner: lokt.Owner{ID: "operator"}}); err != nil {
		log.Fatal(err)
	}
	fmt.Println(<-leads, "leads")
	stop()
	running.Wait()
	// Output:
	// alpha leads
	// beta leads
}

// A pool of two GPUs for any number of tasks: no more than two hold the lock at a time. Tasks of one program are one owner,
// whose holds do not exclude each other unless they are strict.
func Example_semaphore() {
	ctx := context.Background()
	locker, err := lokt.NewLocker(lokt.NewManager(memstore.New()), lokt.Owner{ID: "trainer"}, lokt.LockerOptions{})
	if err != nil {
		log.Fatal(err)
	}
	gpu := lokt.Options{Limit: 2, Strict: true, Wait: -1}

	var busy, most, done atomic.Int64
	var tasks sync.WaitGroup
	for range 6 {
		tasks.Go(func() {
			err := locker.Do(ctx, "gpu", gpu, func(context.Context, uint64) error {
				now := busy.Add(1)
				for m := most.Load(); now > m && !most.CompareAndSwap(m, now); m = most.Load() {
				}
				time.Sleep(time.Millisecond)
				busy.Add(-1)
				done.Add(1)
				return nil
			})
			if err != nil {
				log.Fatal(err)
			}
		})
	}
	tasks.Wait()
	fmt.Println("tasks done:", done.Load())
	fmt.Println("more than two at a time:", most.Load() > 2)
	// Output:
	// tasks done: 6
	// more than two at a time: false
}

// A cache that many read and one rebuilds. Readers share the lock with each other, the one who writes with nobody; readers
// that come while a writer waits queue behind it, so it is not starved.
func Example_readersAndWriters() {
	ctx := context.Background()
	service := lokt.NewManager(memstore.New())
	locker := func(id string) *lokt.Locker {
		k, err := lokt.NewLocker(service, lokt.Owner{ID: id}, lokt.LockerOptions{})
		if err != nil {
			log.Fatal(err)
		}
		return k
	}
	read, write := lokt.Options{Limit: lokt.Shared}, lokt.Options{}

	var readers lokt.Leases
	for _, id := range []string{"web-1", "web-2"} {
		lease, err := locker(id).Acquire(ctx, "cache", read)
		if err != nil {
			log.Fatal(err)
		}
		readers = append(readers, lease)
	}
	fmt.Println("readers:", len(readers))
	_, err := locker("builder").Acquire(ctx, "cache", write)
	fmt.Println("writer:", err)

	if err := readers.Release(ctx); err != nil {
		log.Fatal(err)
	}
	lease, err := locker("builder").Acquire(ctx, "cache", write)
	if err != nil {
		log.Fatal(err)
	}
	_, err = locker("web-1").Acquire(ctx, "cache", read)
	fmt.Println("reader:", err)
	if err := lease.Release(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// readers: 2
	// writer: lock "cache" is held by web-1 and 1 more
	// reader: lock "cache" is held by builder
}

// account is a resource that checks fencing tokens: it remembers the highest it has seen and refuses lower ones. A database
// does the same with a column and a condition: UPDATE … SET token = $1 WHERE token <= $1.
type account struct {
	mu      sync.Mutex
	token   uint64
	balance int
}

var errStaleToken = errors.New("a newer holder has been here")

func (a *account) set(token uint64, balance int) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if token < a.token {
		return errStaleToken
	}
	a.token, a.balance = token, balance
	return nil
}

// A holder that is stopped between looking at its lease and writing writes too late, and no lock can prevent that. The
// resource can, if it checks the tokens.
func ExampleLease_Token() {
	ctx := context.Background()
	service := lokt.NewManager(memstore.New())
	locker := func(id string) *lokt.Locker {
		k, err := lokt.NewLocker(service, lokt.Owner{ID: id}, lokt.LockerOptions{})
		if err != nil {
			log.Fatal(err)
		}
		return k
	}
	var savings account

	// The first holder is about to write, and is stopped: by a garbage collector, a debugger, a hypervisor.
	first, err := locker("first").Acquire(ctx, "savings", lokt.Options{TTL: 200 * time.Millisecond, ManualHeartbeat: true})
	if err != nil {
		log.Fatal(err)
	}

	// Its time runs out, and the next one writes.
	second, err := locker("second").Acquire(ctx, "savings", lokt.Options{Wait: -1})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("second writes:", savings.set(second.Token(), 100))

	// The first one goes on with what it was about to do.
	fmt.Println("first writes:", savings.set(first.Token(), 0))
	fmt.Println("balance:", savings.balance)
	fmt.Println("first lease:", first.State())
	if err := second.Release(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// second writes: <nil>
	// first writes: a newer holder has been here
	// balance: 100
	// first lease: lost
}

// A job of low priority makes room for an urgent one: it is asked to leave, saves its work and goes. If it stayed, its lease
// would end after the grace that the urgent one gives.
func ExampleLease_Yield() {
	ctx := context.Background()
	service := lokt.NewManager(memstore.New())
	locker := func(id string) *lokt.Locker {
		k, err := lokt.NewLocker(service, lokt.Owner{ID: id}, lokt.LockerOptions{Defaults: lokt.Options{Interval: 10 * time.Millisecond}})
		if err != nil {
			log.Fatal(err)
		}
		return k
	}
	training, err := locker("training").Acquire(ctx, "gpu", lokt.Options{})
	if err != nil {
		log.Fatal(err)
	}
	granted := make(chan *lokt.Lease)
	go func() {
		lease, err := locker("inference").Acquire(ctx, "gpu", lokt.Options{Priority: 10, Preempt: time.Minute, Wait: -1})
		if err != nil {
			log.Fatal(err)
		}
		granted <- lease
	}()

	<-training.Yield()
	fmt.Println("saving the model; wanted by", training.Holder().Yield.To)
	if err := training.Release(ctx); err != nil {
		log.Fatal(err)
	}

	lease := <-granted
	fmt.Println("held by", lease.Holder().Owner)
	if err := lease.Release(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// saving the model; wanted by inference
	// held by inference
}

// A program that was cut off for too long finds out, and takes the lock again if nobody else has it. The new token tells
// resources that this is a new grant.
func ExampleLocker_Reclaim() {
	ctx := context.Background()
	locker, err := lokt.NewLocker(lokt.NewManager(memstore.New()), lokt.Owner{ID: "importer"}, lokt.LockerOptions{})
	if err != nil {
		log.Fatal(err)
	}
	lease, err := locker.Acquire(ctx, "import", lokt.Options{TTL: 200 * time.Millisecond, ManualHeartbeat: true})
	if err != nil {
		log.Fatal(err)
	}
	<-lease.Context().Done()
	fmt.Println("lost:", errors.Is(context.Cause(lease.Context()), lokt.ErrLost))
	time.Sleep(time.Until(lease.Holder().ExpiresAt) + time.Millisecond) // the service, too, regards it as over

	again, err := locker.Reclaim(ctx, lease)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("same lease:", again.ID() == lease.ID())
	fmt.Println("new token:", again.Token() > lease.Token())
	if err := again.Release(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// lost: true
	// same lease: true
	// new token: true
}
