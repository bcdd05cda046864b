//go:build !linux

package main

import "time"

// load does what rate does, for work that waits for nothing but answers on a connection that it has been given the means to dial.
func load(workers int, d time.Duration, start func(dial dialer, worker int) (work func() error, stop func(), err error)) (float64, error) {
	return rate(workers, d, func(i int) (func() error, func(), error) { return start(dial, i) })
}
