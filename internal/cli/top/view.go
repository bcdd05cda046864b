package top

import (
	"fmt"
	"strings"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/rows"
	"github.com/lokt-dev/lokt/jobs"
)

// frame is how many lines of the screen are no rows: what is looked at, the sum, the heads of the columns, and the last
// line.
const frame = 4

// Select graphic rendition, as in ECMA-48. Colour is never all that tells: the state is said in words, too.
const (
	bold    = "\x1b[1m"
	reverse = "\x1b[7m"
	red     = "\x1b[31m"
	yellow  = "\x1b[33m"
	cyan    = "\x1b[36m"
	normal  = "\x1b[m"
)

func colour(state string) string {
	switch state {
	case rows.Unreadable, rows.Overdue, string(jobs.Failed), string(jobs.Expired):
		return red
	case rows.Stale, rows.Waiting, string(jobs.Cancelled):
		return yellow
	case rows.Frozen:
		return cyan
	}
	return ""
}

// View implements tea.Model.
func (m model) View() tea.View {
	v := tea.NewView("")
	v.AltScreen = true
	if m.width < 1 || m.height < 1 { // not known yet
		return v
	}
	body := m.table
	switch {
	case m.help:
		body = m.helpLines
	case m.detail:
		body = m.detailLines
	}
	lines := append(m.head(), body()...)
	for len(lines) < m.height-1 {
		lines = append(lines, "")
	}
	lines = lines[:m.height-1]
	last, cursor := m.last()
	if cursor >= 0 {
		v.Cursor = tea.NewCursor(min(cursor, m.width-1), m.height-1)
	}
	v.SetContent(strings.Join(append(lines, last), "\n"))
	return v
}

// fit makes a line of text as wide as the screen, or shorter.
func (m *model) fit(text string) string { return ansi.Truncate(app.OneLine(cut(text)), m.width, "…") }

// head is the first two lines.
func (m *model) head() []string {
	title := "lokt top "
	for i, view := range views() {
		if view == m.view {
			title += fmt.Sprintf(" [%d %s]", i+1, view)
		} else {
			title += fmt.Sprintf("  %d %s ", i+1, view)
		}
	}
	sum := m.shot.sum
	if m.filter != "" {
		sum = fmt.Sprintf("%d of %d rows with %q  %s", len(m.shown()), len(m.shot.rows), m.filter, sum)
	}
	return []string{bold + m.fit(title+"  "+m.where) + normal, m.fit(sum)}
}

// last is the last line, and where the cursor is in it, or -1.
func (m *model) last() (line string, cursor int) {
	switch {
	case m.question != nil:
		line = app.OneLine(m.question.text + m.question.answer)
		cursor = ansi.StringWidth(line)
		if over := cursor - m.width + 1; over > 0 { // its end is what matters
			line, cursor = ansi.TruncateLeft(line, over, ""), m.width-1
		}
		return line, cursor
	case m.said != "":
		return bold + m.fit(m.said) + normal, -1
	case m.shot.err != nil:
		return red + m.fit("out of date: "+m.shot.err.Error()) + normal, -1
	}
	return m.fit("? keys  / filter  s sort  enter details  u end holds  f freeze  q quit"), -1
}

// table is the heads of the columns, and the rows that there is room for.
func (m *model) table() []string {
	all := m.shown()
	all = all[min(m.top, len(all)):min(m.top+m.room(), len(all))]
	heads := columns(m.view)
	if m.column >= 0 {
		mark := "▲"
		if m.down {
			mark = "▼"
		}
		heads[m.column] += mark
	}
	cells := [][]string{heads}
	for _, r := range all {
		line := make([]string, len(r.cells))
		for i, c := range r.cells {
			line[i] = ansi.Truncate(app.OneLine(cut(c.text)), m.width, "…")
		}
		cells = append(cells, line)
	}
	widths := m.widths(cells)
	var lines []string
	for i, line := range cells {
		mark := "  "
		if i > 0 && all[i-1].key == m.key {
			mark = "> "
		}
		text := mark
		for j, c := range line {
			if widths[j] == 0 {
				continue
			}
			c = ansi.Truncate(c, widths[j], "…")
			text += c + strings.Repeat(" ", widths[j]-ansi.StringWidth(c)+gap)
		}
		text = ansi.Truncate(text, m.width, "")
		switch {
		case i == 0:
			text = bold + text + normal
		case mark == "> ":
			text = reverse + text + normal
		default:
			if paint := colour(all[i-1].state); paint != "" {
				text = paint + text + normal
			}
		}
		lines = append(lines, text)
	}
	return lines
}

// gap is between two columns, and narrow is a width that no column need be narrower than.
const (
	gap    = 2
	narrow = 10
)

// widths returns how wide each column is: as wide as its widest cell, or narrower where that is too much for the screen.
// A column without anything in it is left out.
func (m *model) widths(cells [][]string) []int {
	widths := make([]int, len(cells[0]))
	used := make([]bool, len(widths))
	for i, line := range cells {
		for j, c := range line {
			widths[j] = max(widths[j], ansi.StringWidth(c))
			used[j] = used[j] || i > 0 && c != ""
		}
	}
	sum := gap
	for j := range widths {
		if !used[j] && len(cells) > 1 {
			widths[j] = 0
		} else {
			sum += widths[j] + gap
		}
	}
	for sum-gap > m.width {
		widest := 0
		for j := range widths {
			if widths[j] > widths[widest] {
				widest = j
			}
		}
		if widths[widest] <= narrow {
			break
		}
		widths[widest]--
		sum--
	}
	return widths
}

// detailLines is the details of the row that is selected.
func (m *model) detailLines() []string {
	lines := []string{bold + m.fit(strings.TrimSuffix(m.view, "s")+" "+m.key) + normal}
	all := m.wrapped()
	if m.shot.detail == nil {
		all = []string{"…"}
	}
	return append(lines, all[min(m.scroll, len(all)):min(m.scroll+m.room(), len(all))]...)
}

// wrapped is the details, long lines in several.
func (m *model) wrapped() (lines []string) {
	for _, line := range m.shot.detail {
		lines = append(lines, strings.Split(ansi.Wrap(app.OneLine(cut(line)), m.width, ""), "\n")...)
	}
	return lines
}

// helpLines says what keys are for.
func (m *model) helpLines() (lines []string) {
	for line := range strings.SplitSeq(keyHelp, "\n") {
		lines = append(lines, m.fit(line))
	}
	return lines
}

const keyHelp = `
  1 2 3, tab     locks, jobs, workers
  ↑ ↓ j k        another row; page up, page down, home and end, too
  enter, esc     details of the row, and back
  /              only rows with a text; esc for all
  s  r           sort by the next column; the other way round
  u              end all holds of the lock, once its name is typed
  f              freeze or unfreeze the lock, or jobs of the type
  ctrl-z         back to the shell for a while
  q, ctrl-c      end`
