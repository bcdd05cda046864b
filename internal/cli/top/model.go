package top

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/rows"
)

// model is the state of the screen. It changes with keys and looks alone.
type model struct {
	ctx           context.Context //nolint:containedctx // of the program: bubbletea's commands are given none
	source        looker
	act           actor
	where         string
	width, height int

	shot   shot
	view   string
	filter string
	column int // to sort by; -1 for the order of attention
	down   bool
	key    string // of the row that is selected
	top    int    // the first row that is on the screen
	said   string // what came of the last thing that was done

	detail   bool
	scroll   int
	help     bool
	question *question
}

// looker looks at what there is.
type looker interface {
	look(ctx context.Context, view, key string) shot
}

// actor does what is asked for, and says what came of it.
type actor interface {
	unlock(ctx context.Context, name string, upTo uint64) (string, error) // no hold with a higher token
	freeze(ctx context.Context, name string, d time.Duration, reason string) (string, error)
	unfreeze(ctx context.Context, name, id string) (string, error)
	freezeType(ctx context.Context, jobType string, frozen bool) (string, error)
}

// question is asked before something is done.
type question struct {
	text, answer string
	then         func(answer string) (done func(context.Context) (string, error), problem string)
}

func newModel(s *source, where string, o options, column int) model {
	return model{source: s, act: s, where: where, view: o.view, filter: o.filter, column: column}
}

// Messages to the model.
type (
	lookMsg struct{}
	seenMsg struct {
		shot
		key   string        // whose details were asked for
		pause time.Duration // until the next look in turn; 0 after one out of turn
	}
	doneMsg struct {
		text string
		err  error
	}
)

// Init implements tea.Model.
func (m model) Init() tea.Cmd { return m.looking() }

// looking looks, and tells what was seen.
func (m model) looking() tea.Cmd {
	view, key := m.view, ""
	if m.detail {
		key = m.key
	}
	return func() tea.Msg {
		began := time.Now()
		return seenMsg{m.source.look(m.ctx, view, key), key, pause(began)}
	}
}

// Update implements tea.Model.
func (m model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	var then tea.Cmd
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case lookMsg:
		return m, m.looking()
	case seenMsg:
		if msg.pause > 0 {
			then = tea.Tick(msg.pause, func(time.Time) tea.Msg { return lookMsg{} })
		}
		if msg.view != m.view || m.detail && msg.key != m.key { // it was turned away from meanwhile
			break
		}
		if msg.err != nil { // what was seen last stays, with the error
			msg.rows, msg.sum, msg.detail = m.shot.rows, m.shot.sum, m.shot.detail
		}
		if m.shot = msg.shot; !m.detail {
			m.shot.detail = nil
		}
	case doneMsg:
		if m.said = msg.text; msg.err != nil {
			m.said = "failed: " + msg.err.Error()
		}
		then = m.glance()
	case tea.PasteMsg:
		if m.question != nil {
			m.question = m.question.with(m.question.answer + app.OneLine(cut(msg.Content)))
		}
	case tea.KeyPressMsg:
		if m.question != nil {
			m, then = m.answer(msg)
		} else {
			m, then = m.press(msg.String())
		}
	}
	m.keepInSight()
	return m, then
}

// glance looks out of turn.
func (m model) glance() tea.Cmd {
	look := m.looking()
	return func() tea.Msg {
		seen, _ := look().(seenMsg)
		seen.pause = 0
		return seen
	}
}

// shown returns the rows that the filter lets through, in order.
func (m *model) shown() []row {
	all := matching(m.shot.rows, m.filter)
	if m.column < 0 {
		return all
	}
	slices.SortStableFunc(all, func(a, b row) int {
		x, y := a.cells[m.column], b.cells[m.column]
		order := cmp.Or(cmp.Compare(x.number, y.number), cmp.Compare(strings.ToLower(x.text), strings.ToLower(y.text)))
		if m.down {
			return -order
		}
		return order
	})
	return all
}

// matching returns the rows with the text in any cell.
func matching(all []row, filter string) []row {
	if filter == "" {
		return slices.Clone(all)
	}
	return slices.DeleteFunc(slices.Clone(all), func(r row) bool {
		return !slices.ContainsFunc(r.cells, func(c cell) bool { return strings.Contains(strings.ToLower(c.text), strings.ToLower(filter)) })
	})
}

// selected returns the row that is selected, and where it is; the first if it is gone, and -1 if there is none, or its
// details are what is shown.
func (m *model) selected() (row, int) {
	all := m.shown()
	i := slices.IndexFunc(all, func(r row) bool { return r.key == m.key })
	if !m.detail {
		i = max(i, 0)
	}
	if i < 0 || len(all) == 0 {
		return row{}, -1
	}
	return all[i], i
}

// keepInSight keeps the selected row selected and on the screen, and the details within it.
func (m *model) keepInSight() {
	r, i := m.selected()
	if !m.detail {
		m.key = r.key
	}
	room := m.room()
	m.top = min(m.top, max(len(m.shown())-room, 0))
	m.top = max(min(m.top, i), i-room+1, 0)
	m.scroll = max(min(m.scroll, len(m.wrapped())-room), 0)
}

// room is how many rows there is room for.
func (m *model) room() int { return max(m.height-frame, 1) }

// move selects another row, or moves the details.
func (m *model) move(by int) {
	if m.detail {
		m.scroll += by
		return
	}
	if _, i := m.selected(); i >= 0 {
		all := m.shown()
		m.key = all[min(max(i+by, 0), len(all)-1)].key
	}
}

// press does what a key is for.
func (m model) press(key string) (model, tea.Cmd) {
	m.said = ""
	const far = 1 << 30
	switch key {
	case "ctrl+c":
		return m, tea.Quit
	case "ctrl+z":
		return m, stop
	case "q", "esc", "left", "h":
		switch {
		case m.help:
			m.help = false
		case m.detail:
			m.detail, m.scroll, m.shot.detail = false, 0, nil
		case key == "esc":
			m.filter = ""
		case key == "q":
			return m, tea.Quit
		}
	case "?":
		m.help = !m.help
	case "up", "k":
		m.move(-1)
	case "down", "j":
		m.move(1)
	case "pgup", "ctrl+b":
		m.move(-m.room())
	case "pgdown", "ctrl+f", "space":
		m.move(m.room())
	case "home", "g":
		m.move(-far)
	case "end", "G":
		m.move(far)
	case "1", "2", "3":
		return m.turn(views()[key[0]-'1'])
	case "tab":
		return m.turn(views()[(slices.Index(views(), m.view)+1)%len(views())])
	case "s":
		if m.column++; m.column == len(columns(m.view)) {
			m.column = -1
		}
	case "r":
		m.down = !m.down
	case "/":
		m.question = &question{text: "Only rows with this text: ", answer: m.filter}
	case "enter", "right", "l":
		if _, i := m.selected(); i >= 0 && !m.detail {
			m.detail = true
			return m, m.glance()
		}
	case "u":
		return m.askUnlock(), nil
	case "f":
		return m.askFreeze(), nil
	}
	return m, nil
}

// turn turns to another view.
func (m model) turn(view string) (model, tea.Cmd) {
	if view != m.view {
		m.view, m.shot, m.column, m.top, m.key, m.detail, m.scroll = view, shot{view: view}, -1, 0, "", false, 0
	}
	return m, m.glance()
}

// answer takes what is typed as the answer to the question.
func (m model) answer(msg tea.KeyPressMsg) (model, tea.Cmd) {
	q := m.question
	switch msg.String() {
	case "ctrl+c", "esc":
		m.question = nil
	case "backspace":
		letters := []rune(q.answer)
		m.question = q.with(string(letters[:max(len(letters)-1, 0)]))
	case "ctrl+u":
		m.question = q.with("")
	case "enter":
		m.question = nil
		if q.then == nil {
			m.filter = q.answer
			return m, nil
		}
		do, problem := q.then(strings.TrimSpace(q.answer))
		if m.said = problem; do == nil {
			return m, nil
		}
		ctx := m.ctx
		return m, func() tea.Msg {
			text, err := do(ctx)
			return doneMsg{text, err}
		}
	default:
		m.question = q.with(q.answer + app.OneLine(msg.Text))
	}
	return m, nil
}

// with returns the question with another answer.
func (q question) with(answer string) *question {
	q.answer = answer
	return &q
}

// askUnlock asks for the lock's name before all its holds are ended.
func (m model) askUnlock() model {
	r, i := m.selected()
	l, lock := r.value.(*rows.Lock)
	switch {
	case i < 0:
		m.said = gone
		return m
	case !lock:
		m.said = "only holds of locks can be ended here"
		return m
	case l.State == rows.Unreadable:
		m.said = "its record cannot be read: lokt unlock " + r.key + " --force"
		return m
	case l.Holders == 0:
		m.said = "nobody holds " + r.key
		return m
	}
	name, upTo := r.key, l.Token
	m.question = &question{
		text: fmt.Sprintf("Whoever holds %s may still be at work. To end all holds type its name: ", name),
		then: func(answer string) (func(context.Context) (string, error), string) {
			if answer != name {
				return nil, "that is not its name: nothing was done"
			}
			return func(ctx context.Context) (string, error) { return m.act.unlock(ctx, name, upTo) }, ""
		},
	}
	return m
}

// askFreeze asks for how long a lock is to be frozen, or whether it, or the type of a job, is to be frozen or not.
func (m model) askFreeze() model {
	r, i := m.selected()
	switch l := r.value.(type) {
	case *rows.Lock:
		if l.State == rows.Frozen || l.Freeze != "" { // an overdue holder comes first
			return m.confirm("Unfreeze "+r.key, func(ctx context.Context) (string, error) { return m.act.unfreeze(ctx, r.key, l.Freeze) })
		}
		m.question = &question{
			text: "Freeze " + r.key + " for how long, and why: ", answer: "15m ",
			then: func(answer string) (func(context.Context) (string, error), string) {
				long, reason, _ := strings.Cut(answer, " ")
				d, err := time.ParseDuration(long)
				if err != nil || d <= 0 {
					return nil, fmt.Sprintf("%q is no duration such as 90s, 15m or 2h: nothing was done", long)
				}
				return func(ctx context.Context) (string, error) {
					return m.act.freeze(ctx, r.key, d, strings.TrimSpace(reason))
				}, ""
			},
		}
	case rows.Job:
		what := "Freeze all jobs of type " + l.Type
		if r.frozen {
			what = "Unfreeze jobs of type " + l.Type
		}
		return m.confirm(what, func(ctx context.Context) (string, error) { return m.act.freezeType(ctx, l.Type, !r.frozen) })
	default:
		if m.said = gone; i >= 0 {
			m.said = "workers cannot be frozen: freeze a type of jobs"
		}
	}
	return m
}

// gone is said where there is nothing to act on.
const gone = "it is not on the list any more: nothing was done"

// confirm asks whether something is to be done.
func (m model) confirm(what string, do func(context.Context) (string, error)) model {
	m.question = &question{text: what + "? Type yes: ", then: func(answer string) (func(context.Context) (string, error), string) {
		if !strings.EqualFold(answer, "yes") && !strings.EqualFold(answer, "y") {
			return nil, "nothing was done"
		}
		return do, ""
	}}
	return m
}
