package jobs

import (
	"crypto/sha256"
	"encoding/hex"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/lokt-dev/lokt"
)

// Fingerprint tells specs apart: it is equal for specs that decode to the same job, however they were written.
// It is made of every field but the key, with the payload in the form of RFC 8785, but for whole numbers: large
// ones are kept apart.
func (s *Spec) Fingerprint() string {
	c := s.Clone()
	c.IdempotencyKey, c.RunAt = "", s.RunAt.Truncate(time.Millisecond)
	// A payload that is no JSON is no valid spec, and stays as it is.
	_ = c.Payload.Canonicalize(jsontext.CanonicalizeRawInts(false), jsontext.AllowDuplicateNames(true))
	text, err := lokt.Marshal(&c)
	if err != nil {
		text = s.Payload
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}
