package daemon

import "testing"

func TestPasswordsAreTakenOutOfURLs(t *testing.T) {
	for url, want := range map[string]string{
		"memory:": "memory:", "sqlite:/a/b@c.db": "sqlite:/a/b@c.db",
		"postgres://u:p@h:1/d?password=p": "postgres://…@h:1/d", "postgres://h/d": "postgres://h/d", "etcd://u:p@ss@h1,h2/x": "etcd://…@h1,h2/x",
	} {
		if got := redact(url); got != want {
			t.Errorf("%s becomes %s, not %s", url, got, want)
		}
	}
}

func TestSizesHaveUnits(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "1024": 1024, "64K": 65536, "64KiB": 65536, "1M": 1 << 20, "2MB": 2 << 20, "3G": 3 << 30} {
		if n, err := size(text); err != nil || n != want {
			t.Errorf("%s is %d, %v", text, n, err)
		}
	}
	for _, text := range []string{"", "K", "-1", "1.5M", "1T", "99999999999G", "1e3"} {
		if _, err := size(text); err == nil {
			t.Errorf("%q is a size", text)
		}
	}
}

func TestJobsThatOtherDaemonsDoNotHaveAreToldApart(t *testing.T) {
	for _, c := range []struct {
		locks, jobs string
		want        bool
	}{
		{"etcd://a", "memory:", true}, {"postgres://a/b", "sqlite:x", true}, {"etcd://a", "postgres://a/b", false}, {"etcd://a", "none", false},
		{"sqlite:x", "", false}, {"sqlite:x", "memory:", false}, {"postgres://a/b", "", false},
	} {
		if got := (&Config{Store: c.locks, JobsStore: c.jobs}).ownJobs(); got != c.want {
			t.Errorf("locks in %s, jobs in %q: %v", c.locks, c.jobs, got)
		}
	}
}
