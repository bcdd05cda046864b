package sim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing/synctest"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/store/filestore"
)

// What a client does on lock files, beside holding leases that it renews.
const (
	asGuard   = 1 + iota // a command runs while the process holds the lock
	asLease              // nobody stands behind it, as with lokt lock
	asFreeze             // which keeps everybody out
	asLeader             // it leads while it holds the lock; not on lock files
	asVisitor            // it looks, waits for a change, and removes what is stale; not on lock files
)

// furnish makes the host and its processes.
func (w *world) furnish(r *rand.Rand) {
	w.host, w.rough, w.harm = newHost(w, r), w.rough*8, w.harm/8 // steps are smaller
	for _, what := range mayMeetFiles() {
		w.allowed[what] = r.Float64() < 0.6
	}
	ttl, mixing := []time.Duration{time.Second, 2 * time.Second, 5 * time.Second}[r.IntN(3)], rand.New(rand.NewPCG(w.o.Seed, 1<<47))
	for i := range 2 + r.IntN(4) {
		c := &client{actor: w.newActor(people[i], r)}
		for k := range 1 + r.IntN(4) {
			a := newAction(r, i*100+k, ttl, false, false)
			a.o.Wait = min(a.o.Wait, 10*time.Second)
			if a.how = max(0, r.IntN(6)-2); a.how > 0 {
				a.names, a.nested = a.names[:1], false
			}
			if a.how == asGuard && r.IntN(2) == 0 {
				a.o.TTL = lokt.NoTTL
			}
			if a.again = mixing.IntN(2) == 0; mixing.IntN(8) == 0 {
				a.how = asVisitor
			}
			c.todo = append(c.todo, a)
		}
		w.scripts = append(w.scripts, c)
		w.begin(c, 1)
	}
}

// enter makes the client a process of the host.
func (c *client) enter(store *filestore.Store, life int) error {
	owner, err := store.Runner()
	for ; err != nil && c.ctx.Err() == nil; owner, err = store.Runner() {
		time.Sleep(time.Second)
	}
	owner.ID, owner.Session = c.name, fmt.Sprint(life)
	c.store, c.service = store, lokt.NewManager(store)
	c.locker, err = lokt.NewLocker(hasty{lokt.NewManager(store), c.w}, owner, lokt.LockerOptions{Keeper: &lokt.Keeper{Elapsed: c.elapsed}, Observe: c.w.countEvent})
	return err
}

// openStore opens the lock files as the process sees them.
func (c *client) openStore() *filestore.Store {
	store, err := filestore.OpenOn(c.w.host.system(c.actor), "/", filestore.Options{
		LockTimeout: []time.Duration{100 * time.Millisecond, time.Second, 10 * time.Second}[c.index%3],
		Observe: func(e lokt.Event) {
			c.w.countEvent(e)
			c.w.say(c.actor, "%s", tell(e))
		},
	})
	if err != nil {
		panic(err)
	}
	return store
}

// exit ends a process that has done what it was to do, with all that it does besides.
func (a *actor) exit() {
	if a.bury == nil && a.w.board == nil {
		return
	}
	if a.died = true; a.bury != nil {
		a.bury()
	}
	a.cancel()
	for _, s := range a.w.gate.take(func(s *step) bool { return s.actor == a }) {
		s.leave <- dead
	}
}

// hasty is a manager whose renewals and looks end with their context, though no file operation does: who waits for their
// end waits for a mutex, which no bubble sees.
type hasty struct {
	*lokt.Manager
	w *world
}

// Renew implements lokt.Service.
func (m hasty) Renew(ctx context.Context, r lokt.Renewal) (h lokt.Holder, err error) {
	return hurry(ctx, m.w, func() (lokt.Holder, error) { return m.Manager.Renew(ctx, r) })
}

// Get implements lokt.Service.
func (m hasty) Get(ctx context.Context, name string) (lokt.Snapshot, error) {
	return hurry(ctx, m.w, func() (lokt.Snapshot, error) { return m.Manager.Get(ctx, name) })
}

func hurry[T any](ctx context.Context, w *world, do func() (T, error)) (got T, err error) {
	done := make(chan func() (T, error), 1)
	w.running.Go(func() {
		is, failed := do()
		done <- func() (T, error) { return is, failed }
	})
	select {
	case answer := <-done:
		return answer()
	case <-ctx.Done():
		return got, context.Cause(ctx)
	}
}

// command is what a guard runs.
type command struct {
	*actor
	l     *lokt.Lease
	known bool // if the guard dies, the command's life counts for it
}

// command runs what the guard is for, until it ends or the guard dies.
func (c *client) command(a action) {
	w, h, l, ended := c.w, c.w.host, c.held[0], make(chan struct{})
	run := &command{actor: w.newActor(c.name+"'s command", w.late), l: l}
	pid := h.start(run.actor)
	start := h.running[pid]
	for f := range h.open {
		if !a.keeps && slices.Contains(f.owners, c.actor) && len(f.bytes) > 0 { // of whom it is that keeps it open
			f.owners, run.known = append(f.owners, run.actor), true
		}
	}
	c.runs = append(c.runs, run)
	w.script(func() {
		defer close(ended)
		defer run.exit()
		for range a.touches {
			if w.sleep(a.gap); run.pass(run.ctx, pointWork, "works") != fine {
				break
			}
		}
	})
	w.running.Go(func() {
		select {
		case <-ended:
		case <-time.After(20 * time.Millisecond):
			run.known = c.store.SetChild(c.ctx, map[string]string{l.Name(): l.ID()}, pid, start) == nil || run.known
		}
	})
	select {
	case <-ended:
	case <-c.ctx.Done():
		w.count("a guard dies before its command")
	}
}

// gone reports whether the client, and the command that it guards with the lease, have ended, or others have touched its record.
func (c *client) gone(l *lokt.Lease) bool {
	return c.w.host != nil && c.w.host.lost[l.ID()] || c.died && !slices.ContainsFunc(c.runs, func(r *command) bool { return r.l == l && r.known && !r.died })
}

// vow is what is on the disk before who asked for it is told: a lease that no program stands behind, or a freeze.
type vow struct {
	by               *actor
	who, name, lease string // without a lease it is a freeze
	token            uint64
	limit, boot      int
	until            time.Duration // by the clock of who asked
	asked, over      bool          // its end was asked for, and acknowledged
}

// holds reports whether who asked may rely on it still.
func (v *vow) holds() bool {
	h := v.by.w.host
	return !v.asked && !v.by.w.forcedOut[grant{v.lease, v.token}] && v.by.elapsed() < v.until && (h == nil || v.boot == h.w.boot || !h.stepped)
}

// vows has the client take something for good, and give it back.
func (c *client) vows(a action) {
	w, m, owner := c.w, c.service, c.locker.Owner()
	owner.ID += fmt.Sprint("'s ", a.id)
	v := &vow{by: c.actor, who: c.name, name: a.names[0], limit: max(a.o.Limit, 1), boot: w.boot}
	what := "freeze"
	take := func() (err error) {
		v.until = c.elapsed() + a.o.TTL - a.o.TTL/50
		_, err = m.Freeze(c.ctx, v.name, lokt.Freeze{Owner: owner, TTL: a.o.TTL})
		return err
	}
	end := func() (err error) { _, err = m.Unfreeze(c.ctx, lokt.Target{Name: v.name, Owner: owner}); return err }
	if a.how == asLease {
		what = "lease"
		take = func() error {
			begun, o := c.elapsed(), a.o
			c.asks, c.asked = a.names, time.Now().Add(-w.db.behind)
			got, err := m.Acquire(c.ctx, lokt.Claim{Name: v.name, LeaseID: lokt.NewLeaseID(), Owner: owner, Limit: o.Limit, TTL: o.TTL, MaxHold: o.MaxHold, Wait: o.Wait, Refresh: a.again, Newest: o.Newest, Paths: a.paths})
			if c.asks = nil; err == nil {
				life := got.ExpiresAt.Sub(got.AcquiredAt)
				v.lease, v.token, v.until = got.LeaseID, got.Token, begun+life-life/50
			}
			if strings.HasPrefix(v.lease, "L-") { // of a claim whose answer was lost, which the client has forgotten
				v.lease = ""
			}
			return err
		}
		end = func() (err error) {
			_, err = m.Release(c.ctx, lokt.Target{Name: v.name, LeaseID: v.lease, Owner: owner})
			return err
		}
	}
	if err := take(); err != nil || v.boot != w.boot {
		w.say(c.actor, "has no %s of %s", what, v.name)
		return
	}
	w.vows = append(w.vows, v)
	w.say(c.actor, "has a %s of %s with token %d", what, v.name, v.token)
	for range a.touches {
		if w.sleep(a.gap); c.pass(c.ctx, pointWork, "works") != fine {
			return
		}
		if a.again && a.how == asLease { // its owner asks again, as with lokt lock
			was := v.token
			err := take()
			if v.asked = v.asked || errors.Is(err, lokt.ErrHeld); err == nil && v.token == was {
				w.count("a lease is refreshed")
			}
		}
	}
	if a.keeps {
		return
	}
	v.asked = true
	err, gone := end(), (*lokt.GoneError)(nil)
	v.over = (err == nil || errors.As(err, &gone)) && v.boot == w.boot && !c.died
	w.say(c.actor, "gives back its %s of %s: %t", what, v.name, v.over)
}

// crashes ends all processes of the host, and leaves on the disk what may be left.
func (h *host) crashes(r *rand.Rand) {
	w := h.w
	for i := 0; i < len(w.actors); i++ { // one that dies may have just started another
		if a := w.actors[i]; a != w.db.a && !a.died {
			a.kill()
		}
	}
	h.mu.Lock() // what the dead have yet to close comes after it
	h.crash(r)
	h.lines = h.lines[:len(h.lines)-r.IntN(len(h.lines)/2+1)]
	clear(h.running)
	h.w.boot, h.booted, h.oracle = h.w.boot+1, w.now(), nil
	h.mu.Unlock()
	clear(h.seen)
	for _, v := range w.vows {
		lock := w.look(v.name).Lock
		_, there := lock.Holder(v.lease)
		if there = there || v.lease == "" && lock.Freeze != nil; v.over && there && v.lease != "" || v.holds() && !there {
			w.broke("durability", "lock %s: after a crash what %s has with token %d is there %t, and was given back %t", v.name, v.who, v.token, there, v.over)
		}
	}
	time.Sleep(randomly(r, time.Second, time.Minute))
	synctest.Wait() // scripts have ended
	for _, c := range slices.Clone(w.scripts) {
		if again := c.again; again != nil {
			c.again = nil
			again()
		}
	}
}

// What may happen to a host.
const (
	crashHost   = "the host crashes"
	sleepHost   = "the host sleeps"
	stepClock   = "the host's clock is set"
	deleteFiles = "the lock directory is deleted"
	garble      = "a record is overwritten"
	blind       = "a process cannot watch files"
)

func mayMeetFiles() []string {
	all := []string{crashHost, sleepHost, stepClock, deleteFiles, garble, blind}
	for _, h := range fileHarms {
		all = append(all, h.name)
	}
	return all
}

// mustReachFiles is mustReach for lock files.
func mustReachFiles() []string {
	if !hasFiles {
		return nil
	}
	return append(mayMeetFiles(), "a process ID is used again", "a guard dies before its command", "event takeover, dead", "event corrupt-break", "event freeze", "event unfreeze")
}

var fileHarms = []harm{
	{pointOpen, refused, "a file cannot be read"},
	{pointWrite, refused, "the disk is full"},
	{pointWrite, cut, "the disk is full in the middle of a write"},
	{pointWrite, split, "half of a write is seen"},
	{pointName, refused, "a name cannot be made or changed"},
	{pointSync, refused, "an fsync fails"},
	{pointLock, refused, "the kernel gives no lock"},
	{pointLog, refused, "the audit log cannot be written"},
	{pointLog, cut, "the audit log takes some of the lines"},
}

// disturb does something to the host, and reports whether it did.
func (h *host) disturb(r *rand.Rand) bool {
	what, name := mayMeetFiles()[r.IntN(5)], []string{"a", "b", "s"}[r.IntN(3)]
	by, record := randomly(r, time.Millisecond, time.Hour), "/locks/"+name+".json"
	changing := func(n *node) bool { return n.locker != nil } // it has been read, and is published all the same
	touch := what == deleteFiles || what == garble
	switch {
	case !h.w.allowed[what], touch && slices.ContainsFunc(slices.Collect(maps.Values(h.names)), changing), what == deleteFiles && h.back, what == garble && h.names[record] == nil:
		return false
	case what == stepClock && !h.deleted && r.IntN(2) == 0:
		by, h.back = -by, true
	}
	h.w.say(h.w.db.a, "%s", what)
	h.w.count(what)
	switch what {
	case crashHost:
		h.crashes(r)
	case sleepHost, stepClock:
		h.wall, h.stepped = h.wall+by, true
		h.most = max(h.most, h.wall)
	case deleteFiles:
		h.deleted = true
		h.lose("a", "b", "s")
		h.mu.Lock()
		for path := range h.names {
			h.name(path, nil)
		}
		clear(h.past)
		h.mu.Unlock()
	case garble:
		h.lose(name)
		h.mu.Lock()
		n := h.newNode(false)
		n.data = []byte(`{"name": "`)
		h.name(record, n)
		h.mu.Unlock()
	}
	return true
}

// lose notes that nobody holds the locks for sure any more: others have touched their files.
func (h *host) lose(names ...string) {
	for _, name := range names {
		for _, held := range h.w.look(name).Lock.Holders {
			h.lost[held.LeaseID] = true
		}
	}
	for _, c := range h.w.scripts {
		for _, l := range c.held {
			h.lost[l.ID()] = h.lost[l.ID()] || slices.Contains(names, l.Name())
		}
	}
	h.w.vows = slices.DeleteFunc(h.w.vows, func(v *vow) bool { return slices.Contains(names, v.name) })
}

// inside adds those who have a lease of the lock that nobody stands behind, and returns how many may be inside.
func (w *world) inside(name string, who map[grant]string, limit int) int {
	for _, v := range w.vows {
		if v.name == name && v.lease != "" && v.holds() {
			limit = min(limit, v.limit)
			who[grant{v.lease, v.token}] = fmt.Sprintf("%s has a lease with token %d", v.who, v.token)
		}
	}
	return limit
}
