# `make check` is what CI runs. Binaries go to bin/; linters are pinned in tools/go.mod, apart from the product's go.mod.
SHELL := bash -o pipefail
export CGO_ENABLED = 0
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS   = -s -w -X github.com/lokt-dev/lokt/internal/cli.version=$(VERSION) \
            -X github.com/lokt-dev/lokt/internal/daemon.version=$(VERSION)
FUZZTIME ?= 5000x
GO       ?= go
TOOL      = $(GO) tool -modfile=tools/go.mod
FUZZDIRS  = $(shell grep -rl '^func Fuzz' --include='*_test.go' . | xargs -r -n1 dirname | sort -u)

.PHONY: build test race fuzz lint vet cross bench man vuln check clean

build: ## bin/lokt and bin/loktd
	$(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/ ./cmd/...

test:
	$(GO) test ./...

race: ## the race detector needs cgo, and a C compiler
	CGO_ENABLED=1 $(GO) test -race -timeout 20m ./...

# Every fuzz target for FUZZTIME each: a number of inputs, because a fuzz run that time ends fails now and then with
# "context deadline exceeded" and nothing wrong. `go test -list` names the targets of a package before its "ok" line.
fuzz:
	@test -z '$(FUZZDIRS)' || $(GO) test -list '^Fuzz' $(FUZZDIRS) \
	| awk '/^Fuzz/ { n[++k] = $$1 } /^ok/ { for (i = 1; i <= k; i++) print $$2, n[i]; k = 0 }' \
	| while read -r pkg name; do \
		echo "fuzz $$pkg $$name"; \
		$(GO) test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x "$$pkg" </dev/null || exit 1; \
	done

lint:
	$(TOOL) golangci-lint run ./...

vet:
	$(GO) vet ./...

cross: ## the other systems at least build, tests included
	GOOS=darwin $(GO) build ./... && GOOS=darwin $(GO) vet ./...
	GOOS=windows $(GO) build ./... && GOOS=windows $(GO) vet ./...

bench: ## against peers, in turn in one run; takes some minutes of a quiet machine
	$(GO) run ./bench -o docs/benchmarks.md

man: ## bin/man/man1/lokt.1 and one page per command
	$(GO) run ./internal/cli/man bin/man/man1

vuln: ## needs the network: the vulnerability database is no module, so this is not part of check
	$(TOOL) govulncheck ./...

check: build vet cross lint race fuzz

clean:
	rm -rf bin
