package httpapi

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"reflect"
	"strconv"
	"time"

	"github.com/lokt-dev/lokt"
)

// fields calls yield for each field of a struct, and of those that it embeds, with the parameter of a URL that it is.
func fields(v reflect.Value, yield func(name string, v reflect.Value) error) error {
	for f, v := range v.Fields() {
		var err error
		if f.Anonymous {
			err = fields(v, yield)
		} else {
			err = yield(f.Tag.Get("json"), v)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// parameters returns the parameters of a URL that stand for the fields of the struct that q points to; those that are
// zero are left out.
func parameters(q any) url.Values {
	all := url.Values{}
	_ = fields(reflect.ValueOf(q).Elem(), func(name string, v reflect.Value) error {
		if v.IsZero() {
			return nil
		}
		switch value := reflect.Indirect(v).Interface().(type) {
		case time.Time:
			all.Set(name, value.UTC().Format(time.RFC3339Nano))
		case time.Duration:
			all.Set(name, strconv.FormatInt(value.Milliseconds(), 10))
		case []lokt.EventType:
			for _, t := range value {
				all.Add(name, string(t))
			}
		default:
			all.Set(name, fmt.Sprint(value))
		}
		return nil
	}) // there are no errors
	return all
}

// parse is the inverse of parameters, for what clients send: an error for what cannot be read. A pointer tells that
// there is a parameter, and a truth value of which only the name is there is true.
func (c *call) parse(q any) error {
	v := reflect.ValueOf(q).Elem()
	if v.NumField() == 0 {
		return nil
	}
	values, err := url.ParseQuery(c.r.URL.RawQuery)
	switch {
	case err != nil && c.scheduled():
		return invalidAt("value_error", "Query should be key=value pairs, percent-encoded")
	case err != nil:
		return invalid("query cannot be read: %v", err)
	}
	return fields(v, func(name string, v reflect.Value) error {
		if !values.Has(name) {
			return nil
		}
		if v.Kind() == reflect.Pointer {
			v.Set(reflect.New(v.Type().Elem()))
			v = v.Elem()
		}
		return c.parameter(name, values[name], v)
	})
}

// parameter reads one parameter. Numbers that are too large for a field become the largest, unless they say what is to
// be ended.
func (c *call) parameter(name string, all []string, v reflect.Value) (err error) {
	text, what, n := all[0], "a number from 0 to 18446744073709551615", uint64(0)
	if !c.scheduled() && (v.CanInt() || v.CanUint()) {
		n, err = strconv.ParseUint(cmp.Or(text, "0"), 10, 64)
	}
	switch to := v.Addr().Interface().(type) {
	case *bool:
		what = "true or false"
		*to, err = strconv.ParseBool(cmp.Or(text, "true"))
	case *time.Time:
		if what = "a time as of RFC 3339"; text != "" {
			*to, err = time.Parse(time.RFC3339Nano, text)
		}
	case *[]lokt.EventType:
		for _, t := range all {
			*to = append(*to, lokt.EventType(t))
		}
	case *time.Duration:
		*to = time.Duration(min(n, uint64(c.s.Limits.Wait/time.Millisecond))) * time.Millisecond
	case *uint64:
		*to = n
	case *int:
		if !c.scheduled() {
			*to = int(min(n, math.MaxInt)) //nolint:gosec // bounded
			break
		}
		*to, err = strconv.Atoi(text)
		switch far := errors.Is(err, strconv.ErrRange); {
		case far && c.r.Method == http.MethodPost:
			return invalidAt("int_parsing_size", "Input is too large", name)
		case err != nil && !far:
			return invalidAt("int_parsing", "Input should be a valid integer, unable to parse string as an integer", name)
		}
		return nil
	default:
		v.SetString(text)
	}
	if err != nil {
		return invalid("%s is not %s", name, what)
	}
	return nil
}
