package promtext_test

import (
	"bytes"
	"math"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/lokt-dev/lokt/internal/promtext"
)

// parse reads the text with the parser that Prometheus's own libraries use.
func parse(t *testing.T, text []byte) map[string]*dto.MetricFamily {
	t.Helper()
	p := expfmt.NewTextParser(model.UTF8Validation)
	families, err := p.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return families
}

func TestAnyLabelValueSurvivesTheTextFormat(t *testing.T) {
	values := []string{"", "plain", `a "quoted" \ value`, "two\nlines", `\n`, "tab\tand\rreturn", "ünïcode ✓", "{a=\"b\"} 1"}
	var w promtext.Writer
	w.Family("x", promtext.Gauge, "What \"x\" is,\nand a \\ in it.")
	for i, v := range values {
		w.Sample("x", float64(i), "other", "same", "v", v)
	}
	x := parse(t, w.Bytes())["x"]
	if x.GetHelp() != "What \"x\" is,\nand a \\ in it." || x.GetType() != dto.MetricType_GAUGE || len(x.Metric) != len(values) {
		t.Fatalf("parsed as %v", x)
	}
	for i, m := range x.Metric {
		if got := m.Label[1].GetValue(); got != values[i] || m.Label[1].GetName() != "v" || m.Gauge.GetValue() != float64(i) {
			t.Errorf("%q came back as %v", values[i], m)
		}
	}
}

func TestTextThatIsNotUTF8IsMadeSo(t *testing.T) {
	var w promtext.Writer
	w.Family("x", promtext.Gauge, "What x is.")
	w.Sample("x", 1, "v", "a\xffb")
	if got := parse(t, w.Bytes())["x"].Metric[0].Label[0].GetValue(); got != "a\uFFFDb" {
		t.Errorf("it came back as %q", got)
	}
}

func TestNumbersSurviveTheTextFormat(t *testing.T) {
	values := []float64{0, 1, -1, 0.25, 1e21, 123456789, 1 << 53, 1.5e-9, math.MaxFloat64, math.Inf(1), math.Inf(-1), math.NaN()}
	var w promtext.Writer
	w.Family("x_total", promtext.Counter, "What x is.")
	for _, v := range values {
		w.Sample("x_total", v, "v", "same")
	}
	for i, m := range parse(t, w.Bytes())["x_total"].Metric {
		if got, want := m.Counter.GetValue(), values[i]; got != want && !(math.IsNaN(got) && math.IsNaN(want)) {
			t.Errorf("%v came back as %v", want, got)
		}
	}
}

func TestBucketsAreCumulative(t *testing.T) {
	var w promtext.Writer
	w.Family("x_seconds", promtext.Histogram, "How long x took.")
	w.Buckets("x_seconds", []float64{0.5, 1, 10}, []int64{1, 0, 2, 4}, 77.5, "name", "a")
	h := parse(t, w.Bytes())["x_seconds"].Metric[0].Histogram
	if h.GetSampleCount() != 7 || h.GetSampleSum() != 77.5 || len(h.Bucket) != 4 {
		t.Fatalf("parsed as %v", h)
	}
	for i, want := range []struct {
		bound float64
		count uint64
	}{{0.5, 1}, {1, 1}, {10, 3}, {math.Inf(1), 7}} {
		if b := h.Bucket[i]; b.GetUpperBound() != want.bound || b.GetCumulativeCount() != want.count {
			t.Errorf("bucket %d is %v, not %+v", i, b, want)
		}
	}
	problems, err := promlint.New(bytes.NewReader(w.Bytes())).Lint()
	if len(problems) != 0 || err != nil {
		t.Errorf("promlint: %v, error %v", problems, err)
	}
}
