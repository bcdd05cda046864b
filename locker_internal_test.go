package lokt

import (
	"reflect"
	"testing"
	"time"
)

func TestEveryDefaultHoldsForAnAcquisitionThatSaysNothing(t *testing.T) {
	d := Options{
		TTL: time.Minute, Interval: 10 * time.Second, Margin: time.Second, Wait: time.Second, Limit: 2, Strict: true, Priority: 3, Preempt: time.Second,
		Newest: true, MaxHold: time.Hour, Weight: Weight{Takes: 1, Of: 2}, Metadata: map[string]string{"k": "v"}, ManualHeartbeat: true, Reentrant: true,
		Within: []string{"w"}, Process: &Process{PID: 4},
	}
	got, err := Options{}.withDefaults(d)
	if err != nil {
		t.Fatal(err)
	}
	for f, v := range reflect.ValueOf(d).Fields() {
		is := reflect.ValueOf(got).FieldByIndex(f.Index)
		switch {
		case !f.IsExported():
		case v.IsZero():
			t.Errorf("no default of %s is tried", f.Name)
		case !reflect.DeepEqual(v.Interface(), is.Interface()):
			t.Errorf("%s is %v, and its default %v", f.Name, is, v)
		}
	}
}
