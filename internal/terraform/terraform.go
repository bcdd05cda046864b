// Package terraform lets Terraform, and OpenTofu, take their state locks from a server of package httpapi: the requests of
// their HTTP backend are turned into requests for a lock. Only the lock is kept. The state belongs to another address.
package terraform

import (
	"bytes"
	"cmp"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/lokt-dev/lokt"
)

// Prefix is where the state locks are, each under the name of the lock.
const Prefix = "/v1/terraform/"

// infoKey is the key of the metadata with what Terraform says of a run.
const infoKey = "terraform"

// Bounds on the body of a request.
const (
	mostBody    = 64 << 10
	bodyTimeout = 10 * time.Second
)

// info is what Terraform says of a run. The ID, which nobody else knows, proves whose the lock is.
type info struct {
	ID        string
	Operation string
	Info      string
	Who       string
	Version   string
	Created   time.Time
	Path      string
}

// Handler answers LOCK and POST for a state lock by claiming it, UNLOCK and DELETE by releasing it. What is not about a
// state lock goes to the handler of the locks, as do the requests that it makes of these.
func Handler(locks http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, ours := strings.CutPrefix(r.URL.Path, Prefix)
		claims := r.Method == "LOCK" || r.Method == http.MethodPost
		if !ours || !claims && r.Method != "UNLOCK" && r.Method != http.MethodDelete {
			locks.ServeHTTP(w, r)
			return
		}
		control := http.NewResponseController(w)
		_ = control.SetReadDeadline(time.Now().Add(bodyTimeout)) // in tests there is none
		var run info
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, mostBody))
		if err == nil {
			err = json.Unmarshal(body, &run)
		}
		_ = control.SetReadDeadline(time.Time{})
		if err != nil || run.ID == "" {
			http.Error(w, "the body is no lock info of Terraform: this address keeps the lock, and no state", http.StatusBadRequest)
			return
		}
		if claims {
			claim(locks, w, r, name, run)
		} else {
			leaseID := leaseID(run)
			ask(locks, r, http.MethodDelete, name, "leases/"+lokt.PublicID(leaseID), nil, "Lokt-Lease", leaseID).copyTo(w)
		}
	})
}

func leaseID(run info) string { return "terraform-" + run.ID }

// claim asks for the lock, without waiting: Terraform does that itself. A refusal says who is in the way, as Terraform has it.
func claim(locks http.Handler, w http.ResponseWriter, r *http.Request, name string, run info) {
	said := run
	said.ID = ""
	text, err := json.Marshal(said)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	body, err := json.Marshal(map[string]any{
		"lease_id": leaseID(run), "owner": map[string]string{"id": cmp.Or(run.Who, "terraform")}, "strict": true, "attended": true,
		"metadata": map[string]string{infoKey: string(text)},
	})
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	a := ask(locks, r, http.MethodPost, name, "leases", body, "", "")
	var refusal struct {
		Code    string
		Detail  string
		Holders []struct {
			ID        string
			HeldSince time.Time `json:"held_since"`
			Owner     lokt.Owner
			Metadata  map[string]string
		}
	}
	if a.status == http.StatusOK || json.Unmarshal(a.body.Bytes(), &refusal) != nil || refusal.Code != "held" && refusal.Code != "frozen" {
		a.copyTo(w)
		return
	}
	other := info{ID: refusal.Detail, Info: refusal.Detail, Path: name} // the ID is all that Terraform shows
	if len(refusal.Holders) > 0 {
		h := refusal.Holders[0]
		other.Who, other.Created = h.Owner.ID, h.HeldSince
		_ = json.Unmarshal([]byte(h.Metadata[infoKey]), &other) // it may be no Terraform that holds the lock
		other.ID = h.ID
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusLocked)
	_ = json.NewEncoder(w).Encode(other) // if it cannot be written nobody is there to read it
}

// ask makes a request of the locks' handler, as whoever made the one that is answered. Terraform knows only basic
// authentication: the password is the token.
func ask(locks http.Handler, r *http.Request, method, name, rest string, body []byte, header, value string) *answer {
	inner := r.Clone(r.Context())
	inner.Method, inner.Body, inner.ContentLength = method, io.NopCloser(bytes.NewReader(body)), int64(len(body))
	inner.URL = &url.URL{Path: "/v1/locks/" + name + "/" + rest}
	if _, token, basic := r.BasicAuth(); basic {
		inner.Header.Set("Authorization", "Bearer "+token)
	}
	if header != "" {
		inner.Header.Set(header, value)
	}
	a := &answer{header: http.Header{}, status: http.StatusOK}
	locks.ServeHTTP(a, inner)
	return a
}

// answer keeps what the locks' handler answers.
type answer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (a *answer) Header() http.Header         { return a.header }
func (a *answer) WriteHeader(status int)      { a.status = status }
func (a *answer) Write(p []byte) (int, error) { return a.body.Write(p) }

func (a *answer) copyTo(w http.ResponseWriter) {
	for key, values := range a.header {
		w.Header()[key] = values
	}
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body.Bytes()) // if it cannot be written nobody is there to read it
}
