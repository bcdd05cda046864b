package job

import (
	"maps"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/lokt-dev/lokt/jobs"
)

// What --json shows of jobs has the names that the server's own answers have, and null for what is not there.

type object = map[string]any

// null returns v, or null if there is nothing in it.
func null[T comparable](v T) any {
	var none T
	if v == none {
		return nil
	}
	return v
}

// when returns a time as the server writes it: UTC, with three digits behind the second, or null.
func when(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UTC().Format("2006-01-02T15:04:05.000Z")
}

// raw returns JSON as it is, or null.
func raw(v jsontext.Value) any {
	if v == nil {
		return nil
	}
	return v
}

// inSeconds returns a duration, or null if there is none.
func inSeconds(d time.Duration) any { return null(d.Seconds()) }

func jobObject(j *jobs.Job) object {
	o := j.Output
	if o == nil {
		o = &jobs.Report{}
	}
	return object{
		"job_id": j.ID, "type": j.Type, "priority": j.Priority, "requested_units": j.Units, "unique": j.Unique, "state": j.State,
		"payload": raw(j.Payload), "idempotency_key": null(j.IdempotencyKey), "tags": j.Tags, "max_runtime_s": inSeconds(j.MaxRuntime),
		"created_at": when(j.CreatedAt), "updated_at": when(j.UpdatedAt), "max_attempts": j.MaxAttempts, "retry_backoff_s": j.RetryBackoff.Seconds(),
		"run_at": when(j.RunAt), "locks": j.Locks, "ready_at": when(j.ReadyAt), "started_at": when(j.StartedAt), "ended_at": when(j.EndedAt),
		"attempt": j.Attempt, "token": j.Token, "code": null(j.Code), "cancel_requested": j.Cancel, "reason": null(j.Reason),
		"progress": o.Progress, "message": null(o.Message), "metrics": raw(o.Metrics), "checkpoint": raw(o.Checkpoint),
		"result": raw(o.Result), "error": raw(o.Error),
	}
}

// seenObject is what there is to see beside a job.
func seenObject(v *jobs.View) object {
	seen := object{
		"lease": nil, "in_queue": v.InQueue, "waiting_for": null(v.WaitingFor), "age_s": v.Age.Truncate(time.Millisecond).Seconds(),
		"since_update_s": v.SinceUpdate.Truncate(time.Millisecond).Seconds(),
	}
	if l := v.Lease; l != nil {
		lease := object{
			"lease_id": null(l.ID), "job_id": l.JobID, "worker_id": l.WorkerID, "capacity_units": l.Units, "issued_at": when(l.IssuedAt),
			"expires_at": when(l.ExpiresAt), "last_heartbeat": when(l.LastHeartbeat), "token": l.Token, "attempt": l.Attempt,
		}
		if len(l.LockTokens) > 0 {
			lease["lock_tokens"] = l.LockTokens
		}
		seen["lease"] = lease
	}
	return seen
}

// viewObject is one job with all there is to see.
func viewObject(v *jobs.View) object {
	attempts := []object{}
	for _, at := range v.Attempts {
		attempts = append(attempts, object{
			"attempt": at.Number, "token": at.Token, "lease_id": null(at.LeaseID), "worker_id": at.WorkerID, "state": at.State, "code": null(at.Code),
			"issued_at": when(at.IssuedAt), "first_heartbeat": when(at.FirstBeat), "ended_at": when(at.EndedAt), "error": raw(at.Error),
		})
	}
	view := jobObject(&v.Job)
	maps.Copy(view, seenObject(v))
	view["attempts"] = attempts
	return view
}

func depthsObject(d jobs.Depths) object {
	return object{"high": d.High, "normal": d.Normal, "low": d.Low, "background": d.Background}
}

func capacityObject(s jobs.Snapshot) object {
	return object{
		"total_capacity_units": s.Total, "usable_capacity_units": s.Usable, "leased_capacity_units": s.Leased, "available_capacity_units": s.Available,
		"queue_depths": depthsObject(s.Queue), "active_leases": s.ActiveLeases, "draining": s.Draining,
	}
}

func listObject(p jobs.Page) object {
	listed := []object{}
	for i := range p.Jobs {
		one := seenObject(&p.Jobs[i])
		one["job"] = jobObject(&p.Jobs[i].Job)
		listed = append(listed, one)
	}
	return object{
		"now": when(p.Now), "jobs": listed, "queue_depths": depthsObject(p.Snapshot.Queue), "snapshot": capacityObject(p.Snapshot), "next": null(p.Next),
	}
}

func totalsObject(t jobs.Totals) object {
	rounded := func(d time.Duration) float64 { return d.Round(time.Millisecond).Seconds() }
	return object{
		"total": t.Total, "totals_by_state": t.ByState, "success_rate": t.SuccessRate, "avg_queue_wait_s": rounded(t.AvgWait),
		"p95_runtime_s": rounded(t.P95Runtime),
	}
}

func statsObject(now jobs.Snapshot, s jobs.Stats, days int) object {
	types := object{}
	for name, t := range s.ByType {
		types[name] = totalsObject(t)
	}
	stats := totalsObject(s.Totals)
	stats["status"], stats["by_type"] = capacityObject(now), types
	stats["range"] = object{"days": days, "from": when(s.From), "to": when(s.To)}
	return stats
}
