// Package machine has the flags by which a claim depends on the machine: how many commands it has room for, how much memory
// there is, how busy it is, and which numbers are free.
package machine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/machine"
)

// SlotsFlag adds --slots, which sets n.
func SlotsFlag(cmd *cobra.Command, n *int) {
	cmd.Flags().Func("slots", "share with others, as long as there are no more than `N` holders; auto: as many as this machine has room for", func(text string) (err error) {
		if text == "auto" {
			*n = machine.Machine{}.Slots()
			return nil
		}
		v, err := strconv.ParseInt(text, 10, 32)
		*n = int(v)
		return err
	})
}

// WeightFlag adds --weight, which sets w.
func WeightFlag(cmd *cobra.Command, w *lokt.Weight) {
	cmd.Flags().Func("weight", "`SIZE` of memory that it takes, such as 4G: together no more than this machine has", func(text string) (err error) {
		if w.Takes, err = machine.ParseSize(text); err != nil {
			return err
		}
		switch w.Of = (machine.Machine{}).Memory(); {
		case w.Of == 0:
			return errors.New("how much memory this system has is not known")
		case w.Takes > w.Of:
			return fmt.Errorf("it would never fit: there are %s in all", machine.Size(w.Of))
		}
		return nil
	})
}

// Flags returns the flags as they are given, of those that are.
func Flags(w lokt.Weight, p *Pressure) (flags []string) {
	if w.Takes > 0 {
		flags = append(flags, "--weight", machine.Size(w.Takes))
	}
	if p.text != "" {
		flags = append(flags, "--pressure", p.text)
	}
	return flags
}

// Describe says what a hold has of the machine, for people.
func Describe(h lokt.Holder) (parts []string) {
	if h.Slot > 0 {
		parts = append(parts, fmt.Sprintf("slot %d", h.Slot))
	}
	if text := WeightText(h.Weight); text != "" {
		parts = append(parts, text)
	}
	if HeldBack(h) {
		parts = append(parts, "held back while pressure is above "+h.Metadata[MetaPressure]+" %")
	}
	return parts
}

// WeightText says what a hold takes; nothing for no weight.
func WeightText(w lokt.Weight) string {
	return map[bool]string{true: machine.Size(w.Takes) + " of " + machine.Size(w.Of)}[w.Of > 0]
}

// Pressure is the flag --pressure: above this limit, in percent, no command starts beside others.
type Pressure struct {
	text    string // as it was given
	limit   float64
	machine machine.Machine
}

// MetaPressure is the key of a claim's metadata that has the limit.
const MetaPressure = "pressure"

// HeldBack reports whether a hold's command waits for less pressure, as far as the store knows when the command starts.
func HeldBack(h lokt.Holder) bool {
	return h.Metadata[MetaPressure] != "" && h.Process != nil && h.Process.Child == 0
}

// Bind adds the flag.
func (p *Pressure) Bind(cmd *cobra.Command) {
	cmd.Flags().Func("pressure", "start nothing beside other holders while processes wait more than `PERCENT` of the time for CPU, disks or memory, such as 60", func(text string) (err error) {
		if p.limit, err = strconv.ParseFloat(text, 64); err != nil || !(p.limit >= 0 && p.limit < 100) {
			return errors.New("it is no percentage, such as 60")
		}
		p.text = text
		return nil
	})
}

// Text returns the limit as it was given; nothing if it was not.
func (p *Pressure) Text() string { return p.text }

// Above says which pressure is above the limit, and who was granted the lock before the token. It says nothing if a holder
// with the token may start: the first of the holders always may, so that whoever else keeps the machine busy cannot keep
// everybody out.
func (p *Pressure) Above(s lokt.Snapshot, token uint64) (above string, before []lokt.Holder) {
	if before = slices.DeleteFunc(s.Live(), func(h lokt.Holder) bool { return h.Token >= token }); p.text == "" || len(before) == 0 {
		return "", nil
	}
	if resource, now := p.machine.Pressure(); now > p.limit {
		above = fmt.Sprintf("%s pressure is %.0f %%, above %g %%", resource, now, p.limit)
	}
	return above, before
}

// lookEvery is the time between two looks at the pressure, which Linux works out every two seconds.
const lookEvery = time.Second

// Hold waits until the lease's command may start, until so long after it began to wait, or without end if wait is negative.
// The error is a *lokt.BlockedError, with the reason as a hint, if the command still may not.
func (p *Pressure) Hold(ctx context.Context, a *app.App, b *app.Backend, l *lokt.Lease, began time.Time, wait time.Duration, see string) error {
	for told := (time.Time{}); p.text != ""; {
		s, err := b.Get(ctx, l.Name())
		if err != nil {
			return err
		}
		above, before := p.Above(s, l.Token())
		if above == "" {
			break
		}
		if wait >= 0 && time.Since(began) >= wait {
			return app.Hint(&lokt.BlockedError{Name: l.Name(), Holders: before, Now: s.Now, TimedOut: wait}, "%s; see: %s", above, see)
		}
		if time.Since(told) > 30*time.Second {
			told = time.Now()
			a.Tell("held back: %s, and %d had %q before", above, len(before), l.Name())
		}
		if !app.Pause(ctx, lookEvery) {
			return context.Cause(ctx)
		}
	}
	return nil
}

// Pools is the flag --pool.
type Pools []machine.Pool

// Bind adds the flag.
func (p *Pools) Bind(cmd *cobra.Command) {
	cmd.Flags().Func("pool", "give the command a number of its own: `NAME=FIRST-LAST`, such as port=3000-3099 for LOKT_PORT; may be repeated", func(text string) error {
		one, err := machine.ParsePool(text)
		if slices.ContainsFunc(*p, func(o machine.Pool) bool { return o.Name == one.Name }) {
			return fmt.Errorf("the pool %q is given twice", one.Name)
		}
		*p = append(*p, one)
		return err
	})
}

// Take takes the lowest number of each pool that nobody has, and returns the leases and what the command is told, also with
// an error: a *lokt.BlockedError if all numbers of a pool are taken. What somebody uses without a lock need not be locked.
func (p Pools) Take(try func(name string) (*lokt.Lease, error)) (leases lokt.Leases, env []string, err error) {
	for _, pool := range p {
		none, n := &lokt.BlockedError{Name: pool.Lock(pool.First), Now: time.Now()}, pool.First
		for ; n <= pool.Last; n++ {
			if !pool.Usable(n) {
				continue
			}
			l, err := try(pool.Lock(n))
			if err == nil {
				leases, env = append(leases, l), append(env, fmt.Sprintf("%s=%d", pool.Variable(), n))
				break
			}
			if !errors.As(err, &none) {
				return leases, env, err
			}
		}
		if n > pool.Last {
			return leases, env, app.Hint(none, "no number of %s=%d-%d is free", pool.Name, pool.First, pool.Last)
		}
	}
	return leases, env, nil
}
