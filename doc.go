// Package lokt provides locks and leases for programs and people that share things.
//
// A [Claim] asks for a lock. A granted claim is a [Holder] of it. A [Lock] is everything remembered about one name. A
// [Store] remembers locks, a [Service] answers claims.
package lokt
