// Package members says what an etcd is made of, as far as promises about locks in it depend on that.
package members

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lokt-dev/lokt/store/place"
)

// Conditions returns what the client's etcd says of itself: not whether its members wait for their disks. It has two seconds for that.
func Conditions(ctx context.Context, c *clientv3.Client) []place.Condition {
	const unavailable = "nothing can be stored, and requests are answered as unavailable"
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	list, err := c.MemberList(ctx)
	if err != nil {
		return []place.Condition{place.Found("members", place.Unknown, "etcd does not say who its members are", unavailable, "see the server's log")}
	}
	var silent, says []string
	voters := 0
	for _, m := range list.Members {
		answers := slices.ContainsFunc(m.ClientURLs, func(url string) bool {
			s, err := c.Status(ctx, url)
			if err == nil {
				says = append(says, s.Errors...)
			}
			return err == nil
		})
		if voters++; m.IsLearner {
			voters--
		} else if !answers {
			silent = append(silent, m.Name)
		}
	}
	spare := (voters - 1) / 2
	members := place.Found("members", place.OK, fmt.Sprintf("there are %d that vote: %d may be lost", voters, spare), "", "")
	if len(silent) > 0 || spare == 0 {
		members = place.Found("members", place.Warn, fmt.Sprintf("%s; out of reach: %d %s", members.Message, len(silent), strings.Join(silent, ", ")),
			"while most are down "+unavailable, "run three or five, and see to those that are out of reach")
	}
	alarms := place.Found("alarms", place.OK, "none", "", "")
	if len(says) > 0 {
		alarms = place.Found("alarms", place.Warn, strings.Join(says, ", "), unavailable, "see etcd's manual: compact and defragment it, and disarm the alarm")
	}
	return []place.Condition{members, alarms}
}
