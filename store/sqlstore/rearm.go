package sqlstore

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/lokt-dev/lokt"
)

// rearm gives everybody who lives by time, and was alive when something was stored last, a full time from now: nobody could
// renew anything while the database was closed, and renewals that were not flushed to the disk may be missing. A maximum hold
// still ends when it ends. The revisions of these locks jump, beyond any that was not flushed and that somebody may have
// seen.
//
// The first time that a backup is opened, every token and every revision from then on is higher than any that was given
// after the backup was made.
func rearm(ctx context.Context, q querier, now, last time.Time) error {
	if err := startAgain(ctx, q, now, last, strings.NewReplacer("greatest(", "max(", "least(", "min(")); err != nil {
		return err
	}
	return q.exec(ctx, `UPDATE state SET clock = ?, backup = 0,
		token_floor = CASE backup WHEN 0 THEN token_floor ELSE max(token_floor, (SELECT coalesce(max(token), 0) FROM locks)) + 4294967296 END,
		revision_floor = CASE backup WHEN 0 THEN revision_floor ELSE max(revision_floor, (SELECT coalesce(max(revision), 0) FROM locks)) + 4294967296 END`,
		now.UnixNano())
}

// startAgain does so but for the state.
func startAgain(ctx context.Context, q querier, now, last time.Time, dialect *strings.Replacer) error {
	t, alive := now.UnixNano(), last.UnixNano()
	place, away := int64(lokt.QueueTTL), int64(lokt.AwayTTL)
	for _, s := range []struct {
		statement string
		args      []any
	}{
		{`UPDATE holders SET expires_at = greatest(expires_at, least(least(?, 9223372036854775807 - ttl) + ttl,
			coalesce(least(held_since, 9223372036854775807 - max_hold) + max_hold, 9223372036854775807)))
			WHERE expires_at >= ? AND ttl > 0 AND yield IS NULL`, []any{t, alive}},
		{"UPDATE holders SET pending = greatest(pending, ?) WHERE pending >= ?", []any{t + int64(lokt.OfferTTL), alive}},
		{"UPDATE waiters SET until = greatest(until, ?) WHERE until > ?", []any{t + int64(lokt.ReturnTimeout) + place, alive + place}},
		{"UPDATE waiters SET until = greatest(until, ?) WHERE until >= ? AND until <= ?", []any{t + away, alive, alive + place}}, // who was away
		{"UPDATE freezes SET expires_at = greatest(expires_at, least(?, 9223372036854775807 - ttl) + ttl) WHERE expires_at >= ? AND ttl > 0", []any{t, alive}},
		{`UPDATE locks SET revision = revision + 1048576
			WHERE name IN (SELECT lock FROM holders UNION SELECT lock FROM waiters UNION SELECT lock FROM freezes)`, nil},
	} {
		if err := q.exec(ctx, dialect.Replace(s.statement), s.args...); err != nil {
			return fmt.Errorf("start times again: %w", err)
		}
	}
	return rearmAsked(ctx, q, now, last)
}

// rearmAsked does so for holders that were asked to leave: the grace of those that had been told begins again, too.
func rearmAsked(ctx context.Context, q querier, now, last time.Time) error {
	var asked []lokt.Holder
	if err := q.query(ctx, "SELECT "+holderColumns+" FROM holders WHERE yield IS NOT NULL", nil, func(r *row) error {
		_, h, _ := readHolder(r)
		if r.err == nil && h.Yield != nil && !ended(h.ExpiresAt, last) && !ended(h.Yield.Deadline, last) {
			asked = append(asked, h)
		}
		r.err = nil // whoever reads the lock is told
		return nil
	}); err != nil {
		return err
	}
	for _, h := range asked {
		y := h.Yield
		if !y.Deadline.IsZero() {
			y.Deadline = later(y.Deadline, now.Add(y.Grace))
		}
		if !h.ExpiresAt.IsZero() && h.TTL > 0 {
			end := now.Add(h.TTL)
			if h.MaxHold > 0 {
				end = earlier(end, h.HeldSince.Add(h.MaxHold))
			}
			if !y.Deadline.IsZero() {
				end = earlier(end, y.Deadline)
			}
			h.ExpiresAt = later(h.ExpiresAt, end)
		}
		yield, err := encodeYield(y)
		if err != nil {
			return err
		}
		if err := q.exec(ctx, "UPDATE holders SET expires_at = ?, yield = ? WHERE lock = ? AND lease_id = ?", nanos(h.ExpiresAt), yield, h.Name, h.LeaseID); err != nil {
			return err
		}
	}
	return nil
}

// ended reports whether a time, if there is one, had passed.
func ended(t, at time.Time) bool { return !t.IsZero() && t.Before(at) }

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
