// Package jobstest holds the suites that every implementation of the interfaces of package jobs passes: [TestStore] for
// stores, [TestReopen] for those that outlive a process, [TestService] and [TestServiceInRealTime] for services, and
// [TestRestart] and [TestLockTokens] for a manager over a store whose process dies.
//
// A suite's subtests are named after the promise they check, and each opens a new, empty store or service. They rely
// on nothing but the interface.
package jobstest
