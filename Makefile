# Two commands on a fresh machine (Linux x86-64, Python 3.11+, no GPU): make demo, make test.
SHELL := /bin/bash
PYTHON ?= python3
TORCH_INDEX ?=
MODEL ?=
ARGS ?=
RUN := .venv/bin/python

.PHONY: help setup demo serve test test-all lint types unit kernels engines contracts bench docs dist lock clean

help:            ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup:           ## make .venv with everything the other targets need
	@PYTHON="$(PYTHON)" TORCH_INDEX="$(TORCH_INDEX)" tools/setup.sh

demo: setup      ## four questions to a Confident Decoding server and a standard one, side by side
	@$(RUN) -m demo $(ARGS)

serve: setup     ## a server with Confident Decoding on, until Ctrl-C; MODEL=..., ARGS="--port 8000"
	@$(RUN) -m demo.serve $(if $(MODEL),--model "$(MODEL)") $(ARGS)

test: lint types unit kernels engines   ## everything that CI runs

lint: setup
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

types: setup
	$(RUN) -m mypy

unit: setup
	$(RUN) -m pytest -n 2 --dist loadfile -m "not engine and not server and not slow" --ignore tests/kernels $(ARGS)

kernels: setup   ## the Triton kernels against their twins, in Triton's interpreter
	TRITON_INTERPRET=1 PYTHONPATH=.venv/triton $(RUN) -m pytest -n 2 tests/kernels $(ARGS)

engines: setup   ## tests with real engines and real servers, two at a time (an engine here uses one core)
	$(RUN) -m pytest -n 2 --dist loadfile -m "(engine or server) and not slow" $(ARGS)

test-all: lint types setup  ## also the slow ones, and the contracts of every vLLM release
	$(RUN) -m pytest --ignore tests/kernels $(ARGS)
	$(MAKE) kernels contracts

contracts: setup ## check what the hooks rely on against every supported vLLM release (downloads 8 wheels)
	$(RUN) -m tools.contracts

bench: setup     ## overhead of a decode step on this machine
	$(RUN) -m benchmarks.overhead $(ARGS)

docs: setup      ## the documentation as a site in ./site, strictly
	$(RUN) -m mkdocs build --strict

dist: setup      ## sdist and wheel in ./dist, both tried in an empty environment
	tools/dist.sh

lock:            ## resolve requirements/cpu.in again
	tools/lock.sh

clean:           ## remove .venv and caches of the tools
	rm -rf .venv site dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
