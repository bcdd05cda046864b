package filestore

import (
	"reflect"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
)

// change makes the value another one.
func change(v reflect.Value) {
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.Int, reflect.Int64:
		v.SetInt(v.Int() + 1)
	case reflect.Uint64:
		v.SetUint(v.Uint() + 1)
	case reflect.String:
		v.SetString(v.String() + "x")
	case reflect.Slice:
		v.Set(reflect.Append(v, reflect.Zero(v.Type().Elem())))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf("k"), reflect.ValueOf("v"))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(v.Interface().(time.Time).Add(1)))
			return
		}
		change(v.Field(0))
	}
}

// differs checks that a change of any field shows.
func differs[T any](t *testing.T, same func(a, b *T) bool) {
	t.Helper()
	var walk func(path string, at func(*T) reflect.Value)
	walk = func(path string, at func(*T) reflect.Value) {
		var a, b T
		if !same(&a, &b) {
			t.Fatalf("%T differs from itself", a)
		}
		v := at(&b)
		if v.Kind() == reflect.Struct && v.Type() != reflect.TypeFor[time.Time]() {
			for i := range v.NumField() {
				walk(path+"."+v.Type().Field(i).Name, func(x *T) reflect.Value { return at(x).Field(i) })
			}
			return
		}
		change(v)
		if same(&a, &b) || same(&b, &a) {
			t.Errorf("%T: a change of %s does not show", a, path)
		}
		if v.Kind() == reflect.Pointer {
			walk(path+".*", func(x *T) reflect.Value {
				p := at(x)
				if p.IsNil() {
					p.Set(reflect.New(p.Type().Elem()))
				}
				return p.Elem()
			})
		}
	}
	walk("", func(x *T) reflect.Value { return reflect.ValueOf(x).Elem() })
}

func TestEveryChangeOfAHoldOrAWaiterShows(t *testing.T) {
	differs(t, sameHolder)
	differs(t, sameWaiter)
	differs(t, samePtr[lokt.Freeze])
}

func TestEqualPointersAndMapsAreTheSame(t *testing.T) {
	one := func() *lokt.Holder {
		return &lokt.Holder{
			Claim: lokt.Claim{Process: &lokt.Process{PID: 1}, Metadata: map[string]string{"a": "b"}, Within: []string{"c"}},
			Yield: &lokt.Yield{Grace: 1},
		}
	}
	if !sameHolder(one(), one()) {
		t.Error("equal holders differ")
	}
	other := one()
	other.Yield.Grace = 2
	if sameHolder(one(), other) {
		t.Error("another grace does not show")
	}
}
