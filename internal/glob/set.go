package glob

import (
	"errors"
	"fmt"
	"unicode/utf8"
)

// span is a range of characters, both ends included.
type span struct{ from, to rune }

// set is some characters: those within its spans, or all others. Without the slash it is one that is negated.
type set struct {
	spans []span
	not   bool
}

func only(r rune) set   { return set{spans: []span{{r, r}}} }
func others(r rune) set { return set{spans: []span{{r, r}}, not: true} }
func all() set          { return set{not: true} }

// one returns the only character of the set, if there is only one.
func (s set) one() (rune, bool) {
	if s.not || len(s.spans) != 1 || s.spans[0].from != s.spans[0].to {
		return 0, false
	}
	return s.spans[0].from, true
}

func (s set) has(r rune) bool {
	for _, p := range s.spans {
		if p.from <= r && r <= p.to {
			return !s.not
		}
	}
	return s.not
}

// surrogates are numbers between those of characters.
var surrogates = span{0xd800, 0xdfff}

// common returns a character that is in both sets and satisfies ok. Sets change at the ends of their spans only, so
// looking there, and behind them, finds one if there is any.
func common(a, b set, ok func(rune) bool) (rune, bool) {
	try := func(r rune) bool { return r > 0 && utf8.ValidRune(r) && a.has(r) && b.has(r) && ok(r) }
	for _, s := range []set{a, b, {spans: []span{{'.', '/'}, {'a', 'a'}}}} {
		for _, p := range s.spans {
			for _, r := range []rune{p.from, p.to, p.from - 1, p.to + 1, surrogates.from - 1, surrogates.to + 1} {
				if try(r) {
					return r, true
				}
			}
		}
	}
	return 0, false
}

// parseClass reads the characters of [...] up to the bracket that ends it. It never has the slash.
func parseClass(text string) (class set, rest string, err error) {
	unclosed := errors.New("a [ without a ]")
	if text != "" && (text[0] == '!' || text[0] == '^') {
		class.not, text = true, text[1:]
		class.spans = append(class.spans, span{'/', '/'})
	}
	one := func() (rune, error) {
		if text == "" {
			return 0, unclosed
		}
		r, n := utf8.DecodeRuneInString(text)
		if text = text[n:]; r != '\\' {
			return r, nil
		}
		if text == "" {
			return 0, unclosed
		}
		r, n = utf8.DecodeRuneInString(text)
		text = text[n:]
		return r, nil
	}
	for first := true; first || text == "" || text[0] != ']'; first = false {
		from, err := one()
		if err != nil {
			return set{}, "", err
		}
		to := from
		if len(text) > 1 && text[0] == '-' && text[1] != ']' {
			text = text[1:]
			if to, err = one(); err != nil {
				return set{}, "", err
			}
		}
		if from > to || from <= '/' && '/' <= to && !class.not {
			return set{}, "", fmt.Errorf("[...] has %c-%c, which is backwards or has a slash in it", from, to)
		}
		class.spans = append(class.spans, span{from, to})
	}
	return class, text[1:], nil
}
