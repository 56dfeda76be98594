# What a person types: `make demo`, `make test`, `make check`. Everything lives in .venv, made at first need.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet -c constraints.txt

.PHONY: help demo test check format bench clean
.DELETE_ON_ERROR:

help:
	@echo "make demo    train SGORNN and torch.nn.LSTM on the addition problem (about 3 minutes)"
	@echo "make test    run the tests"
	@echo "make check   lint, formatting and types"
	@echo "make format  let ruff mend what it can"
	@echo "make bench   time the scan engine"
	@echo "make clean   remove $(VENV) and what the demo wrote"

demo: $(VENV)/.installed-demo
	$(BIN)/python examples/01_addition.py

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
	$(BIN)/python benchmarks/scan.py

clean:
	rm -rf $(VENV) demo-output

# A stamp a set of extras: a second `make test` installs nothing; a changed pyproject.toml does so once.
$(VENV)/.installed-%: pyproject.toml constraints.txt
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) || \
		{ echo "Could not make $(VENV): Python 3.11 or newer with venv is needed (Debian: apt install python3-venv)." >&2; exit 1; }
	@echo "Installing Holdfast into $(VENV) (a minute or two, once) ..."
	$(PIP) -e '.[$*]'
	@touch $@
