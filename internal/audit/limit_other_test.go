//go:build !unix

package audit

import "errors"

func limitFileSize(n uint64) error {
	if n != 0 {
		return errors.ErrUnsupported
	}
	return nil
}
