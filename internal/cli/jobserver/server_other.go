//go:build !linux

package jobserver

import (
	"errors"
	"fmt"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/cli/app"
)

type server struct{}

func newServer(*app.Backend, *lokt.Locker, lokt.Options, int) (*server, string, error) {
	return nil, "", fmt.Errorf("CPU tokens are handed out on Linux only: %w", errors.ErrUnsupported)
}

func (*server) close() {}
