# `make check` is what CI runs. Binaries go to bin/; linters are pinned in tools/go.mod, apart from the product's go.mod.
SHELL := bash -o pipefail
export CGO_ENABLED = 0
# No further flags: what two stages of check need, or go test by itself, is compiled once.
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS   = -s -w -X github.com/lokt-dev/lokt/internal/cli/app.version=$(VERSION) \
            -X github.com/lokt-dev/lokt/internal/daemon.version=$(VERSION)
FUZZTIME ?= 5000x
GO       ?= go
# go tool takes no notice of GOFLAGS, and would compile once more what linters and product both import.
TOOL      = $(GO) run -modfile=tools/go.mod

# What vet has looked at is not vetted again: race and fuzz would, with all that they import, for flags of their own.
TEST      = $(GO) test -vet=off

# What is only to be seen to compile need not be fast.
PLAIN = '-gcflags=all=-N -l'

.PHONY: build release test race model fuzz lint vet cross bench man vuln check clean

build: ## bin/lokt and bin/loktd
	$(GO) build -ldflags '$(LDFLAGS)' -o bin/ ./cmd/...

release: ## the same without the paths of this machine in them
	$(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/ ./cmd/...

test:
	$(GO) test ./...

# What takes longest begins first, so that it is not what everything waits for in the end.
race: ## the race detector needs cgo, and a C compiler
	CGO_ENABLED=1 $(TEST) -race -timeout 20m ./store/... ./cmd/... ./internal/daemon ./internal/replicas ./...

model: ## the 100,000 steps of the scheduler against its model, of which race plays a tenth
	CI=true $(TEST) -count=1 -run '^TestEngineAnswersAsTheModelDoes$$' ./jobs/engine

# Every fuzz target for FUZZTIME each: a number of inputs, because a fuzz run that time ends fails now and then with
# "context deadline exceeded" and nothing wrong.
fuzz:
	@grep -ro '^func Fuzz[A-Za-z0-9_]*' --include='*_test.go' . | sed 's|/[^/]*:func | |' | sort \
	| while read -r pkg name; do \
		echo "fuzz $$pkg $$name"; \
		$(TEST) -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x "$$pkg" </dev/null || exit 1; \
	done

lint:
	$(TOOL) github.com/golangci/golangci-lint/v2/cmd/golangci-lint run ./...

vet:
	$(GO) vet ./...

cross: ## the other systems at least build, tests included, of which macOS has none of its own; not optimized, in a third of the time
	GOOS=darwin $(GO) build $(PLAIN) ./...
	GOOS=windows $(GO) build $(PLAIN) ./... && GOOS=windows $(GO) vet $(PLAIN) ./...

bench: ## against peers, in turn in one run; takes some minutes of a quiet machine
	$(GO) run ./bench -o docs/benchmarks.md

man: ## bin/man/man1/lokt.1 and one page per command
	$(GO) run ./internal/cli/man bin/man/man1

vuln: ## needs the network: the vulnerability database is no module, so this is not part of check
	$(TOOL) golang.org/x/vuln/cmd/govulncheck ./...

check: build vet cross lint race model fuzz

clean:
	rm -rf bin
