package history

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/audit"
)

// leftOut stands for patterns of paths.
const leftOut = "?"

// Redactor returns what puts pseudonyms into events, for all that tells who, where and of what: the same for the same. They are made
// with a key that nobody else has, so that nobody finds out by trying names. Of names, times, tokens and paths, those in keep stay as
// they are; otherwise between times, and between tokens of a lock, the differences stay.
func Redactor(keep ...string) func(audit.Entry) audit.Entry {
	key, begin, first := make([]byte, 32), time.Time{}, map[string]uint64{}
	_, _ = rand.Read(key) // documented never to fail
	const whole = "\x00"  // separates nothing: it is in no name
	// Owners have pseudonyms in parts, as nothing tells where a host begins in "ann@example.com".
	pseudonym := func(kind, text, between string) string {
		parts := strings.Split(text, between)
		for i, part := range parts {
			if kind == "L" {
				part = shown(part)
			}
			mac := hmac.New(sha256.New, key)
			if fmt.Fprint(mac, kind, "\x00", part); part != "" {
				parts[i] = kind + "-" + hex.EncodeToString(mac.Sum(nil)[:10])
			}
		}
		return strings.Join(parts, between)
	}
	return func(e audit.Entry) audit.Entry {
		out := audit.Entry{TS: e.TS, Event: e.Event, Name: e.Name, LockID: pseudonym("L", e.LockID, " "), Owner: pseudonym("owner", e.Owner, "@"), Host: pseudonym("owner", e.Host, "@"),
			AgentID: pseudonym("agent", e.AgentID, whole), TTLSec: e.TTLSec, Extra: map[string]any{}}
		for k := range e.Extra {
			switch text := extra(e, k); k {
			case lokt.ExtraLeaseWas, lokt.ExtraPassed:
				out.Extra[k] = pseudonym("L", text, " ")
			case lokt.ExtraTo, lokt.ExtraBy, lokt.ExtraDisplaced:
				out.Extra[k] = pseudonym("owner", text, "@")
			case lokt.ExtraReason, lokt.ExtraOutcome, lokt.ExtraTerms, lokt.ExtraWaited:
				if k == lokt.ExtraTerms || !strings.Contains(text, " ") { // others are sentences, with names
					out.Extra[k] = text
				}
			case "paths":
				if out.Extra[k] = leftOut; slices.Contains(keep, k) {
					out.Extra[k] = text
				}
			case audit.ExtraToken:
				token := number(e, k)
				if _, known := first[e.Name]; !known && !slices.Contains(keep, "tokens") {
					first[e.Name] = token - 1<<62 // so that one that falls does not fall below 0
				}
				out.Extra[k] = json.Number(fmt.Sprint(token - first[e.Name]))
			}
		}
		if !slices.Contains(keep, "names") {
			out.Name = pseudonym("lock", e.Name, whole)
		}
		if begin.IsZero() {
			begin = e.TS
		}
		if !slices.Contains(keep, "times") {
			out.TS = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).Add(e.TS.Sub(begin))
		}
		return out
	}
}
