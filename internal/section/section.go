// Package section puts what lokt has to say into a file of instructions for agents, and leaves the rest of the file alone.
package section

import (
	"errors"
	"strings"
)

// What stands before and behind the section, so that it can be replaced.
const (
	Begin = "<!-- lokt prime: begin -->\n"
	End   = "<!-- lokt prime: end -->\n"
)

// Put returns a text with the section in place of what was there between the marks, or else at its end, with the ends of lines
// that the text has. It fails if one of the marks is there without the other.
func Put(text, section string) (string, error) {
	if strings.Contains(text, "\r\n") {
		section = strings.ReplaceAll(section, "\n", "\r\n")
	}
	before, rest, begun := strings.Cut(text, strings.TrimSpace(Begin))
	_, after, ended := strings.Cut(rest, strings.TrimSpace(End))
	switch {
	case begun != ended:
		return "", errors.New("the section about locks has no end: remove it, and its marks")
	case begun:
		after = strings.TrimPrefix(strings.TrimPrefix(after, "\r"), "\n")
	case text != "":
		end := "\n\n"
		if strings.Contains(text, "\r\n") {
			end = "\r\n\r\n"
		}
		before = strings.TrimRight(text, "\r\n") + end
	}
	return before + section + after, nil
}
