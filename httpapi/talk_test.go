package httpapi_test

import (
	"strings"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
)

// Promises S-197, S-73.
func TestCallersAskAndAnswerUnderTheirNames(t *testing.T) {
	c := newClub(t)
	h := c.acquire("ann", lokt.Claim{Name: "x", Owner: ci, TTL: time.Hour, Strict: true})
	told, err := c.as("bob").Tell(t.Context(), lokt.Target{Name: "x", Owner: ci}, lokt.Message{ID: "1", Text: "soon?"})
	if err != nil || told.Owner.ID != "ann/ci" || told.LeaseID != lokt.PublicID(h.LeaseID) || len(told.Messages) != 1 || told.Messages[0].From.ID != "ci" {
		t.Errorf("bob asked, and is told of %+v, %v", told, err)
	}
	_, err = c.as("bob").Tell(t.Context(), lokt.Target{Name: "x", LeaseID: lokt.PublicID(h.LeaseID), Owner: ci}, lokt.Message{ID: "1", Text: "soon?"})
	c.refused("asking again", err, nil)
	renewed, err := c.as("ann").Renew(t.Context(), lokt.Renewal{Name: "x", LeaseID: h.LeaseID})
	if err != nil || len(renewed.Messages) != 1 || renewed.Messages[0].From.ID != "bob/ci" {
		t.Errorf("ann renews, and is told %+v, %v", renewed.Messages, err)
	}
	_, err = c.as("bob").Tell(t.Context(), lokt.Target{Name: "x", Owner: ci}, lokt.Message{Answer: "yes"})
	c.refused("answering for ann", err, lokt.ErrNotOwner)
	_, err = c.as("ann").Tell(t.Context(), lokt.Target{Name: "x", Owner: ci}, lokt.Message{Answer: "at noon"})
	c.refused("answering", err, nil)
	s, err := c.as("bob").Get(t.Context(), "x")
	if m := s.Lock.Holders[0].Messages; err != nil || m[0].Answer != "at noon" || m[0].From.ID != "ci" {
		t.Errorf("bob sees %+v, %v", m, err)
	}
	_, err = c.as("bob").Tell(t.Context(), lokt.Target{Name: "x", Owner: ci}, lokt.Message{Text: "\x1b[2J"})
	c.refused("a control character", err, lokt.ErrInvalid)
	_, err = c.as("bob").Tell(t.Context(), lokt.Target{Name: "x", Owner: ci}, lokt.Message{Text: strings.Repeat("x", lokt.MaxIDLen+1)})
	c.refused("a long message", err, lokt.ErrInvalid)
	_, err = c.as("bob").Tell(t.Context(), lokt.Target{Name: "free", Owner: ci}, lokt.Message{Text: "anybody?"})
	c.refused("asking nobody", err, lokt.ErrNotFound)
}

// Promises S-198, S-73.
func TestCallersPassOnWhatIsTheirs(t *testing.T) {
	c := newClub(t)
	to := func(id string) *lokt.Claim {
		return &lokt.Claim{Owner: lokt.Owner{ID: id, AnySession: true}, TTL: time.Minute}
	}
	h := c.acquire("ann", lokt.Claim{Name: "x", Owner: ci, TTL: time.Hour})
	_, err := c.as("bob").Tell(t.Context(), lokt.Target{Name: "x", Owner: ci}, lokt.Message{Pass: to("mine")})
	c.refused("passing on what is ann's", err, lokt.ErrNotOwner)
	_, err = c.as("bob").Tell(t.Context(), lokt.Target{Name: "x", LeaseID: lokt.PublicID(h.LeaseID), Owner: ci}, lokt.Message{Pass: to("mine")})
	c.refused("passing it on by its public ID", err, lokt.ErrNotOwner)
	_, err = c.as("bob").Tell(t.Context(), lokt.Target{Name: "x", Owner: ci, Force: true}, lokt.Message{Pass: to("mine")})
	c.refused("force without its scope", err, httpapi.ErrForbidden)
	got, err := c.as("ann").Tell(t.Context(), lokt.Target{Name: "x", Owner: ci}, lokt.Message{Text: "take care", Pass: to("bob/mine")})
	if err != nil || got.Owner.ID != "bob/mine" || got.Token <= h.Token {
		t.Errorf("ann passed it on: %+v, %v", got, err)
	}
	s, err := c.as("bob").Get(t.Context(), "x")
	if mine := s.Lock.Holders[0]; err != nil || mine.Owner.ID != "mine" || mine.Messages[0].Text != "take care" || mine.Messages[0].From.ID != "ann/ci" {
		t.Errorf("bob has %+v, %v", mine, err)
	}
	if _, err := c.as("ann").Renew(t.Context(), lokt.Renewal{Name: "x", LeaseID: h.LeaseID}); err == nil {
		t.Error("ann renewed what she passed on")
	}
	got, err = c.as("root").Tell(t.Context(), lokt.Target{Name: "x", Owner: ci, Force: true}, lokt.Message{Pass: to("own")})
	if err != nil || got.Owner.ID != "own" {
		t.Errorf("root passed it on: %+v, %v", got, err)
	}
	ended, err := c.as("root").Release(t.Context(), lokt.Target{Name: "x", Owner: lokt.Owner{ID: "own"}})
	if err != nil || len(ended) != 1 {
		t.Errorf("its new owner released %+v, %v", ended, err)
	}
}
