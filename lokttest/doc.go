// Package lokttest holds the suites that every implementation of lokt's interfaces passes: [TestStore] and
// [TestObserver] for stores, [TestReopen] for those that outlive a process, [TestService] and [TestServiceInRealTime]
// for services, and a checker of histories, [Recorder], which tells whether what a service answered to many clients at
// once can be explained by locks that were taken and given back one step at a time.
//
// A suite's subtests are named after the promise they check, and each opens a new, empty store or service. They rely
// on nothing but the interface.
package lokttest
