// Package replicas has no code of its own: its tests run several daemons on one PostgreSQL or etcd, clients that contend
// for locks and jobs, and whatever can go wrong between them.
package replicas
