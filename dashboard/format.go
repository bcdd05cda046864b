package dashboard

import (
	"fmt"
	"html/template"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/rows"
)

// functions are what templates call.
func functions() template.FuncMap {
	return template.FuncMap{
		"ago": ago, "short": short, "clean": clean, "clock": clock, "pretty": pretty, "percent": percent, "cut": cut,
		"sub": func(a, b time.Time) time.Duration { return a.Sub(b) },
		"add": func(a, b int) int { return a + b },
		"scope": func(name string) Scope {
			return Scope(name)
		},
		"events": func(all []lokt.LoggedEvent, named bool) eventList { return eventList{all, named} },
		"query":  func(encoded string) template.URL { return template.URL(encoded) }, // by url.Values
		"errortext": func(v jsontext.Value) string {
			text := rows.ErrorText(v)
			if text == string(v) {
				return pretty(v)
			}
			return clean(text[:min(len(text), mostShown)])
		},
	}
}

// eventList is what the template of events needs.
type eventList struct {
	Events []lokt.LoggedEvent
	Named  bool // they are of several locks
}

// short writes a duration for people, in at most two units.
func short(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d min %d s", int(d.Minutes()), int(d.Seconds())%60)
	case d < 24*time.Hour:
		return fmt.Sprintf("%d h %d min", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%d d %d h", int(d.Hours())/24, int(d.Hours())%24)
}

// ago is a time that the page's script keeps up to date.
func ago(t, now time.Time) template.HTML {
	if t.IsZero() {
		return ""
	}
	return template.HTML(fmt.Sprintf(`<time class="ago" datetime="%s" title="%s">%s</time>`, // only digits and our own words
		t.UTC().Format(time.RFC3339Nano), t.UTC().Format("2006-01-02 15:04:05 UTC"), short(now.Sub(t))))
}

func clock(t time.Time) string { return t.UTC().Format("01-02 15:04:05") }

// clean writes what others have chosen so that it can neither hide nor reorder what stands beside it.
func clean(v any) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' || unicode.Is(unicode.Cf, r) {
			return '\uFFFD'
		}
		return r
	}, fmt.Sprint(v))
}

// editable writes JSON on one line as clean does, and yet as the same value: what could hide or reorder is escaped.
func editable(v jsontext.Value) string {
	var b strings.Builder
	for _, r := range string(v) {
		if unicode.Is(unicode.Cf, r) {
			for _, unit := range utf16.AppendRune(nil, r) {
				fmt.Fprintf(&b, `\u%04x`, unit)
			}
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// mostShown is how much is shown of a payload or an error, in bytes.
const mostShown = 20 << 10

// cut shortens what is too long for a cell.
func cut(s any) string {
	text := clean(s)
	if runes := []rune(text); len(runes) > 120 {
		return string(runes[:119]) + "…"
	}
	return text
}

// pretty writes JSON with indents.
func pretty(v jsontext.Value) string {
	p := v.Clone()
	if p.Indent(jsontext.WithIndent("  ")) != nil {
		p = v
	}
	if len(p) > mostShown {
		return clean(strings.ToValidUTF8(string(p[:mostShown]), "")) + fmt.Sprintf("\n… and %d bytes more", len(p)-mostShown)
	}
	return clean(string(p))
}

func percent(f *float64) string {
	if f == nil {
		return ""
	}
	return fmt.Sprintf("%.0f %%", *f*100)
}
