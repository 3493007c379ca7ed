"""From a program to machine code: LLVM's pipeline, and what the code needs to be called."""

from __future__ import annotations

import ctypes
import itertools
import threading
from dataclasses import dataclass
from functools import cache

from llvmlite import binding as llvm

from kohakutpu.xpu.faults import active_fault
from kohakutpu.xpu.kernel import FastMath, Kernel

from .emit import Site
from .groups import Groups
from .numbers import FAST

SIGNATURE = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint32,
    ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p,
)  # fmt: skip
# LLVM's compiler is not safe from two threads on one context.
LOCK = threading.Lock()
NUMBER = itertools.count()


@cache
def machine() -> llvm.TargetMachine:
    """The host, at its best."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features().flatten() + ",-prefer-256-bit"
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(cpu=llvm.get_host_cpu_name(), features=features, opt=3, jit=True)


@cache
def engine() -> llvm.LLJIT:
    """The process's just-in-time linker."""
    machine()
    return llvm.create_lljit_compiler(machine(), use_jit_link=False, suppress_errors=False)


@cache
def host_width() -> int:
    """Lanes of 32 bits in the host's widest registers."""
    features = llvm.get_host_cpu_features()
    return 16 if features.get("avx512f") else 8 if features.get("avx2") else 4


@dataclass(frozen=True)
class Code:
    """A kernel's code for one block: `run`, bytes of scratch memory, and where it may stop. `text` is its IR."""

    run: object
    scratch_bytes: int
    sites: tuple[Site, ...]
    width: int
    text: str
    atomic: bool
    held: tuple


def emit(kernel: Kernel, dims: tuple, width: int, checked: bool, fault: str) -> Groups:
    """The lowering of a kernel for a block, built. Raises Unlowered."""
    flags = FAST if kernel.find(FastMath) else ()
    target = Groups(kernel.program_on("cpu"), dims, width, checked, flags, fault)
    target.build()
    return target


def assemble(text: str, checked: bool) -> llvm.ModuleRef:
    """Verified and optimised; code with checks, which is large, keeps its loops."""
    module = llvm.parse_assembly(text)
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization = options.slp_vectorization = False
    options.loop_unrolling = not checked
    builder = llvm.create_pass_builder(machine(), options)
    builder.getModulePassManager().run(module, builder)
    return module


def compile_kernel(kernel: Kernel, dims: tuple, width: int, checked: bool, fault: str) -> Code:
    """Machine code of a kernel for a block. Raises Unlowered."""
    with LOCK:
        target = emit(kernel, dims, width, checked, fault)
        module = assemble(str(target.module), checked)
        name = f"xpu{next(NUMBER)}"
        library = llvm.JITLibraryBuilder().add_ir(str(module)).export_symbol("run").add_current_process()
        tracker = library.link(engine(), name)
        run = SIGNATURE(tracker["run"])
    atomic = "atomic" in target.program.uses
    return Code(run, target.scratch_bytes, tuple(target.sites), width, str(module), atomic, (tracker,))


def planted() -> str:
    """The defect that XPU_FAULT plants in this back end, for the corpus to find; "" for none."""
    return active_fault() or ""
