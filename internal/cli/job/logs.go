package job

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/jobs"
)

func newJobLogs(a cmd) *cobra.Command {
	follow := false
	cmd := a.command("logs", oneJob, func(ctx context.Context, s jobs.Service, args []string) error {
		ctx, done := app.WhileRead(ctx, a.Out)
		defer done()
		from, attempt := int64(0), 1
		look := func() (ended bool, err error) {
			o, err := s.Output(ctx, args[0], from)
			if err == nil && a.JSON && !follow {
				return true, a.Print(&o)
			} else if follow && o.State == jobs.Scheduled {
				return true, app.Usagef("a schedule prints nothing: see its jobs with: %s", a.jobLine("list"))
			}
			for i := 0; err == nil && i < len(o.Pieces); i++ {
				p := &o.Pieces[i]
				err = a.piece(p, p.Offset-from, p.Attempt != attempt)
				from, attempt = p.End(), p.Attempt
			}
			return !follow || o.State.Ended(), err
		}
		if follow {
			return a.await(ctx, args[0], look)
		}
		if _, err := look(); err != nil {
			return about(args[0], err)
		}
		return nil
	})
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with what is printed, until the job has ended")
	return cmd
}

// piece shows a piece of output, before which so many bytes are missing.
func (a cmd) piece(p *jobs.Piece, missing int64, again bool) error {
	if a.JSON {
		return a.Print(p)
	}
	if missing > 0 {
		a.Tell("%d bytes before this are not kept", missing)
	}
	if again {
		a.Tell("attempt %d", p.Attempt)
	}
	if app.IsTerminal(a.Out) {
		return a.Write(app.Printable(p.Text))
	}
	return a.Write(p.Text)
}
