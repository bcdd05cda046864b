package memstore

// Remembered returns how many names the store has entries for.
func Remembered(s *Store) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.locks)
}
