# Two commands set a fresh machine up and use it: `make sim MACHINE=mm_mesh` and `make test`.

PYTHON ?= python3
MACHINE ?= mm_mesh
FAULT ?=
ENGINE ?= $(if $(FAULT),model,both)
SIM ?= verilator
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help env sim lockstep rtl synth test test-models nightly regress golden bench sweep ci bitstream clean

help:
	@echo 'make env                               set up .venv'
	@echo 'make sim MACHINE=mm_mesh [FAULT=name]  compile, simulate and compare the fused and staged kernels'
	@echo '         [ENGINE=model|rtl|both] [SIM=verilator|icarus] [WAVES=1]'
	@echo 'make rtl MACHINE=mm_mesh               the Verilog of a machine, as build/MACHINE.v'
	@echo 'make synth MACHINE=mm_mesh             LUTs, registers, memories and DSPs by block'
	@echo 'make lockstep MACHINE=mm_mesh           model and gates side by side, every kernel, every cycle'
	@echo 'make test                              the test suite (under 25 minutes on two cores)'
	@echo 'make test-models                       what of it needs no gates (four minutes)'
	@echo 'make nightly                           the long regressions'
	@echo 'make regress [SEED=number]             the long regressions of the RTL alone, ten times the random traffic'
	@echo 'make golden [GOLDEN=dir]               every golden vector in a directory'
	@echo 'make bench                             benchmarks'
	@echo 'make bitstream [MACHINE=mm_min] [BOARD=ulx3s_85f]   an FPGA bitstream of all but the units, with open tools'
	@echo 'make ci [CI_ARGS="-- pytest arguments"]    the test suite with one JUnit report, in build/ci'
	@echo 'make sweep SPEC=file.yaml [SCHEDULER=tcp://host:port] [RESUME=1]   a kernel over shapes, knobs, machines, seeds'
	@echo 'make clean                             remove the environment and everything built'

env: $(READY)

# Where Debian's python3-venv is missing, the system's own pip fills an environment made without one.
$(READY): pyproject.toml constraints.txt
	@rm -rf $(VENV)
	@echo 'setting up $(VENV)'
	@if $(PYTHON) -m venv $(VENV) >/dev/null 2>&1; then \
	    $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,rtl,sweep,fpga]'; \
	elif $(PYTHON) -m pip --version >/dev/null 2>&1; then \
	    rm -rf $(VENV) && $(PYTHON) -m venv --without-pip $(VENV) && \
	    $(PYTHON) -m pip --python $(BIN)/python install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,rtl,sweep,fpga]'; \
	else \
	    echo 'error: $(PYTHON) has neither venv nor pip; install python3-venv (Debian) or set PYTHON=' >&2; exit 2; \
	fi
	@touch $(READY)

sim: $(READY)
	@$(BIN)/kohakutpu sim --machine $(MACHINE) --engine $(ENGINE) --simulator $(SIM) $(if $(FAULT),--fault $(FAULT)) \
	    $(if $(filter 1,$(WAVES)),--waves build/waves/$(MACHINE))

lockstep: $(READY)
	@$(BIN)/kohakutpu lockstep $(KERNEL) --machine $(MACHINE) --simulator $(SIM)

rtl: $(READY)
	@mkdir -p build
	@$(BIN)/kohakutpu rtl $(MACHINE) -o build/$(MACHINE).v

synth: $(READY)
	@$(BIN)/kohakutpu synth $(MACHINE)

test: $(READY)
	@$(BIN)/python -m pytest -n 2 --dist worksteal -m 'not slow'

test-models: $(READY)
	@$(BIN)/python -m pytest -n 2 --dist worksteal -m 'not slow and not gates'

nightly: $(READY)
	@$(BIN)/python -m pytest -n 2 --dist worksteal

SEED ?= $(shell date +%Y%m%d)
regress: $(READY)
	@echo 'seed $(SEED)'
	@KOHAKUTPU_SEED=$(SEED) $(BIN)/python -m pytest -n 2 --dist worksteal -m slow tests/rtl tests/sysnode

GOLDEN ?= $(if $(wildcard ../shared/golden),../shared/golden,tests/data/golden)
golden: $(READY)
	@$(BIN)/kohakutpu golden $(GOLDEN)

bench: $(READY)
	@$(BIN)/python benchmarks/model_speed.py
	@$(BIN)/python benchmarks/compile_speed.py
	@$(BIN)/python benchmarks/efficiency.py
	@$(BIN)/python benchmarks/ksplit.py
	@$(BIN)/python benchmarks/vector_cycles.py
	@$(BIN)/python benchmarks/rtl_speed.py
	@$(BIN)/python benchmarks/xpu.py
	@$(BIN)/python benchmarks/xpu_reference.py

BOARD ?= ulx3s_85f
bitstream: MACHINE = mm_min
bitstream: $(READY)
	@mkdir -p build/bitstream
	@rm -rf build/bitstream/$(MACHINE)-$(BOARD)
	@$(BIN)/kohakutpu build $(MACHINE) --without-units --board $(BOARD) -o build/bitstream/$(MACHINE)-$(BOARD)

ci: $(READY)
	@$(BIN)/kohakutpu ci -o build/ci $(CI_ARGS)

SCHEDULER ?= local
sweep: $(READY)
	@$(BIN)/kohakutpu sweep $(or $(SPEC),$(error SPEC=file.yaml is needed: docs/sweep.md)) --scheduler $(SCHEDULER) $(if $(filter 1,$(RESUME)),--resume)

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .hypothesis
