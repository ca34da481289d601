# Every target sets up what it needs in a fresh clone. Needs python3 >= 3.11.
PYTHON ?= python3
EXAMPLES ?= 2000
SEED ?= 0
BIN := .venv/bin

.PHONY: demo test laws check bench xpu-check

demo: .venv/.package
	$(BIN)/fspec demo

# Threads that wait asleep: spinning ones stall each other on a busy machine.
test laws: export OMP_WAIT_POLICY = passive

# Three sessions: pyproject.toml says why.
test: .venv/.test
	$(BIN)/python -m pytest --durations=10
	$(BIN)/python -m pytest -o addopts= tests/compiled --durations=10
	TRITON_INTERPRET=1 $(BIN)/python -m pytest -o addopts= tests/interpreted

laws: .venv/.test
	$(BIN)/python -m tests.laws --examples $(EXAMPLES) --seed $(SEED)

check: .venv/.test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright

bench: .venv/.test
	$(BIN)/fspec bench cpu

# Compiles the Triton kernels for Intel's B70 and runs them on the CPU; needs no GPU.
xpu-check:
	PYTHON=$(PYTHON) tools/xpu/fetch.sh .xpu
	.xpu/venv/bin/python -m tools.xpu

# torch by its own command first: the CPU build is found that way. With a build
# already in .venv (CUDA, XPU), run pip yourself and touch the two stamps.
.venv/.package: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("fspec needs Python 3.11 or newer, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -qq torch==2.13.0
	$(BIN)/python -m pip install -qq -e .
	touch $@

.venv/.test: .venv/.package
	$(BIN)/python -m pip install -qq -e '.[test,dev]'
	touch $@
