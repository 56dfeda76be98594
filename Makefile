# Commands for people: `make demo`, `make test`, `make check`. They create .venv on first use.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet -c constraints.txt

.PHONY: help demo test check format bench device compat pages docs docs-serve docs-check wheel clean
.DELETE_ON_ERROR:

help:
	@echo "make demo    train SGORNN and LSTM on the addition problem (at most 3 minutes)"
	@echo "make test    run the tests"
	@echo "make check   lint, formatting and types"
	@echo "make format  fix lint and formatting with ruff"
	@echo "make bench   run all benchmarks; half an hour on an idle machine"
	@echo "make device  run four exported networks on an emulated Cortex-M4F (first trains them: 3 minutes)"
	@echo "make compat  run the engine's tests on the oldest and newest torch, numpy and llvmlite"
	@echo "make pages   write the generated pages: results, speed, reference, the README's results, reports"
	@echo "make docs    build the site into build/docs; make docs-serve opens it on http://localhost:8000"
	@echo "make docs-check  look at the site in Chromium (needs selenium and chromedriver)"
	@echo "make wheel   build the wheel into dist and test it in a new environment"
	@echo "make clean   remove $(VENV), dist and the output of demo and device"

demo: $(VENV)/.installed-train
	rm -rf demo-output
	$(BIN)/holdfast train --config examples/addition.toml --cell sgornn --cell lstm --run demo-output \
		--set 'sgornn:cell.options.gates={ clip = "2alpha", horizon = 200 }' --figure demo-output/addition.png

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest

check: $(VENV)/.installed-dev
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m pyright --pythonpath $(BIN)/python

format: $(VENV)/.installed-dev
	$(BIN)/python -m ruff check --fix .
	$(BIN)/python -m ruff format .

bench: $(VENV)/.installed-dev
	for it in benchmarks/*.py; do $(BIN)/python $$it || exit 1; done

device: $(VENV)/.installed-train
	$(BIN)/python tools/device/har.py

compat: $(VENV)/.installed-dev
	$(BIN)/python tools/compat.py $(COMPAT)

pages: $(VENV)/.installed-dev
	$(BIN)/python tools/pages.py

docs: $(VENV)/.installed-docs
	PYTHONPATH=tools $(BIN)/python -m website

docs-serve: docs
	@echo "The site is on http://localhost:8000. Ctrl-C ends it."
	$(BIN)/python -m http.server 8000 --bind 127.0.0.1 --directory build/docs

docs-check: docs
	$(BIN)/python tools/check_site.py

# Built, installed and used as by someone without the clone: in an environment and a folder of its own.
wheel:
	rm -rf build dist
	$(PYTHON) -m pip wheel --quiet --no-deps --wheel-dir dist .
	rm -rf build
	PYTHON=$(PYTHON) sh tests/wheel.sh dist/holdfast-*.whl constraints.txt

clean:
	rm -rf $(VENV) build dist demo-output device-output

# One stamp per set of extras: a second `make test` installs nothing; a changed pyproject.toml does so once.
$(VENV)/.installed-%: pyproject.toml constraints.txt
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) || \
		{ echo "Could not create $(VENV): Python 3.11 or newer with venv is needed (Debian: apt install python3-venv)." >&2; exit 1; }
	@echo "Installing Holdfast into $(VENV) (a minute or two, once) ..."
	$(PIP) -e '.[$*]'
	@touch $@
