package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/lokt-dev/lokt"
)

// Names of keys below the prefix.
const (
	dirLock  = "/lock/"
	dirFree  = "/free/"
	dirEvent = "/event/"
)

func (s *Store) lockKey(name string) string { return s.prefix + dirLock + name }
func (s *Store) freeKey(name string) string { return s.prefix + dirFree + name }

// pause waits before the n-th retry, unless ctx ends: longer and longer up to a tenth of the time-out, and never as long
// for two that failed together.
func (s *Store) pause(ctx context.Context, n int) {
	most := min(5*time.Millisecond<<min(n, 10), s.timeout/10)
	select {
	case <-time.After(time.Duration(rand.Int64N(int64(most))) + time.Millisecond):
	case <-ctx.Done():
	}
}

// try asks etcd, which does no harm if asked twice, again and again until it answers or ctx ends. Errors are etcd's own
// answers, or wrap lokt.ErrUnavailable.
func (s *Store) try(ctx context.Context, ask func(ctx context.Context) error) error {
	for n := 0; ; n++ {
		attempt, cancel := s.attempt(ctx, n)
		err := ask(attempt)
		cancel()
		if err == nil || !transient(err) {
			return err
		}
		if s.pause(ctx, n); ctx.Err() != nil {
			return unavailable(ctx, err)
		}
	}
}

// attempt returns a context for the n-th try of a request. A member that does not answer is soon replaced by another,
// but if all are slow they get more time.
func (s *Store) attempt(ctx context.Context, n int) (context.Context, context.CancelFunc) {
	return context.WithTimeout(clientv3.WithRequireLeader(ctx), min(s.timeout/5, time.Second)<<min(max(n-1, 0), 5))
}

// transient reports whether another attempt, perhaps at another member, may end otherwise.
func transient(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return true
	}
	switch code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Aborted, codes.Internal, codes.Unknown:
		return true
	case codes.ResourceExhausted:
		return errors.Is(err, rpctypes.ErrTooManyRequests)
	case codes.FailedPrecondition: // of a member that has just been added, and follows the others
		return errors.Is(err, rpctypes.Error(rpctypes.ErrGRPCNotSupportedForLearner))
	}
	return false
}

// code is the gRPC status code of a client's error; OK if it is none of etcd or gRPC.
func code(err error) codes.Code {
	if e, ok := errors.AsType[rpctypes.EtcdError](err); ok {
		return e.Code()
	}
	if st, ok := status.FromError(err); ok {
		return st.Code()
	}
	return codes.OK
}

// refused reports whether etcd has answered that it did not do what it was asked to. Everything else that is no success
// leaves it open.
func refused(err error) bool {
	for _, known := range []error{
		rpctypes.ErrNoLeader, rpctypes.ErrTooManyRequests, rpctypes.ErrNoSpace, rpctypes.ErrTooManyOps, rpctypes.ErrRequestTooLarge,
		rpctypes.ErrPermissionDenied, rpctypes.ErrUserEmpty, rpctypes.ErrInvalidAuthToken, rpctypes.ErrAuthOldRevision,
		rpctypes.ErrAuthFailed, rpctypes.ErrCorrupt, clientv3.ErrNoAvailableEndpoints,
	} {
		if errors.Is(err, known) {
			return true
		}
	}
	return code(err) == codes.InvalidArgument || code(err) == codes.FailedPrecondition || code(err) == codes.PermissionDenied
}

// unavailable wraps an error of the client. When ctx has been cancelled by the caller, that is the error.
func unavailable(ctx context.Context, err error) error {
	switch cause := ctx.Err(); {
	case errors.Is(cause, context.Canceled) && context.Cause(ctx) == cause: //nolint:errorlint // identity tells a cause of one's own
		return cause
	case errors.Is(err, lokt.ErrUnavailable), errors.Is(err, lokt.ErrInvalid), errors.Is(err, lokt.ErrDamaged):
		return err
	}
	return fmt.Errorf("%w: etcd: %w", lokt.ErrUnavailable, err)
}

// queries are the operations that read all about a name, in the order in which answer expects the replies.
func (s *Store) queries(name string) []clientv3.Op {
	return []clientv3.Op{clientv3.OpGet(s.lockKey(name)), clientv3.OpGet(s.freeKey(name))}
}

// answer makes a state of the replies to queries, and lets the slot learn it.
func (s *Store) answer(sl *slot, h *pb.ResponseHeader, replies []*pb.ResponseOp) (*state, error) {
	st := &state{lock: lokt.Lock{Name: sl.name}, header: h.GetRevision(), known: time.Now()}
	for i, at := range []*int64{&st.mod, &st.free} {
		for _, kv := range replies[i].GetResponseRange().GetKvs() {
			r, err := decode(sl.name, kv.Value)
			if err != nil {
				return nil, err
			}
			*at = kv.ModRevision
			if i == 1 && st.mod > 0 { // somebody else put it there
				st.lock.Token = max(st.lock.Token, r.Token)
				continue
			}
			st.take(r)
		}
	}
	sl.learn(st)
	return st, nil
}

// read reads all about a name, as it is at a moment between call and return. Of the other keys, it reports which exist.
func (s *Store) read(ctx context.Context, sl *slot, others ...string) (st *state, there map[string]bool, err error) {
	ops := s.queries(sl.name)
	n := len(ops)
	for _, k := range others {
		ops = append(ops, clientv3.OpGet(k, clientv3.WithKeysOnly()))
	}
	var r *clientv3.TxnResponse
	asked := s.rev.Load()
	if err := s.try(ctx, func(ctx context.Context) (err error) {
		r, err = s.client.Txn(ctx).Then(ops...).Commit()
		return err
	}); err != nil {
		return nil, nil, unavailable(ctx, err)
	}
	s.note(r.Header, asked)
	there = map[string]bool{}
	for i, k := range others {
		there[k] = len(r.Responses[n+i].GetResponseRange().GetKvs()) > 0
	}
	st, err = s.answer(sl, r.Header, r.Responses[:n])
	return st, there, err
}

// look is read for somebody who changes nothing, and who shares it with others that look at the same time.
func (s *Store) look(ctx context.Context, sl *slot) (*state, error) {
	return s.looks.Do(ctx, sl.name, s.timeout, func() (*state, error) {
		sl := s.pin(sl.name) // whoever asked may be gone
		defer s.unpin(sl)
		ctx, cancel := s.bound(context.Background())
		defer cancel()
		st, _, err := s.read(ctx, sl)
		return st, err
	})
}

// note takes in the header of a linearizable answer; asked is the highest revision known before the request. Revisions
// that fell mean that etcd was restored from a snapshot: nothing is as it was.
func (s *Store) note(h *pb.ResponseHeader, asked int64) {
	rev := h.GetRevision()
	for {
		was := s.rev.Load()
		if was >= rev || s.rev.CompareAndSwap(was, rev) {
			break
		}
	}
	was := s.cluster.Swap(h.GetClusterId())
	if rev >= asked && (was == h.GetClusterId() || was == 0) {
		return
	}
	s.rev.Store(rev)
	s.floor.Store(epoch(s.now()))
	s.tail.ring()
	s.each(func(sl *slot) { sl.forget(true) })
	s.rewatch()
}

// nameOf takes a key apart: the directory, without slashes, and the lock's name.
func (s *Store) nameOf(key []byte) (dir, name string) {
	rest, _ := strings.CutPrefix(string(key), s.prefix+"/")
	dir, name, _ = strings.Cut(rest, "/")
	return dir, name
}
