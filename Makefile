# `make check` is what CI runs, `make soak` what is slow because it is thorough. Tools are pinned in modules below tools/.
SHELL := bash -o pipefail
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS   = -s -w -X github.com/lokt-dev/lokt/internal/version.version=$(VERSION)
FUZZTIME ?= 1000x # inputs: a run that time ends fails now and then with "context deadline exceeded"
GO       ?= go
# What vet has looked at is not vetted again. No further flags: what plain go test needs as well is compiled once.
TEST      = $(GO) test -vet=off
# As users get it, and compiled once for build, test and lint: with cgo almost every package is another one.
export CGO_ENABLED := 0
PLAIN     = '-gcflags=all=-N -l'
# Packages with concurrency whose tests are quick. jobs/engine has none, and runs here below jobs/manager.
RACE      = . ./jobs/manager ./jobs/worker ./httpapi ./telemetry ./store/memstore ./internal/audit ./internal/auth ./internal/guard

.PHONY: build release site packages test race fuzz lint tidy cross bench vuln clients python typescript runtimes scenarios browser pictures check soak campaign clean

build: ## bin/: all programs
	$(GO) build -ldflags '$(LDFLAGS)' -o bin/ ./cmd/...
release: ## dist/: archives, packages, image, manifests and checksums of VERSION
	$(GO) run -C tools/release . -C $(CURDIR) -version $(VERSION)
site: ## dist/site: the pages, with a search; fails for a dead link
	$(GO) run -C tools/site . -C $(CURDIR)
packages: ## that they and the clients install, run, upgrade and leave nothing, as root; that the chart is valid; that no link is dead
	$(GO) test -C tools/release -count=1 ./... && $(GO) test -C deploy/helm ./... && $(GO) test -C tools/site ./... && $(GO) test -C tools/campaign ./...
test: # packages that wait leave room for one more
	LOKT_PLANTED=1 $(TEST) -p 3 ./...
race: ## needs cgo, and a C compiler
	CGO_ENABLED=1 $(TEST) -race -short $(RACE)
fuzz:
	@grep -ro '^func Fuzz[A-Za-z0-9_]*' --include='*_test.go' . | sed 's|/[^/]*:func | |' | sort \
	| while read -r pkg name; do echo "fuzz $$pkg $$name"; \
		$(TEST) -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x "$$pkg" </dev/null || exit 1; \
	done
bin/golangci-lint: tools/go.mod ## built once for each version
	$(GO) build -modfile=tools/go.mod -o $@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint
lint: bin/golangci-lint
	bin/golangci-lint run ./...
tidy:
	$(GO) mod tidy -diff
cross: ## the other systems at least compile, tests included
	GOOS=darwin $(GO) vet $(PLAIN) ./...
	GOOS=windows GOARCH=386 $(GO) vet $(PLAIN) ./... # an int has 32 bits, as on ARM
bench: ## against peers, in turn in one run; takes some minutes of a quiet machine
	$(GO) run ./bench -o docs/benchmarks.md
vuln: ## needs the network: the vulnerability database is no module, so this is not part of check
	$(GO) run -modfile=tools/go.mod golang.org/x/vuln/cmd/govulncheck ./...
clients: build python typescript scenarios ## the clients in other languages, and that they come to the same verdicts as lokt; needs Python, mypy and Node.js
python:
	cd clients/python && mypy && LOKTD=$(CURDIR)/bin/loktd PYTHONPATH=src python3 -W ignore -m unittest discover -s tests
typescript:
	cd clients/typescript && npm ci --no-audit --no-fund && LOKTD=$(CURDIR)/bin/loktd npm test
	LOKTD=$(CURDIR)/bin/loktd node --test clients/action/*.test.mjs
runtimes: build typescript ## the TypeScript client on Bun and Deno, which npm brings
	cd clients/typescript && LOKTD=$(CURDIR)/bin/loktd npx --yes bun@1.4.5 test --timeout 60000 ./dist-test/test/
	cd clients/typescript && LOKTD=$(CURDIR)/bin/loktd npx --yes deno@2.9.6 test -A --no-check dist-test/test/
scenarios: typescript # which it builds
	LOKT_CLIENTS=1 $(TEST) -count=1 ./clients/...
browser: build ## the dashboard in a real browser; needs Chromium and npm
	cd dashboard/browser && npm ci --no-audit --no-fund && $(GO) test -count=1 ./...
pictures: build ## those of the docs, from the real thing
	cd dashboard/browser && LOKT_PICTURES=$(CURDIR)/docs/pictures $(GO) test -count=1 -run Pictures .
	LOKT_PICTURES=$(CURDIR)/docs/pictures $(GO) test -count=1 -run Pictures ./internal/cli/top
check: build tidy cross lint test
	$(MAKE) -j4 -O race fuzz python typescript scenarios # of which the first two work, and the others mostly wait
	$(MAKE) browser packages
soak: ## the race detector over everything, longer games and faults, minutes of fuzzing; takes an hour and more
	CGO_ENABLED=1 $(TEST) -race -timeout 60m ./...
	LOKT_SOAK=1 $(TEST) -count=1 -timeout 120m ./...
	GOARCH=386 $(GO) vet ./... && GOARCH=386 $(TEST) . ./easy ./lockfile ./jobs/... ./store/... ./internal/process ./internal/audit ./internal/guard
	$(MAKE) fuzz FUZZTIME=100000x
	$(MAKE) runtimes
campaign: ; $(GO) run -C tools/campaign . -C $(CURDIR) -hours $(or $(HOURS),10) # faults, in pieces: goes on where it ended, and writes docs/campaign.md
clean: ; rm -rf bin dist
