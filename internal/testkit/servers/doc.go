// Package servers starts what tests need beside the code under test: a PostgreSQL server in a directory of its own,
// and proxies that cut, delay and swallow connections. Everything listens on loopback and ends with the test.
package servers
