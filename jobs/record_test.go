package jobs_test

import (
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

// fill sets every field of a struct to something other than its zero value.
func fill(v reflect.Value, n *int) {
	*n++
	at := time.Date(2026, 1, 2, 3, 4, 5, *n*1e6, time.UTC)
	switch v.Interface().(type) {
	case jsontext.Value:
		v.Set(reflect.ValueOf(jsontext.Value("{ \"z\" : 12345678901234567890123.10,\n \"a\":[1e2 , \"\\u0041\\/<é>\"] , \"z\":[ ]}")))
		return
	case time.Time:
		v.Set(reflect.ValueOf(at))
		return
	case time.Duration:
		v.SetInt(int64(time.Duration(*n)*time.Millisecond + 1))
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), n)
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0), n)
		fill(v.Index(1), n)
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, n)
		fill(value, n)
		v.SetMapIndex(key, value)
	case reflect.String:
		v.SetString(strings.Repeat("x", *n%7+1) + "\u2028\"")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Float64:
		v.SetFloat(0.1)
	case reflect.Uint64:
		v.SetUint(math.MaxUint64 - uint64(*n))
	default:
		v.SetInt(int64(*n))
	}
}

// What is stored is read again as it was, every field of it and every byte of what clients sent.
func TestRecordRoundTrip(t *testing.T) {
	n := 0
	for _, empty := range []any{
		&jobs.Record{}, &jobs.Memo{}, &jobs.Event{}, &jobs.Counters{}, &jobs.Statistic{},
	} {
		full := reflect.New(reflect.TypeOf(empty).Elem())
		full.Elem().Set(reflect.ValueOf(empty).Elem())
		for i := range full.Elem().NumField() {
			if f := full.Elem().Field(i); f.IsZero() && full.Elem().Type().Field(i).Tag.Get("json") != "-" {
				fill(f, &n)
			}
		}
		for _, want := range []any{empty, full.Interface()} {
			data, err := lokt.Marshal(want, json.OmitZeroStructFields(true))
			if err != nil {
				t.Fatal(err)
			}
			got := reflect.New(reflect.TypeOf(empty).Elem()).Interface()
			if err := lokt.Unmarshal(data, got); err != nil {
				t.Fatalf("%v: %s", err, data)
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%s\nwas %+v\nis  %+v", data, want, got)
			}
		}
	}
}

// A job that has said nothing yet takes little room.
func TestRecordSize(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6e6, time.UTC)
	r := jobs.Record{Job: jobs.Job{
		Spec: jobs.NewSpec(), ID: strings.Repeat("j", 26), State: jobs.Queued, CreatedAt: at, UpdatedAt: at, ReadyAt: at,
		Seq: 1_000_000, Ord: at.UnixMilli(), Revision: 1_000_000,
	}}
	data, err := lokt.Marshal(r, json.OmitZeroStructFields(true))
	if err != nil || len(data) > 400 {
		t.Errorf("%d bytes, %v: %s", len(data), err, data)
	}
}

func TestRawValuesAreValid(t *testing.T) {
	deep := func(n int) string { return `{"a":` + strings.Repeat("[", n) + strings.Repeat("]", n) + `}` }
	for payload, valid := range map[string]bool{
		`{"a":1, "b":[{"a":2}]}`: true, deep(4000): true, deep(9998): false, `{"a":1,"a":2}`: true, "{\"a\":\"\xff\"}": false, `{} {}`: false,
	} {
		spec := jobs.NewSpec()
		spec.Payload = jsontext.Value(payload)
		if err := spec.Validate(1); (err == nil) != valid {
			t.Errorf("%.30s: %v", payload, err)
		}
	}
}
