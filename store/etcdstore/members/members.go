// Package members says what an etcd is made of, as far as promises about locks in it depend on that.
package members

import (
	"context"
	"fmt"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lokt-dev/lokt/store/place"
)

// patience is how long a member has to answer.
const patience = 2 * time.Second

// Conditions returns what the client's etcd says of itself.
func Conditions(ctx context.Context, c *clientv3.Client) []place.Condition {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	list, err := c.MemberList(ctx)
	if err != nil {
		return []place.Condition{place.Found(place.Members, place.Unknown, "etcd does not say who its members are", "requests are answered as unavailable", "see the server's log"), disks()}
	}
	var silent, alarms []string
	voters := 0
	for _, m := range list.Members {
		if m.IsLearner {
			continue
		}
		voters++
		answers := false
		for _, url := range m.ClientURLs {
			if s, err := c.Status(ctx, url); err == nil {
				answers, alarms = true, append(alarms, s.Errors...)
				break
			}
		}
		if !answers {
			silent = append(silent, m.Name)
		}
	}
	return []place.Condition{judge(voters, silent), alarmed(alarms), disks()}
}

func judge(voters int, silent []string) place.Condition {
	spare := (voters - 1) / 2
	size := fmt.Sprintf("there are %d that vote: %d may be lost", voters, spare)
	switch {
	case len(silent) > 0:
		return place.Found(place.Members, place.Warn, fmt.Sprintf("%s, and %s cannot be reached from here", size, strings.Join(silent, ", ")),
			"when most do not answer nothing can be stored, and requests are answered as unavailable", "start them, or see which way to them is closed")
	case spare == 0:
		return place.Found(place.Members, place.Warn, size, "while one is down nothing can be stored, and requests are answered as unavailable: "+
			"there is no other that could be asked", "run three or five members")
	}
	return place.Found(place.Members, place.OK, size, "", "")
}

func alarmed(alarms []string) place.Condition {
	if len(alarms) > 0 {
		return place.Found(place.Alarms, place.Warn, strings.Join(alarms, ", "), "etcd stores nothing more: requests are answered as unavailable",
			"see etcd's manual: compact and defragment it, and disarm the alarm")
	}
	return place.Found(place.Alarms, place.OK, "none", "", "")
}

// disks cannot be asked about.
func disks() place.Condition {
	return place.Found(place.MemberDisks, place.Unknown, "etcd does not say whether its members wait for their disks",
		"with --unsafe-no-fsync a crash of most members takes along what was acknowledged", "start members without it")
}
