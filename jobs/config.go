package jobs

import (
	"cmp"
	"fmt"
	"time"

	"github.com/lokt-dev/lokt"
)

// Config are the numbers that the rules go by. Zero fields stand for the defaults.
type Config struct {
	Total      int           // units of capacity; 100
	Reserve    int           // units that are not handed out; 0
	TTL        time.Duration // of a lease, from the last heartbeat; 60 s
	Grace      time.Duration // added to the TTL; 0
	AgeingStep time.Duration // by how much a class comes before the next; 10 min
	// how long a job waits before capacity, or its locks, are kept for it; 2 min, negative: never
	ReserveAfter time.Duration
	ReserveLimit time.Duration // how long capacity, or a lock, is kept for a job before that rests as long; 10 min
	MaxParked    int           // requests that wait at the same time; beyond, they are answered at once; 20,000

	// Shared says that the store belongs to several processes: heartbeats are stored before they are answered.
	Shared bool

	// Locking says that locks are taken outside of the rules, which then order it.
	Locking bool
}

// MaxTotal is the most units that there can be.
const MaxTotal = 1<<31 - 1

// WithDefaults returns the config with defaults for what is zero.
func (c Config) WithDefaults() Config {
	c.Total, c.MaxParked = cmp.Or(c.Total, 100), cmp.Or(c.MaxParked, 20_000)
	c.TTL, c.AgeingStep = cmp.Or(c.TTL, time.Minute), cmp.Or(c.AgeingStep, 10*time.Minute)
	c.ReserveAfter, c.ReserveLimit = cmp.Or(c.ReserveAfter, 2*time.Minute), cmp.Or(c.ReserveLimit, 10*time.Minute)
	return c
}

// Validate reports the first thing wrong with the config, as an error that wraps lokt.ErrInvalid.
func (c Config) Validate() error {
	c = c.WithDefaults()
	wrong := ""
	switch {
	case c.Total < 1 || c.Total > MaxTotal:
		wrong = fmt.Sprintf("total of %d units", c.Total)
	case c.Reserve < 0 || c.Reserve >= c.Total:
		wrong = fmt.Sprintf("reserve of %d units among %d", c.Reserve, c.Total)
	case c.TTL < lokt.MinTTL || c.TTL > MaxDuration:
		wrong = fmt.Sprintf("lease TTL of %v", c.TTL)
	case c.Grace < 0 || c.Grace > MaxDuration:
		wrong = fmt.Sprintf("grace of %v", c.Grace)
	case c.AgeingStep < 0 || c.AgeingStep > MaxDuration:
		wrong = fmt.Sprintf("ageing step of %v", c.AgeingStep)
	case c.ReserveLimit < 0:
		wrong = fmt.Sprintf("limit to reservations of %v", c.ReserveLimit)
	case c.MaxParked < 0:
		wrong = fmt.Sprintf("%d parked requests", c.MaxParked)
	default:
		return nil
	}
	return fmt.Errorf("%w: %s", lokt.ErrInvalid, wrong)
}

// Usable returns the units that are handed out.
func (c *Config) Usable() int { return c.Total - c.Reserve }

// Life is how long a lease lasts after a heartbeat.
func (c *Config) Life() time.Duration { return c.TTL + c.Grace }

// heartbeatsPerSecond is how many heartbeats there are of all leases together, as far as their TTL allows.
const heartbeatsPerSecond = 20_000

// Interval is how often workers are asked to send heartbeats while there are so many leases.
func (c *Config) Interval(leases int) time.Duration {
	return min(max(min(15*time.Second, c.TTL/3), time.Duration(leases)*time.Second/heartbeatsPerSecond), c.TTL/2)
}
