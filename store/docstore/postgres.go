package sqlstore

import (
	"context"

	"github.com/lokt-dev/lokt"
)

func openServer(context.Context, string, Options) (backend, error) { return nil, lokt.ErrInvalid }
