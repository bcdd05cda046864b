package process

import "slices"

// node is a process in a list of all of them.
type node struct {
	pid, parent int
	ended       bool // a zombie without threads
	start       int64
}

// below returns the processes of list that descend from root and have not ended, root itself left out, parents before their children. torn
// means that a parent is missing from the list: it ended while the list was made, and who its children belong to
// now is not in it.
func below(root int, list []node) (found []node, torn bool) {
	children := make(map[int][]node, len(list))
	known := make(map[int]bool, len(list))
	for _, n := range list {
		known[n.pid] = true
		children[n.parent] = append(children[n.parent], n)
	}
	for _, n := range list {
		torn = torn || n.parent != 0 && !known[n.parent]
	}
	seen := map[int]bool{root: true} // process IDs used again while the list was made could form a circle
	for next := []int{root}; len(next) > 0; next = next[1:] {
		for _, n := range children[next[0]] {
			if !seen[n.pid] {
				seen[n.pid] = true
				next = append(next, n.pid)
				found = append(found, n)
			}
		}
	}
	return slices.DeleteFunc(found, func(n node) bool { return n.ended }), torn
}

func pids(list []node) []int {
	var ids []int
	for _, n := range list {
		ids = append(ids, n.pid)
	}
	return ids
}
