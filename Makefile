# The two commands of the README, and what stands behind them.
PORT ?= 8000
JOBS ?= $(shell nproc)

.PHONY: run test build deps clean
.DEFAULT_GOAL := build

deps:
	./scripts/install-deps

build: deps
	cmake --preset release
	cmake --build --preset release -j $(JOBS)

run: build
	./build/trireme serve --port $(PORT)

test: build
	ctest --test-dir build --output-on-failure -j $(JOBS)

clean:
	rm -rf build build-*
