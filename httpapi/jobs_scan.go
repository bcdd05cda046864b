package httpapi

// A strict reader of JSON text, for the scheduler's bodies. encoding/json matches member names without regard to case,
// takes broken UTF-8 and half surrogates, and finds values by reflection; the routes that workers call all the time can
// do without any of it. Values that are only passed on are never copied apart: they stay as they were sent.

import (
	"math"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// maxNesting is how deep arrays and objects may be nested in a body.
const maxNesting = 200

// skipSpace returns where the first byte at or after i stands that is no white space.
func skipSpace(data []byte, i int) int {
	for i < len(data) && (data[i] == ' ' || data[i] == '\n' || data[i] == '\r' || data[i] == '\t') {
		i++
	}
	return i
}

// skipValue returns where the JSON value that begins at i ends. If there is none it returns where the text goes wrong,
// and false. It looks at bytes only: that they are UTF-8 is for the caller to check.
func skipValue(data []byte, i, depth int) (int, bool) {
	if i >= len(data) {
		return i, false
	}
	switch c := data[i]; {
	case c == '"':
		return skipString(data, i)
	case c == '{', c == '[':
		return skipNested(data, i, depth)
	case c == '-' || c >= '0' && c <= '9':
		return skipNumber(data, i)
	case c == 't':
		return skipWord(data, i, "true")
	case c == 'f':
		return skipWord(data, i, "false")
	case c == 'n':
		return skipWord(data, i, "null")
	}
	return i, false
}

func skipWord(data []byte, i int, word string) (int, bool) {
	if len(data)-i < len(word) || string(data[i:i+len(word)]) != word {
		return i, false
	}
	return i + len(word), true
}

// skipNested skips an object or array.
func skipNested(data []byte, i, depth int) (int, bool) {
	if depth >= maxNesting {
		return i, false
	}
	object := data[i] == '{'
	end := byte(']')
	if object {
		end = '}'
	}
	i = skipSpace(data, i+1)
	if i < len(data) && data[i] == end {
		return i + 1, true
	}
	for {
		var ok bool
		if object {
			if i, ok = skipName(data, i); !ok {
				return i, false
			}
		}
		if i, ok = skipValue(data, i, depth+1); !ok {
			return i, false
		}
		i = skipSpace(data, i)
		if i >= len(data) {
			return i, false
		}
		switch data[i] {
		case end:
			return i + 1, true
		case ',':
			i = skipSpace(data, i+1)
		default:
			return i, false
		}
	}
}

// skipName skips a member's name, the colon and the space around it.
func skipName(data []byte, i int) (int, bool) {
	if i >= len(data) || data[i] != '"' {
		return i, false
	}
	i, ok := skipString(data, i)
	if !ok {
		return i, false
	}
	if i = skipSpace(data, i); i >= len(data) || data[i] != ':' {
		return i, false
	}
	return skipSpace(data, i+1), true
}

func skipString(data []byte, i int) (int, bool) {
	for i = skipPlain(data, i+1); i < len(data); i++ {
		switch c := data[i]; {
		case c == '"':
			return i + 1, true
		case c < ' ':
			return i, false
		case c == '\\':
			i++
			if i >= len(data) {
				return i, false
			}
			switch data[i] {
			case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
			case 'u':
				if _, ok := hex4(data, i+1); !ok {
					return i, false
				}
				i += 4
			default:
				return i, false
			}
		}
	}
	return i, false
}

// skipPlain skips characters of ASCII that stand for themselves in a JSON string, eight at a time while there are so many. It may
// stop before the first byte that is something else.
func skipPlain[T []byte | string](data T, i int) int {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	for ; len(data)-i >= 8; i += 8 {
		b := data[i : i+8]
		w := uint64(b[0]) | uint64(b[1])<<8 | uint64(b[2])<<16 | uint64(b[3])<<24 |
			uint64(b[4])<<32 | uint64(b[5])<<40 | uint64(b[6])<<48 | uint64(b[7])<<56
		quote, slash := w^ones*'"', w^ones*'\\' // a byte that is one of them is 0 there
		if (w|(w-ones*' ')|(quote-ones)&^quote|(slash-ones)&^slash)&tops != 0 {
			break
		}
	}
	return i
}

// hex4 reads four hexadecimal digits.
func hex4(data []byte, i int) (rune, bool) {
	if len(data)-i < 4 {
		return 0, false
	}
	var r rune
	for _, c := range data[i : i+4] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

// skipNumber skips a number that a float64 can hold, if not exactly: larger ones do not survive most programs.
func skipNumber(data []byte, i int) (int, bool) {
	begin := i
	if data[i] == '-' {
		i++
	}
	digits := func() bool {
		from := i
		for i < len(data) && data[i] >= '0' && data[i] <= '9' {
			i++
		}
		return i > from
	}
	if i < len(data) && data[i] == '0' {
		i++
	} else if !digits() {
		return i, false
	}
	large := i-begin > 300
	if i < len(data) && data[i] == '.' {
		if i++; !digits() {
			return i, false
		}
	}
	if i < len(data) && (data[i] == 'e' || data[i] == 'E') {
		large = true
		if i++; i < len(data) && (data[i] == '+' || data[i] == '-') {
			i++
		}
		if !digits() {
			return i, false
		}
	}
	if large {
		if f, err := strconv.ParseFloat(string(data[begin:i]), 64); err != nil || math.IsInf(f, 0) {
			return begin, false
		}
	}
	return i, true
}

// unquote returns the text of a JSON string that skipString has passed. It is false if there is half of a surrogate
// pair in it, which stands for no character.
func unquote(raw []byte) (string, bool) {
	raw = raw[1 : len(raw)-1]
	i := 0
	for i < len(raw) && raw[i] != '\\' {
		i++
	}
	if i == len(raw) {
		return string(raw), true
	}
	text := make([]byte, i, len(raw))
	copy(text, raw)
	for i < len(raw) {
		if raw[i] != '\\' {
			text = append(text, raw[i])
			i++
			continue
		}
		c := raw[i+1]
		i += 2
		switch c {
		case 'b':
			text = append(text, '\b')
		case 'f':
			text = append(text, '\f')
		case 'n':
			text = append(text, '\n')
		case 'r':
			text = append(text, '\r')
		case 't':
			text = append(text, '\t')
		case 'u':
			r, _ := hex4(raw, i)
			i += 4
			if utf16.IsSurrogate(r) {
				low, ok := rune(0), len(raw)-i >= 6 && raw[i] == '\\' && raw[i+1] == 'u'
				if ok {
					low, _ = hex4(raw, i+2)
				}
				if r = utf16.DecodeRune(r, low); r == utf8.RuneError {
					return "", false
				}
				i += 6
			}
			text = utf8.AppendRune(text, r)
		default: // a quotation mark or slash
			text = append(text, c)
		}
	}
	return string(text), true
}

// appendString appends text as a JSON string. Bytes that are no UTF-8 become the replacement character.
func appendString(b []byte, text string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	from := 0
	for i := skipPlain(text, 0); i < len(text); {
		c := text[i]
		if c < utf8.RuneSelf {
			i++
			if c >= ' ' && c != '"' && c != '\\' {
				continue
			}
			b = append(b, text[from:i-1]...)
			switch c {
			case '"', '\\':
				b = append(b, '\\', c)
			case '\n':
				b = append(b, '\\', 'n')
			case '\t':
				b = append(b, '\\', 't')
			case '\r':
				b = append(b, '\\', 'r')
			default:
				b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
			}
			from = i
			continue
		}
		r, n := utf8.DecodeRuneInString(text[i:])
		i += n
		if r == utf8.RuneError && n == 1 {
			b = append(b, text[from:i-1]...)
			b = append(b, "\ufffd"...)
			from = i
		}
	}
	b = append(b, text[from:]...)
	return append(b, '"')
}
