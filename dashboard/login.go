package dashboard

import (
	"errors"
	"net/http"
	"strings"
	"time"
)

// cookieName is the cookie that keeps the person's token: the API's, and no session of its own.
const cookieName = "lokt_token"

// withCookie returns the request with the token of the cookie where the API expects it.
func withCookie(r *http.Request) *http.Request {
	if r.Header.Get("Authorization") != "" {
		return r
	}
	cookie, err := r.Cookie(cookieName)
	if err != nil {
		return r
	}
	with := r.Clone(r.Context())
	with.Header.Set("Authorization", "Bearer "+cookie.Value)
	return with
}

// LoggedIn reports whether there is something to log out of, as there is not with a certificate.
func (v *visit) LoggedIn() bool { return len(v.r.CookiesNamed(cookieName)) > 0 }

// here returns the path of this site to go to, whatever was asked for.
func here(next string) string {
	if !strings.HasPrefix(next, "/") || strings.HasPrefix(next, "//") || strings.ContainsAny(next, "\\\r\n\t") {
		return "/"
	}
	return next
}

// loginBody is what the login page knows.
type loginBody struct {
	Next string `json:"next"`
}

func (d *Dashboard) login(w http.ResponseWriter, r *http.Request) { d.showLogin(w, r, false) }

func (d *Dashboard) showLogin(w http.ResponseWriter, r *http.Request, refused bool) {
	v := &visit{Dashboard: d, r: r, caller: nobody{}}
	if d.Enter == nil {
		http.Redirect(w, r, "/", http.StatusSeeOther)
		return
	}
	status := http.StatusOK
	if refused {
		status = http.StatusUnauthorized
	}
	body := loginBody{here(r.FormValue("next"))}
	text, err := d.render(&page{Title: "Log in", Body: body, visit: v, Screen: "login", Now: time.Now(), Refused: refused})
	if err != nil {
		d.fail(w, v, err)
		return
	}
	write(w, r, status, text)
}

// enter logs in who has a token.
func (d *Dashboard) enter(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, 8<<10)
	token := strings.TrimSpace(r.PostFormValue("token"))
	c := &http.Cookie{
		Name: cookieName, Value: token, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: d.TLS, MaxAge: 12 * 60 * 60,
	}
	ok := d.Enter != nil && token != "" && c.Valid() == nil
	if ok {
		try := r.Clone(r.Context())
		try.Header.Set("Authorization", "Bearer "+token)
		_, err := d.Enter(try)
		if ok = err == nil; errors.Is(err, ErrTooOften) {
			d.fail(w, &visit{Dashboard: d, r: r, caller: nobody{}}, err)
			return
		}
	}
	if !ok {
		d.showLogin(w, r, true)
		return
	}
	http.SetCookie(w, c)
	http.Redirect(w, r, here(r.PostFormValue("next")), http.StatusSeeOther)
}

// logout forgets the token.
func (d *Dashboard) logout(w http.ResponseWriter, r *http.Request) {
	http.SetCookie(w, &http.Cookie{Name: cookieName, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: d.TLS, MaxAge: -1})
	http.Redirect(w, r, "/login", http.StatusSeeOther)
}
