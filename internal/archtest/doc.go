// Package archtest holds the shape of the code base, as ordinary tests: which package may import which, that the rules
// are pure, that packages and exported names are documented, that files stay short, that nothing mutable is global.
//
// It has no code of its own. A failing test names the file and the way out, which for a new package or dependency is a
// line in the tables of imports_test.go.
package archtest
