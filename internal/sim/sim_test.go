package sim

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
)

// seeds is how many seeds a test plays.
func seeds() uint64 {
	if os.Getenv("LOKT_SOAK") != "" {
		return 3000
	}
	return 100
}

func told(r *Result) string {
	var b strings.Builder
	for _, e := range r.Trace {
		fmt.Fprintln(&b, e)
	}
	return b.String()
}

// With one processor or several the course is the same to the byte. Two goroutines of one process that wake in the same
// nanosecond may swap, which no gate can see: in less than one course of a hundred.
func TestASeedDecidesTheCourse(t *testing.T) {
	procs := runtime.GOMAXPROCS(0)
	defer runtime.GOMAXPROCS(procs)
	differ := uint64(0)
	for seed := range seeds() {
		o := Options{Seed: seed, World: os.Getenv("SIM_WORLD"), All: true}
		runtime.GOMAXPROCS(max(procs, 2))
		a := Play(t, o)
		runtime.GOMAXPROCS(1)
		b := Play(t, o)
		if a.Violation != nil {
			t.Fatalf("seed %d: %s: %v\n%s", seed, a.World, *a.Violation, told(a))
		}
		if told(a) != told(b) {
			t.Logf("seed %d of world %s: two courses", seed, a.World)
			if differ++; differ > seeds()/100 {
				t.Fatal("too many seeds have two courses")
			}
		}
	}
}

func TestACourseThatIsTamedHasNoFaults(t *testing.T) {
	for _, world := range Worlds() {
		r := Play(t, Options{Seed: 1, World: world, Mask: Mask{Tame: true}})
		if r.Violation != nil || len(r.used) > 0 || len(r.actions) == 0 {
			t.Errorf("%s: %v, decisions %v, actions %v", world, r.Violation, r.used, r.actions)
		}
		for _, what := range mayMeet() {
			if r.Reached[what] > 0 {
				t.Errorf("%s: %s", world, what)
			}
		}
		idle := Play(t, Options{Seed: 1, World: world, Mask: Mask{Tame: true, Idle: r.actions}})
		if r := idle.actions; len(r) > len(Worlds()) || len(r) > 0 && r[0] >= 0 {
			t.Errorf("%s: %v were begun", world, r)
		}
	}
}
