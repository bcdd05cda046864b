package top

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/lokt-dev/lokt/internal/rows"
)

// fake is what a model looks at and acts on.
type fake struct {
	shot shot
	did  []string
	err  error
}

func (f *fake) look(context.Context, string, string) shot { return f.shot }
func (f *fake) unlock(_ context.Context, name string, upTo uint64) (string, error) {
	f.did = append(f.did, fmt.Sprint("unlock ", name, " up to ", upTo))
	return "done", f.err
}
func (f *fake) freeze(_ context.Context, name string, d time.Duration, reason string) (string, error) {
	f.did = append(f.did, fmt.Sprintf("freeze %s %v %q", name, d, reason))
	return "done", f.err
}
func (f *fake) unfreeze(_ context.Context, name, id string) (string, error) {
	f.did = append(f.did, fmt.Sprint("unfreeze ", name, " ", id))
	return "done", f.err
}
func (f *fake) freezeType(_ context.Context, jobType string, frozen bool) (string, error) {
	f.did = append(f.did, fmt.Sprintf("type %s %v", jobType, frozen))
	return "done", f.err
}

// lockRow is a row as the source makes it.
func lockRow(name, state, holder string, held time.Duration, waiting int) row {
	now := time.Now()
	l := &rows.Lock{Name: name, State: state, Holder: holder, Holders: 1, Waiting: waiting, Token: 7}
	if state == rows.Frozen {
		l.Freeze = "L-" + name
	}
	return row{key: name, state: state, value: l, cells: []cell{
		text(name), text(state), text(holder), {held.String(), int64(held)}, {}, count(waiting), since(time.Time{}, now), {"7", 7}, {},
	}}
}

func some() []row {
	return []row{
		lockRow("deploy", rows.Frozen, "", time.Second, 0), lockRow("build", rows.Waiting, "ana@laptop", 90*time.Second, 12),
		lockRow("db", rows.Held, "ben@ci", 5*time.Second, 0), lockRow("gpu", rows.Held, "cy@ci", time.Hour, 3),
	}
}

// opened returns a model that has seen the rows, on a screen of that size.
func opened(f *fake, width, height int) model {
	m := model{source: f, act: f, where: "in /repo/.git/lokt", view: locksView, column: -1, ctx: context.Background()}
	m = after(m, tea.WindowSizeMsg{Width: width, Height: height})
	return after(m, seenMsg{shot: f.shot})
}

// after returns the model after a message and what follows from it at once.
func after(m model, msg tea.Msg) model {
	next, then := m.Update(msg)
	m = next.(model)
	if then != nil {
		if msg := then(); msg != nil {
			if _, quit := msg.(tea.QuitMsg); !quit {
				next, _ = m.Update(msg)
				m = next.(model)
			}
		}
	}
	return m
}

// typed returns the model after keys: each letter one, and the names of others in <>.
func typed(m model, keys string) model {
	codes := map[string]rune{"enter": tea.KeyEnter, "esc": tea.KeyEscape, "down": tea.KeyDown, "up": tea.KeyUp, "end": tea.KeyEnd, "home": tea.KeyHome,
		"back": tea.KeyBackspace, "tab": tea.KeyTab}
	for keys != "" {
		if name, rest, named := strings.Cut(strings.TrimPrefix(keys, "<"), ">"); named && keys[0] == '<' {
			m, keys = after(m, tea.KeyPressMsg{Code: codes[name]}), rest
			continue
		}
		m, keys = after(m, tea.KeyPressMsg{Code: rune(keys[0]), Text: keys[:1]}), keys[1:]
	}
	return m
}

// screen is what is drawn, without colours and without spaces at the ends of lines.
func screen(m model) string {
	var lines []string
	for line := range strings.SplitSeq(ansi.Strip(m.View().Content), "\n") {
		lines = append(lines, strings.TrimRight(line, " "))
	}
	return strings.Join(lines, "\n")
}

func TestTheScreenIsDrawnToItsSize(t *testing.T) {
	f := &fake{shot: shot{view: locksView, rows: some(), sum: "1 frozen  1 waited for  2 held"}}
	want := `lokt top  [1 locks]  2 jobs   3 workers   in /repo/.git/lokt
1 frozen  1 waited for  2 held
  LOCK    STATE       HOLDER      HELD    WAITING  TOKEN
> deploy  frozen                  1s               7
  build   waited for  ana@laptop  1m30s   12       7
  db      held        ben@ci      5s               7
  gpu     held        cy@ci       1h0m0s  3        7` + strings.Repeat("\n", 17) + "? keys  / filter  s sort  enter details  u end holds  f freeze  q quit"
	if got := screen(opened(f, 80, 24)); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	for _, size := range [][2]int{{1, 1}, {2, 2}, {5, 3}, {20, 5}, {40, 10}, {80, 24}, {300, 100}} {
		m := opened(f, size[0], size[1])
		for _, keys := range []string{"", "?", "<esc><enter>", "<esc>u", "<esc>s", "/abcdefghijklmnopqrstuvwxyz"} {
			m = typed(m, keys)
			lines := strings.Split(m.View().Content, "\n")
			if len(lines) != size[1] {
				t.Errorf("%v after %q: %d lines", size, keys, len(lines))
			}
			for _, line := range lines {
				if ansi.StringWidth(line) > size[0] {
					t.Errorf("%v after %q: %q is too wide", size, keys, line)
				}
			}
		}
	}
}

func TestTheSelectedRowStaysSelectedWhereverItGoes(t *testing.T) {
	f := &fake{shot: shot{view: locksView, rows: some()}}
	m := typed(opened(f, 80, 6), "<down><down>") // there is room for two rows
	if !strings.Contains(screen(m), "> db") {
		t.Error(screen(m))
	}
	all := some()
	f.shot.rows = []row{all[2], all[0], lockRow("new", rows.Held, "x", 0, 0), all[1], all[3]}
	if m = after(m, seenMsg{shot: f.shot}); !strings.Contains(screen(m), "> db") {
		t.Error(screen(m))
	}
	f.shot.rows = all[:1]
	if m = after(m, seenMsg{shot: f.shot}); !strings.Contains(screen(m), "> deploy") {
		t.Error(screen(m))
	}
	f.shot.rows = nil
	if m = after(typed(m, "<end>"), seenMsg{shot: f.shot}); strings.Contains(screen(m), ">") {
		t.Error(screen(m))
	}
}

func TestRowsAreSortedByNumberAndFiltered(t *testing.T) {
	f := &fake{shot: shot{view: locksView, rows: some()}}
	order := func(m model) (names string) {
		for _, r := range m.shown() {
			names += r.key + " "
		}
		return names
	}
	m := opened(f, 80, 24)
	for _, step := range []struct{ keys, want string }{
		{"", "deploy build db gpu "}, {"s", "build db deploy gpu "}, {"sss", "deploy db build gpu "}, {"r", "gpu build db deploy "},
		{"/CI<enter>", "gpu db "}, {"<esc>sssssr", "deploy build db gpu "}, {"/", "deploy build db gpu "},
	} {
		if m = typed(m, step.keys); order(m) != step.want {
			t.Errorf("after %q (column %d): %s, want %s", step.keys, m.column, order(m), step.want)
		}
	}
}

func TestNothingIsEndedUnlessTheNameIsTyped(t *testing.T) {
	f := &fake{shot: shot{view: locksView, rows: some()}}
	m := typed(opened(f, 80, 24), "<down>u")
	if s := screen(m); !strings.Contains(s, "To end all holds type its name:") || m.View().Cursor == nil {
		t.Error(s)
	}
	for _, keys := range []string{"build<esc>", "ubuidl<enter>", "u<enter>", "uyes<enter>"} {
		if m = typed(m, keys); len(f.did) > 0 {
			t.Fatalf("after %q: %v", keys, f.did)
		}
	}
	if m = typed(m, "ubuildx<back><enter>"); fmt.Sprint(f.did) != "[unlock build up to 7]" {
		t.Error(f.did)
	}
	f.did, f.err = nil, errors.New("no")
	m = typed(m, "ubuild<enter>")
	if !strings.Contains(screen(m), "failed: no") {
		t.Error(screen(m))
	}
}

// Promise S-370.
func TestWhatIsAskedIsAboutWhatWasSeen(t *testing.T) {
	f := &fake{shot: shot{view: locksView, rows: some()}}
	m := typed(opened(f, 80, 24), "<down>u")
	f.shot.rows = []row{lockRow("build", rows.Held, "ben@ci", 0, 0)} // it was granted while the name is typed
	f.shot.rows[0].value.(*rows.Lock).Token = 8
	m = typed(after(m, seenMsg{shot: f.shot}), "build<enter>")
	f.shot.rows = some()
	m = typed(after(m, seenMsg{shot: f.shot}), "<home>f")
	f.shot.rows = some()
	f.shot.rows[0].value.(*rows.Lock).Freeze = "L-another"
	typed(after(m, seenMsg{shot: f.shot}), "yes<enter>")
	if got := fmt.Sprint(f.did); got != "[unlock build up to 7 unfreeze deploy L-deploy]" {
		t.Error(got)
	}
}

func TestKeysInDetailsOfWhatIsGoneActOnNothingElse(t *testing.T) {
	for _, key := range []string{"u", "f"} {
		f := &fake{shot: shot{view: locksView, rows: some()}}
		m := typed(opened(f, 80, 24), "<end><enter>")
		f.shot.rows = some()[:3]
		m = typed(after(m, seenMsg{shot: f.shot, key: "gpu"}), key)
		if s := screen(m); m.question != nil || !strings.Contains(s, gone) {
			t.Errorf("after %q:\n%s", key, s)
		}
		if m = typed(m, "<esc><enter>"); m.key != "deploy" || m.question != nil {
			t.Errorf("back in the list, %q is selected", m.key)
		}
	}
}

func TestAFreezeHasADurationAndAReason(t *testing.T) {
	f := &fake{shot: shot{view: locksView, rows: some()}}
	m := typed(opened(f, 80, 24), "<down>frelease 4<enter>")
	m = typed(m, "f<back><back><back><back>soon<enter>")
	if !strings.Contains(screen(m), `"soon" is no duration`) {
		t.Error(screen(m))
	}
	m = typed(m, "<home>fno<enter>fyes<enter>")
	f.shot.rows[3].value.(*rows.Lock).Freeze = "L-gpu" // and its holder is overdue
	m = typed(m, "<end>fyes<enter>")
	want := "[freeze build 15m0s \"release 4\" unfreeze deploy L-deploy unfreeze gpu L-gpu]"
	if got := fmt.Sprint(f.did); got != want {
		t.Errorf("%s, want %s\n%s", got, want, screen(m))
	}
}

func TestHostileTextIsShownAndNotObeyed(t *testing.T) {
	evil := "\x1b[2J\x1b]0;title\a\u202e\u200f\u009b31m" + strings.Repeat("x", 1<<20)
	r := lockRow("evil", rows.Held, evil, 0, 0)
	f := &fake{shot: shot{view: locksView, rows: []row{r}, sum: evil, detail: []string{evil}, err: errors.New(evil)}}
	for _, keys := range []string{"", "<enter>", "u", "?"} {
		m := typed(opened(f, 80, 24), keys)
		content := m.View().Content
		for _, own := range []string{bold, reverse, red, normal} {
			content = strings.ReplaceAll(content, own, "")
		}
		if strings.ContainsAny(content, "\x1b\a\u202e\u200f\u009b") || len(content) > 80*24*4 {
			t.Errorf("after %q: %.200q", keys, content)
		}
	}
}

func TestWhatFailsIsSaidAndWhatWasSeenStays(t *testing.T) {
	f := &fake{shot: shot{view: locksView, rows: some()}}
	m := after(opened(f, 80, 24), seenMsg{shot: shot{view: locksView, err: errors.New("no server")}})
	if s := screen(m); !strings.Contains(s, "out of date: no server") || !strings.Contains(s, "ana@laptop") {
		t.Error(s)
	}
	m = after(m, seenMsg{shot: shot{view: jobsView, sum: "late"}}) // of a view that was turned away from
	if s := screen(m); strings.Contains(s, "late") {
		t.Error(s)
	}
}
