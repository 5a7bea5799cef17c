# make demo and make test each work alone on a fresh clone: they make the virtual environment, install the pinned set
# with every extra, and run. SEPKIT_DATA names the folder of real recordings that some tests and recipes read.
PYTHON ?= python3
VENV ?= .venv
PROCESSES ?= 2
PYTEST_ARGS ?=
SECONDS ?= 60
# Suites of the benchmark; not what a terminal calls LINES, its height.
SUITES = $(if $(filter command,$(firstword $(origin LINES))),$(LINES))

WEB_CACHE = "$${XDG_CACHE_HOME:-$$HOME/.cache}/sepkit/web"
STAMP := $(VENV)/.installed
# What make demo takes: half of the packages. An environment that has everything is not made again.
DEMO_STAMP := $(if $(wildcard $(STAMP)),$(STAMP),$(VENV)/.installed-demo)
BIN := $(abspath $(VENV))/bin

.DEFAULT_GOAL := help
.PHONY: help install demo test test-slow fuzz lint bench docs release reproduce

help:
	@echo "make demo       synthesize speech, mix it, train a small model, separate a wav, evaluate"
	@echo "make test       the tests (make test-slow: those that take minutes)"
	@echo "make fuzz       changed inputs for every reader, guided by coverage (SECONDS=60 each, READERS=\"manifests kaldi\": some)"
	@echo "make lint       ruff, pyright, the layers of imports, and zizmor for the workflows"
	@echo "make docs       the site, in build/site: open build/site/index.html"
	@echo "make release    sdist and wheel, checked, tried alone on each Python, with a bill of materials (CycloneDX)"
	@echo "make reproduce  run again what made a row of a RESULTS.md (ROW=egs/mini:cpu_seed0); without ROW it lists them"
	@echo "make bench      side by side with other toolkits; writes tools/bench/README.md (LINES=\"separate train\": some suites)"

install: $(STAMP)

$(VENV)/.installed: EXTRA = all
$(VENV)/.installed-demo: EXTRA = demo

# uv where pip can fetch it, for speed; pip alone otherwise. Compiled once, or else every command compiles torch anew where
# Python may not write beside its modules.
$(VENV)/.installed $(VENV)/.installed-demo: pyproject.toml tools/constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	if $(BIN)/uv --version >/dev/null 2>&1 || $(BIN)/python -m pip install --quiet --constraint tools/constraints.txt uv; then \
	    $(BIN)/uv pip install --compile-bytecode --python $(BIN)/python --constraint tools/constraints.txt --editable ".[$(EXTRA)]"; \
	else \
	    $(BIN)/python -m pip install --constraint tools/constraints.txt --editable ".[$(EXTRA)]"; \
	fi
	touch $@

demo: $(DEMO_STAMP)
	cd egs/mini && PATH="$(BIN):$$PATH" ./run.sh

# The tests of the page run with what npm's registry has; without it they are skipped, and the table at the end says so.
test: $(STAMP)
	if command -v npm >/dev/null; then $(BIN)/sepkit download onnxruntime-web --cache $(WEB_CACHE) --remove-archives || true; fi
	$(BIN)/python -m pytest -n $(PROCESSES) $(PYTEST_ARGS)

test-slow: $(STAMP)
	$(BIN)/python -m pytest -m slow $(PYTEST_ARGS)

fuzz: $(STAMP)
	$(BIN)/python -c "import atheris" 2>/dev/null || $(BIN)/python -m pip install --constraint tools/constraints.txt --editable ".[fuzz]"
	$(BIN)/python -m tools.fuzz --seconds $(SECONDS) $(READERS)

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	PATH="$(BIN):$$PATH" $(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/zizmor --offline .github

docs: $(STAMP)
	$(BIN)/sepkit download onnxruntime-web --cache $(WEB_CACHE) --remove-archives
	$(BIN)/python -m mkdocs build

release: $(STAMP)
	$(BIN)/python -m tools.release

reproduce: $(STAMP)
	@$(BIN)/python -m tools.reproduce $(ROW)

bench: $(STAMP)
	$(BIN)/python -m tools.bench $(SUITES)
