# Two commands do everything on a fresh machine: `make demo` and `make test`. Needs Python 3.11+, g++ and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PROMPT ?= a large red circle moves right on a blue background
JOBS ?= 2

.PHONY: demo test test-slow lint table clean check-tools

demo: $(INSTALLED)
	$(BIN)/fastcar-host generate --prompt "$(PROMPT)" --out build/demo

test: $(INSTALLED)
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile

test-slow: $(INSTALLED)
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile -m slow

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/mypy

# The evidence table of the README (about half an hour on 2 cores; resumes where it stopped).
table: $(INSTALLED)
	$(BIN)/python -m host.table --out build/table

$(INSTALLED): requirements.lock pyproject.toml | check-tools
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --editable .
	@touch $@

check-tools:
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) not found: install Python 3.11 or newer, e.g. apt install python3 python3-venv, or set PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$$($(PYTHON) --version) is too old: install Python 3.11 or newer and set PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "Python has no venv module: apt install python3-venv"; exit 1; }
	@command -v $${CXX:-g++} >/dev/null || { echo "no C++ compiler found (the simulated board is compiled on first use): apt install g++"; exit 1; }

clean:
	rm -rf build
