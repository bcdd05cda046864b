// Package ahead marks changes that go before others which wait in the same program: those of holders. New claims, however many,
// can wait; a renewal, a release or a grant that is not taken up cannot.
package ahead

import "context"

type key struct{}

// Of returns a context for a change that goes first.
func Of(ctx context.Context) context.Context { return context.WithValue(ctx, key{}, true) }

// Is reports whether a change with this context goes first.
func Is(ctx context.Context) bool { return ctx.Value(key{}) != nil }
