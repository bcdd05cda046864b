package etcdstore

import (
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
)

func TestURLsSayWhatTheyMean(t *testing.T) {
	for text, want := range map[string]target{
		"etcd://a":                             {endpoints: []string{"http://a:2379"}, prefix: "/lokt"},
		"etcd://a,b:1,[::1]:2,127.0.0.1/p/q/":  {endpoints: []string{"http://a:2379", "http://b:1", "http://[::1]:2", "http://127.0.0.1:2379"}, prefix: "/p/q"},
		"etcd://u:p%40%3A@a/":                  {endpoints: []string{"http://a:2379"}, prefix: "/lokt", user: "u", password: "p@:"},
		"etcds://a:5/x%20y":                    {endpoints: []string{"https://a:5"}, prefix: "/x y"},
		"etcds://only-user@a.example:2379/lok": {endpoints: []string{"https://a.example:2379"}, prefix: "/lok", user: "only-user"},
	} {
		got, err := parse(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if (got.tls != nil) != strings.HasPrefix(text, "etcds") {
			t.Errorf("%s: TLS is %v", text, got.tls)
		}
		if !slices.Equal(got.endpoints, want.endpoints) || got.prefix != want.prefix || got.user != want.user || got.password != want.password {
			t.Errorf("%s: got %+v", text, got)
		}
	}
	for _, text := range []string{
		"", "etcd:", "etcd://", "etcd:///p", "http://a", "etcd://a,,b", "etcd://a:b:c", "etcd://secret:pw@", "etcd://:secret@a", "etcd://a/%zz", "etcd://a?ca=/x",
		"etcds://a?ca=/nowhere/at-all", "etcds://a?cert=/nowhere/at-all", "etcds://a?secret=1", "etcd://%zz:secret@a", "etcd://a b",
	} {
		if got, err := parse(text); err == nil {
			t.Errorf("%q is taken for %+v", text, got)
		} else if strings.Contains(err.Error(), "secret:") || strings.Contains(err.Error(), "secret@") {
			t.Errorf("%q: the error has the password in it: %v", text, err)
		}
	}
}

func TestAnEtcdThatDoesNotAnswerIsNamedByItsEndpoints(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	url := "etcd://user:secret@127.0.0.1:1," + silent.Addr().String()
	_, err = Open(t.Context(), url, Options{Timeout: time.Second})
	if err == nil || !errors.Is(err, lokt.ErrUnavailable) || strings.Contains(err.Error(), "secret") {
		t.Fatal(err)
	}
	for _, says := range []string{"127.0.0.1:1: ", "refused", silent.Addr().String() + ": connected, but"} {
		if !strings.Contains(err.Error(), says) {
			t.Errorf("it does not say %q: %v", says, err)
		}
	}
}
