package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"
)

func TestTheSimulationPrintsWhatTheDocumentationQuotes(t *testing.T) {
	var b bytes.Buffer
	report(&b)
	page, err := os.ReadFile("../../docs/scale.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), "```\n"+b.String()+"```\n") {
		t.Errorf("docs/scale.md does not quote:\n%s", &b)
	}
}

func TestTheSimulationAgreesWithTheArithmetic(t *testing.T) {
	for _, s := range scenarios() {
		_, used := s.fullest()
		_, _, kept := s.simulate()
		if used > 1.05 && kept {
			t.Errorf("%+v needs %.0f %% of what there is, and keeps up", s, 100*used)
		}
		if used < 0.9 && !kept {
			t.Errorf("%+v needs %.0f %% of what there is, and falls behind", s, 100*used)
		}
	}
}

func TestGrantsTakeAtLeastAFlush(t *testing.T) {
	for _, s := range scenarios() {
		if median, p99, kept := s.simulate(); kept && (median < flush.Seconds() || p99 < median) {
			t.Errorf("%+v: half of the grants take %v s, and 99 %% %v s, where a flush takes %v", s, median, p99, flush)
		}
	}
}

func TestMoreLoadTakesLonger(t *testing.T) {
	light := scenario{postgres(), 4, 3, 5 * time.Minute, false}
	heavy := light
	heavy.databases = 1
	less, _, kept1 := light.simulate()
	more, _, kept2 := heavy.simulate()
	if !kept1 || !kept2 || less >= more {
		t.Errorf("on four databases half of the grants take %v s, and on one %v s", less, more)
	}
}
