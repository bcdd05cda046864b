package etcdstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/joint"
	"github.com/lokt-dev/lokt/store/etcdstore/members"
	"github.com/lokt-dev/lokt/store/place"
)

// Options are what a store may be told besides its URL. The zero Options are good.
type Options struct {
	// Timeout is after how long without an answer etcd counts as unavailable; 0 means 5 s. Contexts may end earlier.
	Timeout time.Duration

	// KeepEvents is about how many changes' events etcd keeps for ReadEvents; 0 means 10,000.
	KeepEvents int

	// Observe, if set, is called with the events of each change of this store, after the change is stored: for each
	// lock in the order of the changes, one call at a time. It must not change locks by this store.
	Observe func([]lokt.Event)

	page int64 // how many locks a list reads at once; 0 means 256
}

// Store is a lokt.Store in etcd. Its methods may be called by any number of goroutines, and any number of stores, in
// different processes, may work on the same keys.
type Store struct {
	client  *clientv3.Client
	login   *clientv3.Client // shows no token: etcd 3.4 lets nobody log in whose token it does not know any more
	prefix  string
	timeout time.Duration
	observe func([]lokt.Event)
	keep    int

	ctx    context.Context // ends with Close, with the mutex
	cancel context.CancelCauseFunc
	work   sync.WaitGroup

	wall   func() time.Time // the wall clock
	anyway time.Duration    // how long a wait lasts at most: events may not come through
	page   int64            // how many locks List asks for at a time

	rev     atomic.Int64  // highest revision of etcd known
	cluster atomic.Uint64 // etcd's ID of the cluster
	floor   atomic.Uint64 // what tokens have to be above since etcd was restored
	renew   chan struct{} // asks for a new watch

	mu    sync.Mutex
	slots map[string]*slot
	looks joint.Reads[*state]

	observing sync.Mutex
	tail      tail
}

var (
	_ lokt.Store    = (*Store)(nil)
	_ lokt.EventLog = (*Store)(nil)
)

// errClosed is what every method answers after Close.
var errClosed = fmt.Errorf("%w: etcd store is closed", lokt.ErrUnavailable)

// Open connects to the etcd that the URL names: etcd://[user:password@]host[:port][,…][/prefix], or etcds:// for TLS,
// with the query parameters ca, cert and key for PEM files. It returns an error that wraps lokt.ErrUnavailable if etcd
// does not answer, and one that wraps lokt.ErrInvalid if the URL is none. Errors do not contain the password.
func Open(ctx context.Context, rawURL string, o Options) (*Store, error) {
	t, err := parse(rawURL)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", lokt.ErrInvalid, err)
	}
	o.Timeout, o.KeepEvents = cmp.Or(max(o.Timeout, 0), 5*time.Second), cmp.Or(max(o.KeepEvents, 0), 10_000)
	config := clientv3.Config{
		Endpoints: t.endpoints, Username: t.user, Password: t.password, Logger: zap.NewNop(), DialTimeout: o.Timeout,
		DialKeepAliveTime: 6 * time.Second, DialKeepAliveTimeout: 2 * time.Second, // etcd refuses pings every 5 s and less
		BackoffWaitBetween: 20 * time.Millisecond, BackoffJitterFraction: 0.5, MaxUnaryRetries: 3,
	}
	if t.tls != nil {
		config.TLS = t.tls.Config()
		config.DialOptions = []grpc.DialOption{grpc.WithTransportCredentials(handshake{credentials.NewTLS(config.TLS), t.tls})}
	}
	client, err := clientv3.New(config)
	if err != nil {
		return nil, t.silence(ctx, err, unavailable(ctx, err))
	}
	config.Username, config.Password = "", ""
	login, err := clientv3.New(config)
	if err != nil {
		return nil, errors.Join(unavailable(ctx, err), client.Close())
	}
	client.Auth = login.Auth
	s := &Store{
		client: client, login: login, prefix: t.prefix, timeout: o.Timeout, observe: o.Observe, keep: o.KeepEvents, slots: map[string]*slot{}, renew: make(chan struct{}, 1),
		wall: time.Now, anyway: 5 * time.Second, page: cmp.Or(o.page, 256),
	}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	bounded, cancel := s.bound(ctx)
	defer cancel()
	var first *clientv3.GetResponse
	if err := s.try(bounded, func(ctx context.Context) (err error) {
		first, err = client.Get(ctx, s.prefix+dirLock, clientv3.WithKeysOnly(), clientv3.WithLimit(1))
		return err
	}); err != nil {
		err = t.silence(ctx, err, s.explain(ctx, err))
		s.cancel(errClosed)
		_, _ = client.Close(), login.Close() // the connections are of no use
		return nil, err
	}
	s.note(first.Header, 0)
	s.work.Go(func() { s.watch(first.Header.Revision + 1) })
	s.work.Go(s.keepTime)
	return s, nil
}

// Conditions implements place.Teller.
func (s *Store) Conditions(ctx context.Context) []place.Condition {
	return members.Conditions(ctx, s.client)
}

// Ping reports why nothing can be stored: etcd refuses when it has no room what would put something, though it never does.
func (s *Store) Ping(ctx context.Context) error {
	bounded, cancel := s.bound(ctx)
	defer cancel()
	key := s.prefix + "/ping"
	if err := s.try(bounded, func(ctx context.Context) error {
		_, err := s.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "<", 0)).Then(clientv3.OpPut(key, "")).Commit()
		return err
	}); err != nil {
		return s.explain(ctx, err)
	}
	return nil
}

// now reads the wall clock.
func (s *Store) now() time.Time { return s.wall().Round(0).UTC() }

// bound returns a context for asking etcd: it ends with ctx, with the store, and when etcd counts as unavailable.
func (s *Store) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	bounded, cancel := context.WithTimeoutCause(ctx, s.timeout, errNoAnswer)
	stop := context.AfterFunc(s.ctx, cancel)
	return bounded, func() { stop(); cancel() }
}

var errNoAnswer = fmt.Errorf("%w: no answer from etcd", lokt.ErrUnavailable)

// usable reports why the store cannot be used.
func (s *Store) usable(ctx context.Context) error {
	if ctx.Err() == nil && s.ctx.Err() != nil {
		return errClosed
	}
	return ctx.Err()
}

// explain tells an error of etcd from the end of the caller's context, and of the store.
func (s *Store) explain(ctx context.Context, err error) error {
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return ctx.Err()
	case s.ctx.Err() != nil:
		return errClosed
	case ctx.Err() != nil:
		return fmt.Errorf("%w: etcd: %w", lokt.ErrUnavailable, ctx.Err())
	}
	return unavailable(context.WithoutCancel(ctx), err)
}

// View implements lokt.Store.
func (s *Store) View(ctx context.Context, name string) (lokt.Snapshot, error) {
	if err := s.usable(ctx); err != nil {
		return lokt.Snapshot{}, err
	}
	sl := s.pin(name)
	defer s.unpin(sl)
	st, err := s.look(ctx, sl)
	if err != nil {
		return lokt.Snapshot{}, s.explain(ctx, err)
	}
	return st.look(s.now()), nil
}

// List implements lokt.Store. The locks of each page are as they were at one moment.
func (s *Store) List(ctx context.Context, f lokt.Filter) iter.Seq2[lokt.Snapshot, error] {
	return func(yield func(lokt.Snapshot, error) bool) {
		for st, err := range s.list(ctx, f) {
			snap := st.look(s.now())
			if err == nil && (st.lock.Free() || f.Queued && len(st.lock.Queue) == 0) {
				continue
			}
			if !yield(snap, err) {
				return
			}
		}
	}
}

// list reads the locks that begin as the filter says. One that cannot be read has a name only.
func (s *Store) list(ctx context.Context, f lokt.Filter) iter.Seq2[*state, error] {
	return func(yield func(*state, error) bool) {
		from := s.lockKey(f.Prefix)
		end := clientv3.GetPrefixRangeEnd(from)
		for more := true; more; {
			page, err := s.readPage(ctx, from, end)
			if err != nil {
				yield(&state{}, s.explain(ctx, err))
				return
			}
			for _, kv := range page.Kvs {
				_, name := s.nameOf(kv.Key)
				st := &state{mod: kv.ModRevision, header: page.Header.Revision, known: time.Now()}
				r, err := decode(name, kv.Value)
				if st.take(r); err != nil {
					st.lock = lokt.Lock{Name: name}
				}
				sl := s.pin(name)
				st.known = sl.glance(st.mod, st.known)
				s.unpin(sl)
				if !yield(st, err) {
					return
				}
				from = string(kv.Key) + "\x00"
			}
			more = page.More
		}
	}
}

// readPage reads some locks.
func (s *Store) readPage(ctx context.Context, from, end string) (page *clientv3.GetResponse, err error) {
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	ctx, cancel := s.bound(ctx)
	defer cancel()
	asked := s.rev.Load()
	if err := s.try(ctx, func(ctx context.Context) (err error) {
		page, err = s.client.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(s.page))
		return err
	}); err != nil {
		return nil, unavailable(ctx, err)
	}
	s.note(page.Header, asked)
	return page, nil
}

// Close ends all that is under way, and makes every later call fail. Holds live on until their time is over.
func (s *Store) Close() error {
	s.mu.Lock()
	again := s.ctx.Err() != nil
	s.cancel(errClosed)
	s.mu.Unlock()
	if again {
		return nil
	}
	s.each(func(sl *slot) { sl.forget(false) })
	s.work.Wait()
	if err := errors.Join(s.client.Close(), s.login.Close()); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("close etcd client: %w", err)
	}
	return nil
}
