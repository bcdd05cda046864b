// Package e2e holds tests of the library as programs use it: each holder is a process of its own, which is killed, stopped
// and restarted. It has no code of its own.
package e2e
