package httpapi_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/internal/testkit/ports"
)

// Promise S-173.
func TestAClaimThatFindsNoServerGivesUpWithItsWaitAndSaysWhy(t *testing.T) {
	t.Parallel()
	free, err := ports.Free(1)
	if err != nil {
		t.Fatal(err)
	}
	c, err := httpapi.New("http://"+free[0], httpapi.ClientOptions{Patience: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	_, err = c.Acquire(t.Context(), lokt.Claim{Name: "x", Owner: lokt.Owner{ID: "a"}, TTL: time.Minute, Wait: time.Second})
	if !errors.Is(err, lokt.ErrUnavailable) || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("it ends with %v", err)
	}
	if took := time.Since(begun); took < time.Second/2 || took > 30*time.Second {
		t.Errorf("it took %v", took)
	}
	locker, err := lokt.NewLocker(c, lokt.Owner{ID: "a"}, lokt.LockerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	begun = time.Now()
	_, err = locker.Acquire(t.Context(), "x", lokt.Options{Wait: time.Second})
	if took := time.Since(begun); !errors.Is(err, lokt.ErrUnavailable) || !strings.Contains(err.Error(), "connection refused") || took > 30*time.Second {
		t.Errorf("a locker's ends after %v with %v", took, err)
	}
}
