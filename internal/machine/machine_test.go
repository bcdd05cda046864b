package machine

import (
	"maps"
	"net"
	"os"
	"path/filepath"
	"testing"
)

// fake returns a machine of 8 cores and 16 GiB whose files are these.
func fake(t *testing.T, files map[string]string) Machine {
	t.Helper()
	m := Machine{Root: t.TempDir(), cores: 8}
	all := map[string]string{"proc/meminfo": "MemFree:  1 kB\nMemTotal:       16777216 kB\n"}
	maps.Copy(all, files)
	for name, text := range all {
		name = filepath.Join(m.Root, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

// Promise S-202.
func TestSlotsGoByCoresMemoryAndControlGroups(t *testing.T) {
	for name, c := range map[string]struct {
		files  map[string]string
		cores  int
		memory int64
		slots  int
	}{
		"no group": {nil, 8, 16 << 30, 8},
		"version 2": {map[string]string{
			"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "max 100000\n", "sys/fs/cgroup/a/cpu.max": "250000 100000\n",
			"sys/fs/cgroup/a/b/memory.max": "max\n", "sys/fs/cgroup/a/memory.max": "4294967296\n",
		}, 3, 4 << 30, 2},
		"a container's own root": {map[string]string{
			"proc/self/cgroup": "0::/docker/1\n", "sys/fs/cgroup/cpu.max": "150000 100000\n", "sys/fs/cgroup/memory.max": "1073741824\n",
		}, 2, 1 << 30, 1},
		"version 1": {map[string]string{
			"proc/self/cgroup":                     "4:memory:/m\n2:cpu,cpuacct:/c\n0::/\n",
			"sys/fs/cgroup/cpu/c/cpu.cfs_quota_us": "400000\n", "sys/fs/cgroup/cpu/c/cpu.cfs_period_us": "100000\n",
			"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
			"sys/fs/cgroup/memory/m/memory.limit_in_bytes": "9223372036854771712\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "6442450944\n",
		}, 4, 6 << 30, 3},
		"version 2 beside 1": {map[string]string{
			"proc/self/cgroup": "1:cpu:/\n0::/u\n", "sys/fs/cgroup/unified/u/memory.max": "8589934592\n",
		}, 8, 8 << 30, 4},
	} {
		m := fake(t, c.files)
		if cores, memory, slots := m.Cores(), m.Memory(), m.Slots(); cores != c.cores || memory != c.memory || slots != c.slots {
			t.Errorf("%s: %d cores, %d bytes, %d slots, want %d, %d, %d", name, cores, memory, slots, c.cores, c.memory, c.slots)
		}
	}
	if m := (Machine{Root: t.TempDir(), cores: 8}); m.Memory() != 0 || m.Slots() != 8 {
		t.Errorf("where nothing is known: %d bytes, %d slots", m.Memory(), m.Slots())
	}
}

func TestPressureIsTheHigherOfTheMachinesAndTheGroups(t *testing.T) {
	m := fake(t, map[string]string{
		"proc/self/cgroup":            "0::/g\n",
		"proc/pressure/cpu":           "some avg10=50.50 avg60=0.00 avg300=0.00 total=1\nfull avg10=99.00 avg60=0.00 avg300=0.00 total=0\n",
		"proc/pressure/io":            "some avg10=10.00 avg60=0.00 avg300=0.00 total=1\n",
		"sys/fs/cgroup/g/io.pressure": "some avg10=41.00 avg60=0.00 avg300=0.00 total=1\n",
	})
	if r, percent := m.Pressure(); r != "cpu" || percent != 50.5 {
		t.Errorf("%s %v", r, percent)
	}
	m = fake(t, map[string]string{
		"proc/self/cgroup": "0::/g\n", "proc/pressure/io": "some avg10=10.00 avg60=0.00 avg300=0.00 total=1\n",
		"sys/fs/cgroup/g/io.pressure": "some avg10=41.00 avg60=0.00 avg300=0.00 total=1\nfull avg10=2.00\n",
	})
	if r, percent := m.Pressure(); r != "io" || percent != 41 {
		t.Errorf("%s %v", r, percent)
	}
	if r, percent := fake(t, nil).Pressure(); r != "" || percent != 0 {
		t.Errorf("where nothing is known: %s %v", r, percent)
	}
}

func TestSizesAreReadAsTheyAreWritten(t *testing.T) {
	for text, want := range map[string]int64{"1": 1, "512M": 512 << 20, "4G": 4 << 30, "1.5g": 3 << 29, "4GiB": 4 << 30, "2k": 2048, "1T": 1 << 40, "4294967296": 4 << 30} {
		n, err := ParseSize(text)
		if err != nil || n != want {
			t.Errorf("%s is %d, %v", text, n, err)
		}
		if again, err := ParseSize(Size(n)); err != nil || again != n {
			t.Errorf("%s is written %s, which is %d, %v", text, Size(n), again, err)
		}
	}
	for _, text := range []string{"", "G", "0", "-1G", "nan", "inf", "4X", "1e30", "4 G"} {
		if n, err := ParseSize(text); err == nil {
			t.Errorf("%q is read as %d", text, n)
		}
	}
}

func TestAPortThatSomebodyListensOnIsNotUsable(t *testing.T) {
	for _, host := range []string{"127.0.0.1:0", ":0"} {
		l, err := net.Listen("tcp", host)
		if err != nil {
			t.Fatal(err)
		}
		port := l.Addr().(*net.TCPAddr).Port
		if (Pool{Name: "port"}).Usable(port) || (Pool{Name: "db_port"}).Usable(port) {
			t.Errorf("%s: it is usable while somebody listens", host)
		}
		if !(Pool{Name: "shard"}).Usable(port) {
			t.Errorf("a number that is no port is tried as one")
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if !(Pool{Name: "port"}).Usable(port) {
			t.Errorf("%s: it is not usable though nobody listens", host)
		}
	}
}

func TestPoolsAreReadOrRefused(t *testing.T) {
	p, err := ParsePool("db_port=3000-3099")
	if err != nil || p != (Pool{"db_port", 3000, 3099}) || p.Variable() != "LOKT_POOL_DB_PORT" || p.Lock(3001) != "pool.db_port.3001" {
		t.Errorf("%+v, %v", p, err)
	}
	for _, text := range []string{"", "port", "=1-2", "port=", "port=1", "port=2-1", "port=0-2", "port=1-65536", "x=0-10000", "x=-1-2", "Port=1-2", "a-b=1-2"} {
		if p, err := ParsePool(text); err == nil {
			t.Errorf("%q is read as %+v", text, p)
		}
	}
}
