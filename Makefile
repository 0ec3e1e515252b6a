# make demo    copy real files over an emulated path with a round-trip time of 660 ms, by a command and by the service
# make test    all checks of CI: format, lints, licences, fuzz smoke test, tests and house style
# make lint    the checks that run no test
# make fuzz    fuzz every parser for FUZZ_SECONDS each (default 60)
# make bench   measure Sterna and its peers in the lab (as root), and the transfer service; ARGS goes to bench/run.py
#
# Each target sets up its requirements: scripts/setup.sh installs Debian packages as root, and lists them otherwise.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.PHONY: demo test lint fuzz bench setup
.DEFAULT_GOAL := test

FUZZ_SECONDS ?= 60
# Test output, kept so that `make test` prints all results at the end.
TEST_LOG := target/test.log

demo:
	scripts/setup.sh demo
	cargo build --release --locked -p sterna --target-dir target
	scripts/demo.sh

test: lint
	scripts/fuzz.sh 5
	mkdir -p target
	cargo test --workspace --locked --no-fail-fast 2>&1 | tee $(TEST_LOG)
	@echo; echo "all results:"; grep '^test result' $(TEST_LOG)

lint:
	scripts/setup.sh test
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- --deny warnings
	scripts/deny.sh
	python3 bench/page.py --check

fuzz:
	scripts/setup.sh test
	scripts/fuzz.sh $(FUZZ_SECONDS)

bench:
	scripts/setup.sh bench
	cargo build --release --locked -p sterna --target-dir target
	python3 bench/run.py $(ARGS)
