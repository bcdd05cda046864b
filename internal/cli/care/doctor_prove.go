package care

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/process"
	"github.com/lokt-dev/lokt/store/filestore"
)

// The race of --prove: processes of this program take and give back one lock as fast as they can, in a directory of
// their own inside the root, so that neither its locks nor its log are touched. Whether two are in at once is found out
// by means that have nothing to do with lokt, in the system's directory for temporary files.

const (
	cmdProveWorker = "__prove"
	proofPrefix    = ".prove-"
	proofRacers    = 4
	proofTime      = 2 * time.Second
	proofPatience  = 20 * time.Second // for all to end, on a busy machine
)

// raceResult is what one racer saw.
type raceResult struct {
	Entered  int `json:"entered"`
	Overlaps int `json:"overlaps"` // times that somebody else was in too
}

// race enters and leaves until the time is up. In between it makes a file that must not be there yet, and counts in
// another one without care: if two are in at once, the first shows it, and the second comes out too low.
func race(dir string, until time.Time, enter func() (leave func() error, err error)) (r raceResult, err error) {
	marker, counter := filepath.Join(dir, "inside"), filepath.Join(dir, "count")
	for time.Now().Before(until) {
		leave, err := enter()
		if err != nil {
			return r, err
		}
		r.Entered++
		f, err := os.OpenFile(marker, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		switch {
		case err == nil:
			f.Close()
		case errors.Is(err, fs.ErrExist):
			r.Overlaps++
		default:
			return r, errors.Join(err, leave())
		}
		count, err := readCount(counter)
		if err == nil {
			time.Sleep(100 * time.Microsecond)
			err = os.WriteFile(counter, []byte(strconv.Itoa(count+1)), 0o600)
		}
		if f != nil {
			err = errors.Join(err, os.Remove(marker))
		}
		if err := errors.Join(err, leave()); err != nil {
			return r, err
		}
	}
	return r, nil
}

func newProveWorker(a cmd) *cobra.Command {
	return &cobra.Command{
		Use:    cmdProveWorker + " ROOT DIR DURATION",
		Short:  "Race for a lock, for doctor --prove",
		Hidden: true,
		Args:   app.UsageArgs(cobra.ExactArgs(3)),
		RunE: func(_ *cobra.Command, args []string) error {
			d, err := time.ParseDuration(args[2])
			if err != nil {
				return app.Usagef("%w", err)
			}
			return a.runProveWorker(args[0], args[1], d)
		},
	}
}

func (a cmd) runProveWorker(root, dir string, d time.Duration) error {
	store, err := filestore.Open(root, filestore.Options{})
	if err != nil {
		return err
	}
	self, err := store.Self()
	if err != nil {
		return err
	}
	host, _ := os.Hostname()
	m := lokt.NewManager(store)
	ctx := context.Background()
	claim := lokt.Claim{
		Name: "prove", Owner: lokt.Owner{ID: "doctor", Session: strconv.Itoa(self.PID), Host: host, Process: self},
		Process: &self, Strict: true, Wait: proofPatience,
	}
	r, err := race(dir, time.Now().Add(d), func() (func() error, error) {
		claim.LeaseID = lokt.NewLeaseID()
		h, err := m.Acquire(ctx, claim)
		return func() error {
			_, err := m.Release(ctx, lokt.Target{Name: h.Name, LeaseID: h.LeaseID, Owner: claim.Owner})
			return err
		}, err
	})
	if err != nil {
		return err
	}
	a.JSON = true
	return errors.Join(a.Print(r), store.Close())
}

// proof is how the race came out.
type proof struct {
	raceResult
	racers int
	lost   int // counts that are missing
}

func (d *doctor) checkExclusion(ctx context.Context) {
	const name = "exclusion"
	if d.store == nil {
		d.add(checkFail, name, "not tried, for the locks cannot be used")
		return
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	p, err := d.prove(ctx)
	kind, _ := process.LocalFS(existing(d.root.Path))
	switch {
	case p.Overlaps > 0 || p.lost > 0:
		d.add(checkFail, name, "%d processes entered %d times; %d times another was in already, and %d of their updates were lost", p.racers, p.Entered, p.Overlaps, p.lost).
			Fix = fmt.Sprintf("do not keep locks on this file system (%s): set LOKT_ROOT to a local disk", kind)
	case err != nil:
		d.add(checkFail, name, "the race could not be run: %v", err)
	default:
		d.add(checkOK, name, "%d processes entered %d times in %s, and never two at once", p.racers, p.Entered, app.Short(proofTime))
	}
}

// prove runs the race. If it fails, what was seen until then is returned too.
func (d *doctor) prove(ctx context.Context) (p proof, err error) {
	program, err := os.Executable()
	if err != nil {
		return p, err
	}
	if !d.exists {
		if err := os.MkdirAll(d.root.Path, 0o700); err != nil {
			return p, err
		}
		defer func() { _ = os.Remove(d.root.Path) }() // fails if others use it by now
	}
	root, err := os.MkdirTemp(d.root.Path, proofPrefix)
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(root)) }()
	dir, err := os.MkdirTemp("", "lokt-prove-")
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	ctx, cancel := context.WithTimeout(ctx, proofTime+proofPatience)
	defer cancel()
	var racers [proofRacers]*exec.Cmd
	var out, errOut [proofRacers]bytes.Buffer
	var errs []error
	for i := range racers {
		c := exec.CommandContext(ctx, program, cmdProveWorker, root, dir, proofTime.String())
		c.Stdout, c.Stderr = &out[i], &errOut[i]
		if err := c.Start(); err != nil {
			errs = append(errs, err)
			continue
		}
		racers[i] = c
		p.racers++
	}
	for i, c := range racers {
		if c == nil {
			continue
		}
		if err := c.Wait(); err != nil {
			errs = append(errs, fmt.Errorf("process %d of %d: %w: %s", i+1, proofRacers, err, strings.TrimSpace(errOut[i].String())))
			continue
		}
		var r raceResult
		if err := json.Unmarshal(out[i].Bytes(), &r); err != nil {
			errs = append(errs, fmt.Errorf("process %d of %d: %w", i+1, proofRacers, err))
			continue
		}
		if r.Entered == 0 {
			errs = append(errs, fmt.Errorf("process %d of %d never got in", i+1, proofRacers))
		}
		p.Entered += r.Entered
		p.Overlaps += r.Overlaps
	}
	if len(errs) > 0 {
		return p, errors.Join(errs...) // who failed has not told what it counted
	}
	count, err := readCount(filepath.Join(dir, "count"))
	p.lost = p.Entered - count
	return p, err
}
