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
	buf []byte
}

// Append adds what another writer was told.
func (w *Writer) Append(other *Writer) { w.buf = append(w.buf, other.buf...) }

// Bytes returns what was written.
func (w *Writer) Bytes() []byte { return w.buf }

// Family begins a metric: the samples that follow belong to it.
func (w *Writer) Family(name, kind, help string) {
	w.buf = append(w.buf, "# HELP "...)
	w.buf = append(w.buf, name...)
	w.buf = append(w.buf, ' ')
	w.escape(help, false)
	w.buf = append(w.buf, "\n# TYPE "...)
	w.buf = append(w.buf, name...)
	w.buf = append(w.buf, ' ')
	w.buf = append(w.buf, kind...)
	w.buf = append(w.buf, '\n')
}

// Sample adds a value. Labels are names and values in turn; values may be any text.
func (w *Writer) Sample(name string, value float64, labels ...string) {
	w.begin(name, labels)
	w.end(value)
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
		w.begin(name+"_bucket", append(labels[:len(labels):len(labels)], "le", format(le)))
		w.end(float64(total))
	}
	w.Sample(name+"_sum", sum, labels...)
	w.Sample(name+"_count", float64(total), labels...)
}

func (w *Writer) begin(name string, labels []string) {
	w.buf = append(w.buf, name...)
	sep := byte('{')
	for i := 0; i+1 < len(labels); i += 2 {
		w.buf = append(w.buf, sep)
		w.buf = append(w.buf, labels[i]...)
		w.buf = append(w.buf, `="`...)
		w.escape(labels[i+1], true)
		w.buf = append(w.buf, '"')
		sep = ','
	}
	if sep == ',' {
		w.buf = append(w.buf, '}')
	}
	w.buf = append(w.buf, ' ')
}

func (w *Writer) end(value float64) {
	w.buf = append(w.buf, format(value)...)
	w.buf = append(w.buf, '\n')
}

// format writes a number as Prometheus does.
func format(v float64) string {
	switch {
	case math.IsInf(v, 1):
		return "+Inf"
	case math.IsInf(v, -1):
		return "-Inf"
	}
	return strconv.FormatFloat(v, 'g', -1, 64) // NaN too
}

// escape writes text that may contain anything; only that of labels is quoted.
func (w *Writer) escape(s string, quoted bool) {
	for _, r := range strings.ToValidUTF8(s, "\uFFFD") {
		switch {
		case r == '\\':
			w.buf = append(w.buf, `\\`...)
		case r == '\n':
			w.buf = append(w.buf, `\n`...)
		case r == '"' && quoted:
			w.buf = append(w.buf, `\"`...)
		default:
			w.buf = append(w.buf, string(r)...)
		}
	}
}
