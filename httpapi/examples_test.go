package httpapi_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/store/memstore"
)

// words splits a command line as a shell does that knows single quotes only.
func words(line string) []string {
	var all []string
	word, quoted := "", false
	for _, r := range line + " " {
		switch {
		case r == '\'':
			quoted = !quoted
		case r == ' ' && !quoted:
			if word != "" {
				all = append(all, word)
			}
			word = ""
		default:
			word += string(r)
		}
	}
	return all
}

// curl does what the command of that name does with the few options that the examples use.
func curl(t *testing.T, server string, args []string) string {
	t.Helper()
	method, target, body := http.MethodGet, "", ""
	header := http.Header{}
	for i := 0; i < len(args); i++ {
		switch args[i] {
		case "-s", "-N":
			continue
		case "-X":
			method = args[i+1]
		case "-d":
			body = args[i+1]
			if method == http.MethodGet {
				method = http.MethodPost
			}
		case "-H":
			name, value, _ := strings.Cut(args[i+1], ": ")
			header.Set(name, value)
		default:
			target = args[i]
			continue
		}
		i++
	}
	r, err := http.NewRequestWithContext(t.Context(), method, strings.Replace(target, "http://127.0.0.1:7117", server, 1), strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header = header
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// Promise S-67.
func TestExamplesOfTheProtocolAreAnsweredAsItSays(t *testing.T) {
	page, err := os.ReadFile("../docs/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	store := memstore.New()
	server := httptest.NewServer(httpapi.NewHandler(httpapi.Config{Locks: lokt.NewManager(store), Events: store}))
	defer server.Close()
	varies := regexp.MustCompile(`"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z"|"request_id":"[0-9a-f]+"|"revision":"\d+"|"held_ms":"\d+"|"wait_ms":[0-9.]+|"heartbeat_in_ms":\d+`)
	examples := 0
	lines := strings.Split(string(page), "\n")
	for i, line := range lines {
		command, ok := strings.CutPrefix(line, "$ curl ")
		if !ok || !strings.Contains(command, "/v1/") {
			continue
		}
		examples++
		got, want := curl(t, server.URL, words(command)), lines[i+1]
		if varies.ReplaceAllString(got, "_") != varies.ReplaceAllString(want, "_") {
			t.Errorf("%s\nis answered\n%s\nand not\n%s", line, got, want)
		}
	}
	if examples < 8 {
		t.Errorf("the page has %d examples", examples)
	}
}
