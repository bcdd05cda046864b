package filestore

import "github.com/lokt-dev/lokt"

// Runner returns this process as an owner for lokt.NewLocker, which gives it the runner ID of the process: the host,
// and the process with its kernel lock (see Self). Programs that give the process to what they acquire, as
// lokt.Options.Process, lose their locks the moment they die, instead of after the time to live:
//
//	owner, err := store.Runner()
//	locker, err := lokt.NewLocker(lokt.NewManager(store), owner, lokt.LockerOptions{
//		Defaults: lokt.Options{Process: &owner.Process},
//	})
func (s *Store) Runner() (lokt.Owner, error) {
	self, err := s.Self()
	return lokt.Owner{Host: s.Host(), Process: self}, err
}
