# Everything that CI does is a target here. `make help` lists them.

VERSION ?= 0.1.0-dev
COMMIT := $(shell git describe --always --dirty --exclude '*' 2>/dev/null || echo unknown)
DATE := $(shell git log -1 --format=%cd --date=format-local:%Y-%m-%dT%H:%M:%SZ 2>/dev/null || echo unknown)
INFO := github.com/coteriedb/coterie/internal/lib/buildinfo
LDFLAGS := -s -w -X $(INFO).Version=$(VERSION) -X $(INFO).Commit=$(COMMIT) -X $(INFO).Date=$(DATE)
NFPM := v2.45.2
export TZ := UTC
GOLANGCI_LINT := v2.15.0
GOVULNCHECK := v1.8.0
ARGS ?=
POINTS ?=
SEED ?=
SEEDS ?=
MINUTES ?=
FUZZTIME ?= 30s

# No target is silent for more than three seconds, on a terminal or in a log.
beat := scripts/with-heartbeat

# The directory in which go.dev unpacks Go, for shells that do not have it in PATH yet.
export PATH := $(PATH):/usr/local/go/bin

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## check Go, install PostgreSQL if it is missing (needs root or sudo), download the modules
	@scripts/setup
	@$(beat) "downloading modules" go mod download

.PHONY: build
build: ## bin/coterie
	@CGO_ENABLED=0 $(beat) "building coterie $(VERSION) $(COMMIT)" go build -trimpath -ldflags '$(LDFLAGS)' -o bin/coterie ./cmd/coterie

.PHONY: demo
demo: setup build ## three servers here; kills the primary under load; counts the lost rows (ARGS=--keep leaves them running)
	@bin/coterie demo $(ARGS)

.PHONY: demo-broken
demo-broken: setup build ## the same with protection switched off: it must lose commits, which shows that the demo can fail
	@scripts/demo-broken $(ARGS)

.PHONY: test
test: setup ## the quick proof, at most 15 minutes on 2 cores
	@go run ./scripts/gotest -timeout 15m ./... $(ARGS)

.PHONY: test-long
test-long: setup ## the longer tests, 70 to 90 minutes; the result goes to docs/results/test-long.txt
	@COTERIE_LONG=1 go run ./scripts/gotest -record docs/results/test-long.txt -alone ./internal/test/e2e:TestEndToEndAttack -timeout 120m -count=1 ./internal/test/e2e ./... $(ARGS)

.PHONY: test-majors
test-majors: setup ## the end-to-end tests on every PostgreSQL from 14 to 18 that is installed or can be fetched (OFFLINE=1: installed only)
	@scripts/test-majors $(ARGS)

.PHONY: race
race: setup ## the quick proof under the race detector (needs a C compiler)
	@CGO_ENABLED=1 go run ./scripts/gotest -timeout 40m -race ./... $(ARGS)

.PHONY: explore
explore: ## walk every interleaving of the decision core that the bounds allow; prints the shortest counter-example
	@COTERIE_EXPLORE=1 go run ./scripts/gotest -timeout 40m -count=1 -v -run 'Explore' ./internal/ag/agsim $(ARGS)

.PHONY: mutants
mutants: ## put mistakes into the decision core, one by one: each must be found; writes docs/mutants.md
	@COTERIE_EXPLORE=1 go run ./scripts/gotest -timeout 40m -count=1 -v -run 'TestMutants$$|TestSlips$$' ./internal/ag/agsim -update $(ARGS)

.PHONY: sim
sim: ## seeded simulation of the decision core (SEED=n repeats one run and prints its events, SEEDS=n runs that many)
	@COTERIE_SEED='$(SEED)' COTERIE_SEEDS='$(SEEDS)' go run ./scripts/gotest -timeout 3h -count=1 -v -run 'Sim|Run' ./internal/ag/agsim $(ARGS)

.PHONY: chaos
chaos: setup ## kill, stop, cut and cancel on real nodes, every fault once for each SEED, and judge the answers of clients; writes docs/results/chaos.txt (root; MINUTES=n: as many seeds as that allows)
	@COTERIE_LONG=1 COTERIE_CHAOS_SEED='$(or $(SEED),1 2 3)' COTERIE_CHAOS_MINUTES='$(or $(MINUTES),0)' COTERIE_CHAOS_RECORD='$(CURDIR)/docs/results/chaos.txt' \
		go run ./scripts/gotest -timeout 120m -count=1 -v -run 'TestEndToEndChaos$$' ./internal/test/e2e $(ARGS)

.PHONY: storm
storm: setup ## for each SEED, MINUTES (20) of faults that overlap, on any nodes, drawn from it: kills, pauses, cuts, disks, clocks, changes of the configuration, forced failovers; writes docs/results/storm.txt (root)
	@COTERIE_LONG=1 COTERIE_STORM_SEED='$(or $(SEED),1)' COTERIE_STORM_MINUTES='$(or $(MINUTES),20)' COTERIE_STORM_RECORD='$(CURDIR)/docs/results/storm.txt' \
		go run ./scripts/gotest -timeout 180m -count=1 -v -run 'TestEndToEndStorm$$' ./internal/test/e2e $(ARGS)

.PHONY: crashpoints
crashpoints: setup ## end a process of a real group at every named crash point in turn, and judge every row; writes docs/results/crashpoints.txt (POINTS='promote seal': only those that begin so)
	@COTERIE_LONG=1 COTERIE_CRASHPOINTS='$(or $(POINTS),all)' COTERIE_CRASHPOINTS_RECORD='$(if $(POINTS),,$(CURDIR)/docs/results/crashpoints.txt)' \
		go run ./scripts/gotest -timeout 120m -count=1 -v -run 'TestCrashPoints' ./internal/test/e2e $(ARGS)

.PHONY: overload
overload: setup ## MINUTES (60) of more work than the processors can do: no failover, no answer held; writes docs/results/overload.txt
	@COTERIE_LONG=1 COTERIE_OVERLOAD_MINUTES='$(or $(MINUTES),60)' COTERIE_OVERLOAD_RECORD='$(CURDIR)/docs/results/overload.txt' \
		go run ./scripts/gotest -timeout 120m -count=1 -v -run 'TestEndToEndOverload$$' ./internal/test/e2e $(ARGS)

.PHONY: calm
calm: setup ## MINUTES (60) of pauses, flapping links, jitter, backups, checkpoints and snapshots of a primary that lives: no failover; writes docs/results/calm.txt (root)
	@COTERIE_LONG=1 COTERIE_CALM_MINUTES='$(or $(MINUTES),60)' COTERIE_CALM_SEED='$(or $(SEED),1)' COTERIE_CALM_RECORD='$(CURDIR)/docs/results/calm.txt' \
		go run ./scripts/gotest -timeout 120m -count=1 -v -run 'TestEndToEndCalm$$' ./internal/test/e2e $(ARGS)

.PHONY: attack
attack: setup ## MINUTES (10) of every abuse that needs no credentials, beside pgbench and failovers; writes docs/results/attack.txt
	@COTERIE_LONG=1 COTERIE_ATTACK_MINUTES='$(or $(MINUTES),10)' COTERIE_ATTACK_RECORD='$(CURDIR)/docs/results/attack.txt' \
		go run ./scripts/gotest -timeout 120m -count=1 -v -run 'TestEndToEndAttack' ./internal/test/e2e $(ARGS)

.PHONY: test-drivers
test-drivers: setup ## node-postgres, pgjdbc with HikariCP, SQLAlchemy, Django and psycopg 3, from their registries, through the listener
	@scripts/test-drivers

.PHONY: test-regress
test-regress: setup ## PostgreSQL's own regression and isolation tests, directly and through the listener on each data path (fetches its sources)
	@scripts/test-regress

.PHONY: fuzz
fuzz: ## every fuzz target in turn, or TARGETS, FUZZTIME (30s) each; times in minutes (10m) go to docs/results/fuzz.txt
	@FUZZ_RECORD='$(if $(findstring m,$(FUZZTIME)),$(CURDIR)/docs/results/fuzz.txt)' scripts/fuzz $(or $(FUZZTIME),30s) $(TARGETS)

.PHONY: bench-failover
bench-failover: setup build ## outage and losses of unplanned and planned failover (ARGS=--with-peers beside Patroni)
	@bin/coterie bench failover $(ARGS)

.PHONY: bench-seeding
bench-seeding: setup build ## copies, resumed and mended ones beside pg_basebackup over the same link (root; ARGS='--size 256' is a scaled run)
	@bin/coterie bench seeding $(ARGS)

.PHONY: bench-linkem
bench-linkem: build ## accuracy of the lab's links: round trips, loss, TCP against theory, throughput (root; ARGS=--json)
	@bin/coterie bench linkem $(ARGS)

.PHONY: bench-listener
bench-listener: setup build ## the listener beside a direct connection, HAProxy and PgBouncer (ARGS='--only data')
	@bin/coterie bench listener $(ARGS)

.PHONY: bench-continuity
bench-continuity: setup build ## what sessions see in planned failovers and deaths, and what that costs (ARGS='--runs 3', ARGS=--quick)
	@bin/coterie bench continuity $(ARGS)

.PHONY: bench-console
bench-console: setup build ## the console in the browser: first screen, how soon events are shown, what open consoles cost (ARGS=--quick)
	@bin/coterie bench console $(ARGS)

.PHONY: bench-endpoint
bench-endpoint: setup build ## the link between replicas beside plain TCP, over slow, lossy and short links (root; ARGS='--only lan')
	@bin/coterie bench endpoint $(ARGS)

.PHONY: results
results: setup build ## every question of coterie bench all; the reports go to docs/results/ (root; ARGS=--quick takes less than ten minutes)
	@bin/coterie bench all --report docs/results/bench-all $(ARGS)

.PHONY: lint
lint: ## golangci-lint, pinned, with the rules of .golangci.yml
	@scripts/lint $(GOLANGCI_LINT) $(ARGS)

.PHONY: fmt
fmt: ## format as lint requires: gofumpt, and imports in three groups (standard, others, ours)
	@scripts/lint $(GOLANGCI_LINT) -fmt

.PHONY: vuln
vuln: ## known vulnerabilities in what is linked; says so, and passes, where the database is out of reach
	@scripts/vuln $(GOVULNCHECK)

.PHONY: sbom
sbom: build ## what is linked, with licences: bin/coterie.cdx.json (CycloneDX) and docs/internals/dependencies.md
	@go run ./scripts/sbom bin/coterie > bin/coterie.cdx.json
	@go run ./scripts/sbom -page > docs/internals/dependencies.md
	@echo "bin/coterie.cdx.json, docs/internals/dependencies.md"

.PHONY: release-snapshot
release-snapshot: ## dist/: deb, rpm and tarballs for amd64 and arm64, with checksums and SBOM (VERSION=1.2.3; ARGS='-arch amd64')
	@$(beat) "building the packages of $(VERSION)" go run ./scripts/release -version $(VERSION) -nfpm $(NFPM) $(ARGS)

.PHONY: site
site: ## dist/site/: the documentation as pages for a browser, with a search that needs no server
	@$(beat) "making the site" go run ./scripts/site $(ARGS)

.PHONY: check
check: ## the checks of CI
	@.ci/run

.PHONY: clean
clean: ## remove the built files
	@rm -rf bin dist
	@go clean -testcache
