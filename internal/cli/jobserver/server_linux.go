package jobserver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/cli/app"
)

const (
	lookEvery  = 10 * time.Millisecond // at whether the build has taken the token that it was offered
	sweepEvery = time.Second           // for tokens whose client is dead
	leastPause = 40 * time.Millisecond // before a build is offered another token that it left for others
	mostPause  = time.Second
)

// server hands out tokens to one build. It offers one at a time: the protocol does not tell whether a client wants one. A token
// that nobody has taken goes to another build that waits, and so does one that comes back.
type server struct {
	b    *app.Backend
	k    *lokt.Locker
	o    lokt.Options
	most int // tokens beside that of the first job

	pool int         // the descriptor of what is offered, for reading and writing
	file fs.FileInfo // what clients write to
	ends []*os.File  // of pipes: what clients read from and write to, and where that arrives

	tokens  []*lokt.Lease // that are offered or taken
	back    chan int
	granted chan *lokt.Lease
	stop    context.CancelFunc
	done    sync.WaitGroup
}

// newServer returns a server that runs until it is closed, and what clients are told of where the tokens are. Clients give back
// to another pipe than they take from, so that a build cannot take again what it gave back before another that waits.
func newServer(b *app.Backend, k *lokt.Locker, o lokt.Options, most int) (s *server, auth string, err error) {
	ctx, stop := context.WithCancel(context.Background())
	s = &server{b: b, k: k, o: o, most: most, back: make(chan int), granted: make(chan *lokt.Lease), stop: stop}
	var take, back [2]int // the build inherits what is not closed
	if err = errors.Join(unix.Pipe2(take[:], 0), unix.Pipe2(back[:], 0)); err == nil {
		// Opened once more, it does not wait here and does in the build.
		s.pool, err = unix.Open(fmt.Sprintf("/proc/self/fd/%d", take[0]), unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	}
	if err == nil {
		unix.CloseOnExec(back[0])
		err = errors.Join(unix.Close(take[1]), unix.SetNonblock(back[0], true))
	}
	if err == nil {
		s.file, err = os.Stat(fmt.Sprintf("/proc/self/fd/%d", back[1]))
	}
	if err != nil { // what is open ends with this process
		stop()
		return nil, "", fmt.Errorf("pipes of tokens: %w", err)
	}
	given := os.NewFile(uintptr(back[0]), "back")
	s.ends = []*os.File{os.NewFile(uintptr(take[0]), "take"), os.NewFile(uintptr(back[1]), "give"), given}
	s.done.Go(func() { s.receive(ctx, given) })
	s.done.Go(func() { s.serve(ctx) })
	return s, fmt.Sprintf("%d,%d", take[0], back[1]), nil
}

// receive tells how many tokens clients give back.
func (s *server) receive(ctx context.Context, given *os.File) {
	for buf := make([]byte, 4096); ; {
		n, err := given.Read(buf)
		if err != nil {
			return
		}
		select {
		case s.back <- n:
		case <-ctx.Done():
			return
		}
	}
}

// close ends the server. Its tokens are for the caller to release.
func (s *server) close() {
	s.stop()
	for _, f := range s.ends {
		_ = f.Close()
	}
	s.done.Wait()
	_ = unix.Close(s.pool)
}

// serve hands out tokens and takes them back until ctx ends.
func (s *server) serve(ctx context.Context) {
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	asking, pause, next, swept := false, time.Duration(0), time.Time{}, time.Now()
	offered, still, over := 0, false, 0 // still: nothing has moved since the last sweep, which found so many too many taken
	for {
		select {
		case n := <-s.back:
			still = false
			n = min(n, len(s.tokens)-s.offered()) // fewer if a client was thought dead and was not
			if s.wanted(ctx) {
				s.release(ctx, n)
			} else {
				s.offer(n)
			}
		case l := <-s.granted:
			if asking = false; l == nil {
				next = time.Now().Add(mostPause)
				break
			}
			s.tokens = append(s.tokens, l)
			s.offer(1)
		case <-look.C:
		case <-ctx.Done():
			return
		}
		n := s.offered()
		if n < offered {
			pause = 0 // it needs more
		}
		still = still && n == offered
		if n > 0 && s.wanted(ctx) {
			n -= s.release(ctx, s.take(n))
			pause = min(max(2*pause, leastPause), mostPause)
			next = time.Now().Add(pause)
		}
		if offered = n; n == 0 && !asking && len(s.tokens) < s.most && time.Now().After(next) {
			asking = true
			s.done.Go(func() {
				l, _ := s.k.Acquire(ctx, lockName, s.o) // fails when ctx ends, or is tried again
				select {
				case s.granted <- l:
				case <-ctx.Done():
				}
			})
		}
		if time.Since(swept) < sweepEvery {
			continue
		}
		found := 0
		if still && len(s.tokens) > n {
			found = max(0, len(s.tokens)-n-heldByClients(s.file))
		}
		found -= s.release(ctx, min(found, over)) // which are lost
		swept, still, over = time.Now(), true, found
	}
}

// wanted reports whether another build waits for a token.
func (s *server) wanted(ctx context.Context) bool {
	at, err := s.b.Get(ctx, lockName)
	return err == nil && slices.ContainsFunc(at.Lock.Queue, func(w *lokt.Waiter) bool {
		return w.Owner.Process.PID != os.Getpid() && !at.Away(w) && !at.Dead[w.LeaseID]
	})
}

// release gives back so many tokens that are neither offered nor taken any more.
func (s *server) release(ctx context.Context, n int) int {
	for _, l := range s.tokens[len(s.tokens)-n:] {
		_ = l.Release(context.WithoutCancel(ctx)) // what fails is tried again in the end, and ends with this process
	}
	s.tokens = s.tokens[:len(s.tokens)-n]
	return n
}

// offered returns how many tokens nobody has taken.
func (s *server) offered() int {
	n, _ := unix.IoctlGetInt(s.pool, unix.TIOCINQ)
	return n
}

// offer puts tokens where clients take them.
func (s *server) offer(n int) { _, _ = unix.Write(s.pool, []byte(strings.Repeat("+", n))) }

// take takes back tokens that no client has taken, so many at most.
func (s *server) take(n int) int {
	n, _ = unix.Read(s.pool, make([]byte, n))
	return max(0, n)
}
