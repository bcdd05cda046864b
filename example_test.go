package lokt_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/store/filestore"
	"github.com/lokt-dev/lokt/store/memstore"
)

// Locks between the processes of one host: files in a directory. A process that dies loses its locks at once.
func ExampleNewLocker() {
	dir, err := os.MkdirTemp("", "lokt")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	store, err := filestore.Open(dir, filestore.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	owner, err := store.Runner()
	if err != nil {
		log.Fatal(err)
	}
	locker, err := lokt.NewLocker(lokt.NewManager(store), owner, lokt.LockerOptions{
		Defaults: lokt.Options{Process: &owner.Process},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close(context.Background()) // before the store

	err = locker.Do(context.Background(), "deploy", lokt.Options{Wait: time.Minute}, func(ctx context.Context, token uint64) error {
		fmt.Println("nobody else deploys now")
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output: nobody else deploys now
}

// Locks between the parts of one program, and in tests: a store in memory.
func ExampleNewLocker_memory() {
	service := lokt.NewManager(memstore.New())
	locker, err := lokt.NewLocker(service, lokt.Owner{ID: "importer"}, lokt.LockerOptions{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(locker.Owner())
	// Output: importer
}

// Do is what most programs need: it acquires, renews, releases, and says if the lock was lost on the way.
func ExampleLocker_Do() {
	service := lokt.NewManager(memstore.New())
	locker, err := lokt.NewLocker(service, lokt.Owner{ID: "importer"}, lokt.LockerOptions{})
	if err != nil {
		log.Fatal(err)
	}

	files := []string{"a.csv", "b.csv"}
	err = locker.Do(context.Background(), "import", lokt.Options{}, func(ctx context.Context, token uint64) error {
		for _, file := range files {
			if err := ctx.Err(); err != nil { // the lock was lost, or the program is to end
				return err
			}
			fmt.Println("imported", file)
		}
		return nil
	})
	switch {
	case errors.Is(err, lokt.ErrHeld):
		fmt.Println("somebody else imports:", err)
	case errors.Is(err, lokt.ErrLost):
		fmt.Println("lost on the way:", err)
	case err != nil:
		log.Fatal(err)
	}
	// Output:
	// imported a.csv
	// imported b.csv
}

// Acquire returns a lease, for what does not fit into one function.
func ExampleLocker_Acquire() {
	ctx := context.Background()
	service := lokt.NewManager(memstore.New())
	locker, err := lokt.NewLocker(service, lokt.Owner{ID: "importer"}, lokt.LockerOptions{})
	if err != nil {
		log.Fatal(err)
	}
	other, err := lokt.NewLocker(service, lokt.Owner{ID: "exporter"}, lokt.LockerOptions{})
	if err != nil {
		log.Fatal(err)
	}

	lease, err := locker.Acquire(ctx, "database", lokt.Options{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("held:", lease.State())

	_, err = other.Acquire(ctx, "database", lokt.Options{})
	if blocked, ok := errors.AsType[*lokt.BlockedError](err); ok {
		fmt.Println("in the way:", blocked.Holders[0].Owner)
	}

	if err := lease.Release(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println("now:", lease.State())
	// Output:
	// held: held
	// in the way: importer
	// now: released
}

// Processing a queue that only one instance may process at a time. Those that come second go away: whoever is at it
// does their work too.
func ExampleLocker_TryAcquire() {
	ctx := context.Background()
	service := lokt.NewManager(memstore.New())
	instance := func(id string) *lokt.Locker {
		k, err := lokt.NewLocker(service, lokt.Owner{ID: id}, lokt.LockerOptions{})
		if err != nil {
			log.Fatal(err)
		}
		return k
	}
	one, two := instance("one"), instance("two")

	var process func(k *lokt.Locker, pending []string) error
	process = func(k *lokt.Locker, pending []string) error {
		lease, ok, err := k.TryAcquire(ctx, "sync-queue", lokt.Options{Metadata: map[string]string{"operation": "sync"}})
		if err != nil {
			return err
		}
		if !ok {
			fmt.Println(k.Owner(), "leaves it to another instance")
			return nil
		}
		defer lease.Release(context.WithoutCancel(ctx))
		for _, op := range pending {
			if err := lease.Err(); err != nil {
				return err // what is left is for whoever has the lock now
			}
			fmt.Println(k.Owner(), "does", op)
			if op == "upload" { // in the meantime, elsewhere
				if err := process(two, pending); err != nil {
					return err
				}
			}
		}
		return nil
	}
	if err := process(one, []string{"upload", "download"}); err != nil {
		log.Fatal(err)
	}
	// Output:
	// one does upload
	// two leaves it to another instance
	// one does download
}

// A program that wants to decide itself when to renew: not at all while it sets up, and between batches later. The lease
// is lost, and its context ends, unless it is renewed more often than the TTL says.
func ExampleLease_Renew() {
	ctx := context.Background()
	service := lokt.NewManager(memstore.New())
	locker, err := lokt.NewLocker(service, lokt.Owner{ID: "migrator"}, lokt.LockerOptions{})
	if err != nil {
		log.Fatal(err)
	}

	lease, err := locker.Acquire(ctx, "migration", lokt.Options{TTL: time.Minute, ManualHeartbeat: true})
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Release(ctx)

	// Phase 1: set up, which takes much less than a minute.

	// Phase 2: many items, with a renewal for every ten.
	for i := range 100 {
		if i%10 == 0 {
			if err := lease.Renew(ctx); err != nil {
				log.Fatal(err)
			}
		}
	}
	fmt.Println("renewals by hand:", lease.Holder().Renewals)

	// Phase 3: one long call, during which heartbeats are sent by themselves.
	lease.StartHeartbeat()
	fmt.Println("heartbeats:", lease.Beating())
	lease.StopHeartbeat()
	fmt.Println("heartbeats:", lease.Beating())
	// Output:
	// renewals by hand: 10
	// heartbeats: true
	// heartbeats: false
}

// Several resources at once: all or none, and without any order in which callers would have to name them.
func ExampleLocker_AcquireAll() {
	ctx := context.Background()
	service := lokt.NewManager(memstore.New())
	locker, err := lokt.NewLocker(service, lokt.Owner{ID: "transfer-7"}, lokt.LockerOptions{})
	if err != nil {
		log.Fatal(err)
	}
	other, err := lokt.NewLocker(service, lokt.Owner{ID: "transfer-8"}, lokt.LockerOptions{})
	if err != nil {
		log.Fatal(err)
	}

	both, err := locker.AcquireAll(ctx, []string{"account-b", "account-a"}, lokt.Options{Wait: time.Second})
	if err != nil {
		log.Fatal(err)
	}
	_, err = other.AcquireAll(ctx, []string{"account-c", "account-a"}, lokt.Options{})
	fmt.Println("the other:", err)
	held, err := other.Held(ctx, "account-c")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("the other holds half of it:", held)

	work, cancel := both.Context(ctx) // ends as soon as one of them is lost
	defer cancel()
	fmt.Println("transfer:", work.Err() == nil)
	if err := both.Release(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// the other: lock "account-a" is held by transfer-7
	// the other holds half of it: false
	// transfer: true
}

// What is on record, for people and for dashboards.
func ExampleLocker_Stats() {
	ctx := context.Background()
	service := lokt.NewManager(memstore.New())
	locker, err := lokt.NewLocker(service, lokt.Owner{ID: "importer"}, lokt.LockerOptions{})
	if err != nil {
		log.Fatal(err)
	}
	for _, name := range []string{"orders", "customers"} {
		if _, err := locker.Acquire(ctx, name, lokt.Options{}); err != nil {
			log.Fatal(err)
		}
	}
	stats, err := locker.Stats(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("total %d, mine %d, active %d, stale %d, heartbeats %d\n",
		stats.Total, stats.Mine, stats.Active, stats.Stale, stats.ActiveHeartbeats)
	for _, l := range stats.Locks {
		fmt.Println(l.Name, "is held by", l.Owner)
	}
	n, err := locker.ReleaseAll(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("released", n)
	// Output:
	// total 2, mine 2, active 2, stale 0, heartbeats 2
	// customers is held by importer
	// orders is held by importer
	// released 2
}
