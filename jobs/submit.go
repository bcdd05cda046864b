package jobs

import "time"

// submit takes in jobs, all of them or none. A job that is larger than there are units is refused, but not if it is there
// already, from when there were more.
func (e *engine) submit(id uint64, all []newJob) {
	receipts := make([]Receipt, len(all))
	fresh := map[string]int{} // keys that are new with this request
	tooLarge, conflict := []int(nil), false
	for i := range all {
		n := &all[i]
		first, twice := fresh[n.IdempotencyKey]
		old := e.keys[n.IdempotencyKey]
		if old != nil && !old.Expires.IsZero() && !old.Expires.After(e.now.wall) {
			old = nil
		}
		switch {
		case n.IdempotencyKey == "":
		case twice && all[first].print == n.print:
			receipts[i] = Receipt{all[first].id, Queued}
			continue
		case twice, old != nil && old.Print != n.print:
			conflict = true
		case old != nil:
			receipts[i] = Receipt{old.JobID, old.State}
			if en := e.jobs[old.JobID]; en != nil {
				receipts[i].State = en.job.State
			}
			continue
		default:
			fresh[n.IdempotencyKey] = i
		}
		if n.Units > e.cfg.Total {
			tooLarge = append(tooLarge, i)
		}
	}
	switch {
	case len(tooLarge) > 0:
		e.fail(id, tooLargeError(tooLarge, e.cfg.Total))
		return
	case conflict:
		e.fail(id, ErrConflict)
		return
	}
	for i := range all {
		if receipts[i].JobID == "" {
			e.addJob(&all[i])
			receipts[i] = Receipt{all[i].id, Queued}
		}
	}
	e.reply(id, receipts)
}

// addJob queues a new job.
func (e *engine) addJob(n *newJob) {
	e.Seq++
	e.tick()
	en := &entry{}
	en.job = Job{
		Spec: n.Spec, ID: n.id, State: Queued, CreatedAt: e.now.wall, ReadyAt: e.now.wall, Seq: e.Seq,
		Ord: place(e.Clock, n.Priority, e.cfg.AgeingStep),
	}
	j := &en.job
	if !j.RunAt.IsZero() {
		j.RunAt = j.RunAt.UTC().Truncate(time.Millisecond)
		if j.RunAt.After(e.now.wall) {
			j.ReadyAt = j.RunAt
		}
	}
	if len(j.Payload) == 0 {
		j.Payload = []byte("{}")
	}
	e.jobs[j.ID] = en
	e.touch(en, New|Moved|Reported)
	e.note(EventSubmit, en, "", "", "", "")
	if j.IdempotencyKey != "" {
		if old := e.keys[j.IdempotencyKey]; old != nil {
			e.dyingKeys.remove(old)
		}
		e.keys[j.IdempotencyKey] = &key{Key: Key{Key: j.IdempotencyKey, Print: n.print, JobID: j.ID}}
		e.newKeys = append(e.newKeys, j.IdempotencyKey)
	}
	e.queue(en, 0, true)
}
