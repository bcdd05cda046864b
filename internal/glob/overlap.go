package glob

import "slices"

// form is how far a path has come that is to be a clean one: no segment is empty, "." or "..".
type form int

const (
	begun  form = iota // a segment is to begin
	dot                // it is "." so far
	dots               // it is ".." so far
	proper             // it is fine
	forms              // how many there are
)

// after returns the form after a character; ok is false if no clean path goes on so.
func (f form) after(r rune) (next form, ok bool) {
	switch {
	case r == '/':
		return begun, f == proper
	case r == '.' && f <= dot:
		return f + 1, true
	}
	return proper, true
}

// product walks the automata of two patterns, and that of clean paths, side by side.
type product struct {
	a, b *Glob
	came []step // by place
	next []int  // places that were reached and not left yet
}

// step says how a place was reached.
type step struct {
	from int  // 1 more than the place before; 0 if there is none
	by   rune // 0 for none
	seen bool
}

func (p *product) reach(a, b int, f form, s step) {
	at := (a*len(p.b.states)+b)*int(forms) + int(f)
	if !p.came[at].seen {
		s.seen = true
		p.came[at] = s
		p.next = append(p.next, at)
	}
}

// Overlap reports whether there is a path that both patterns match, and returns a shortest one.
//
// It walks the product of the two automata, and of the one of clean paths, breadth first: there are no more places than
// their numbers of states multiplied.
func Overlap(a, b *Glob) (path string, ok bool) {
	p := &product{a: a, b: b, came: make([]step, len(a.states)*len(b.states)*int(forms))}
	for _, i := range a.starts {
		for _, j := range b.starts {
			p.reach(i, j, begun, step{})
		}
	}
	for len(p.next) > 0 { // one character more with each round
		layer := p.next
		for i := 0; i < len(layer); i++ { // what is reached without one belongs to the same
			at, s, t, f := p.place(layer[i])
			p.next = nil
			for _, to := range s.skip {
				p.reach(to, at.b, f, step{from: layer[i] + 1})
			}
			for _, to := range t.skip {
				p.reach(at.a, to, f, step{from: layer[i] + 1})
			}
			layer = append(layer, p.next...)
		}
		p.next = nil
		for _, at := range layer {
			_, s, t, f := p.place(at)
			if s.final && t.final && f == proper {
				return p.trace(at), true
			}
			for _, x := range s.edges {
				for _, y := range t.edges {
					p.cross(at, f, x, y)
				}
			}
		}
	}
	return "", false
}

type pair struct{ a, b int }

// place returns the states that a place is made of.
func (p *product) place(at int) (pair, state, state, form) {
	f, rest := form(at%int(forms)), at/int(forms)
	i, j := rest/len(p.b.states), rest%len(p.b.states)
	return pair{i, j}, p.a.states[i], p.b.states[j], f
}

// cross goes where both edges lead, by one character for each form of the path that there can be then.
func (p *product) cross(at int, f form, x, y edge) {
	r, one := x.on.one()
	if !one {
		r, one = y.on.one()
	}
	if one {
		if to, fine := f.after(r); fine && x.on.has(r) && y.on.has(r) {
			p.reach(x.to, y.to, to, step{from: at + 1, by: r})
		}
		return
	}
	for to := begun; to < forms; to++ {
		leads := func(r rune) bool { next, fine := f.after(r); return fine && next == to }
		if r, some := common(x.on, y.on, leads); some {
			p.reach(x.to, y.to, to, step{from: at + 1, by: r})
		}
	}
}

// trace returns the path that leads to a place.
func (p *product) trace(at int) string {
	var back []rune
	for s := p.came[at]; s.from > 0; s = p.came[s.from-1] {
		if s.by != 0 {
			back = append(back, s.by)
		}
	}
	slices.Reverse(back)
	return string(back)
}
