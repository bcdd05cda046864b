// Package promtext writes metrics in the text format of Prometheus, version 0.0.4
// (https://prometheus.io/docs/instrumenting/exposition_formats/), without linking Prometheus.
package promtext

import (
	"math"
	"strconv"
	"strings"
)

// Kinds of metrics.
const (
	Counter   = "counter"
	Gauge     = "gauge"
	Histogram = "histogram"
)

// Writer collects metrics, family by family. The zero Writer is ready for use. It writes what it is told: that names are
// valid, that a family comes once and that its samples differ in their labels is its caller's to see to.
type Writer struct {
	buf    []byte
	family []string // what comes before its first sample
}

// Bytes returns what was written.
func (w *Writer) Bytes() []byte { return w.buf }

// Family begins a metric: the samples that follow belong to it. Without any, nothing is written.
func (w *Writer) Family(name, kind, help string) {
	w.family = []string{"# HELP ", name, " ", line.Replace(help), "\n# TYPE ", name, " ", kind, "\n"}
}

// Sample adds a value. Labels are names and values in turn; values may be any text.
func (w *Writer) Sample(name string, value float64, labels ...string) {
	w.add(w.family...)
	w.family = nil
	w.add(name)
	sep, end := "{", ""
	for i := 0; i+1 < len(labels); i += 2 {
		w.add(sep, labels[i], `="`, quoted.Replace(labels[i+1]), `"`)
		sep, end = ",", "}"
	}
	w.add(end, " ", format(value), "\n")
}

// Buckets adds the samples of a histogram: counts has one element for each upper bound, of what is above the bound before,
// and one more for what is above all of them.
func (w *Writer) Buckets(name string, bounds []float64, counts []int64, sum float64, labels ...string) {
	total := int64(0)
	for i, n := range counts {
		total += n
		le := math.Inf(1)
		if i < len(bounds) {
			le = bounds[i]
		}
		w.Sample(name+"_bucket", float64(total), append(labels[:len(labels):len(labels)], "le", format(le))...)
	}
	w.Sample(name+"_sum", sum, labels...)
	w.Sample(name+"_count", float64(total), labels...)
}

func (w *Writer) add(parts ...string) {
	for _, p := range parts {
		w.buf = append(w.buf, strings.ToValidUTF8(p, "\uFFFD")...)
	}
}

// Text may contain anything; only that of labels is quoted.
var (
	line   = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
	quoted = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
)

// format writes a number as Prometheus does.
func format(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
