//go:build !unix

package top

import tea "charm.land/bubbletea/v2"

func stop() tea.Msg { return nil }

func stopping(*tea.Program) {}
