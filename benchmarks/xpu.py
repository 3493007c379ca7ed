"""The cpu back end of XPU kernels beside numpy and numba, as ratios of time.

    python benchmarks/xpu.py [--quick] [--processor] [--json FILE]

numba comes with `pip install .[bench]`; without it the ratios are to numpy alone, and the output says so. Every case
computes the same values everywhere, within the bounds that the case states, on as many threads as the process has
cores. Rounds are interleaved and medians compared. "unchecked" is the back end without its checks (XPU_UB_TRAPS=off),
which numpy and numba do not make either.

On a machine that does other work the clock says little: `--processor` compares processor time, on one thread each.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from kohakutpu.backends.cpu import CPU, execute
from kohakutpu.xpu.launch import Request
from xpu_kernels import gemm, q4_gemv, saxpy, softmax_of_a_wave

try:
    import numba
except ImportError:
    numba = None

TILE = 32
ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OPENBLAS", "OMP", "MKL", "NUMBA")} | {"XPU_CPU_WORKERS": "1"}


def jit(function):
    """numba's parallel compilation; the function itself is never run as Python."""
    return numba.njit(parallel=True, nogil=True)(function) if numba else None


def _saxpy_loop(y, x, a):
    for i in numba.prange(y.size):
        y[i] = a * x[i] + y[i]


def _softmax_loop(y, x):
    for r in numba.prange(x.shape[0]):
        best = np.float32(-3e38)
        for i in range(x.shape[1]):
            best = max(best, x[r, i])
        total = np.float32(0)
        for i in range(x.shape[1]):
            e = np.exp(x[r, i] - best)
            y[r, i] = e
            total += e
        scale = np.float32(1) / total
        for i in range(x.shape[1]):
            y[r, i] *= scale


def _gemm_loop(c, a, b):
    n = a.shape[0]
    for r in numba.prange(n):
        for j in range(n):
            c[r, j] = 0
        for k in range(n):
            v = a[r, k]
            for j in range(n):
                c[r, j] += v * b[k, j]


def _q4_loop(out, packed, scales, x):
    rows, blocks = scales.shape
    for r in numba.prange(rows):
        total = np.float32(0)
        for g in range(blocks):
            part = np.float32(0)
            for k in range(16):
                q = packed[r, g, k]
                part += np.float32(np.int32(q & 15) - 8) * x[g * 32 + k]
                part += np.float32(np.int32(q >> 4) - 8) * x[g * 32 + 16 + k]
            total += part * scales[r, g]
        out[r] = total


@dataclass
class Case:
    """`launch(checked)` runs a kernel; `rivals` run the same by name; `result()` gives what was computed."""

    name: str
    launch: object
    rivals: dict
    result: object
    expected: np.ndarray
    bound: float


def launcher(declared, grid, block, *arguments):
    """A launch of a kernel on the cpu back end."""
    request = Request(declared, (*grid, 1, 1)[:3], (*block, 1, 1)[:3], 0, arguments)

    def run(checked: bool) -> None:
        execute(CPU, request, CPU.width_of(declared), checked)

    return run


def saxpy_case(random, size: int) -> Case:
    """y = a*x + y."""
    x, y = random.standard_normal((2, size)).astype(np.float32)
    expected = np.float32(0) * x + y
    loop = jit(_saxpy_loop)

    def plain():
        np.add(np.multiply(np.float32(0), x, out=scratch), y, out=y)

    scratch = np.empty_like(x)
    rivals = {"numpy": plain, "numba": loop and (lambda: loop(y, x, np.float32(0)))}
    return Case("saxpy", launcher(saxpy, (size // 256,), (256,), y, x, 0.0, size), rivals, lambda: y, expected, 0)


def softmax_case(random, rows: int, cols: int) -> Case:
    """Softmax of every row."""
    x = random.standard_normal((rows, cols)).astype(np.float32) * 4
    y = np.zeros_like(x)
    wide = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    loop = jit(_softmax_loop)

    def plain():
        np.subtract(x, x.max(1, keepdims=True), out=y)
        np.exp(y, out=y)
        np.divide(y, y.sum(1, keepdims=True), out=y)

    run = launcher(softmax_of_a_wave, (rows,), (16,), y.reshape(-1), x.reshape(-1), cols, cols)
    rivals = {"numpy": plain, "numba": loop and (lambda: loop(y, x))}
    return Case("softmax", run, rivals, lambda: y, wide / wide.sum(1, keepdims=True), 1e-5)


def gemm_case(random, n: int) -> Case:
    """c = a @ b in float32."""
    a, b = random.standard_normal((2, n, n)).astype(np.float32)
    c = np.zeros_like(a)
    loop = jit(_gemm_loop)
    run = launcher(gemm, (n // TILE, n // TILE), (32, 4), c.reshape(-1), a.reshape(-1), b.reshape(-1), n)
    rivals = {"numpy": lambda: np.matmul(a, b, out=c), "numba": loop and (lambda: loop(c, a, b))}
    return Case("GEMM", run, rivals, lambda: c, a.astype(np.float64) @ b, 1e-4)


def q4_case(random, rows: int, cols: int) -> Case:
    """A matrix of 4-bit weights times a vector."""
    packed = random.integers(0, 256, (rows, cols // 32, 16)).astype(np.uint8)
    scales = (random.random((rows, cols // 32)) * 0.1).astype(np.float16)
    x, out = random.standard_normal(cols).astype(np.float32), np.zeros(rows, np.float32)
    loop = jit(_q4_loop)
    single = scales.astype(np.float32)

    def weights():
        both = np.concatenate([packed & 15, packed >> 4], 2).astype(np.float32) - np.float32(8)
        return (both * single[..., None]).reshape(rows, cols)

    run = launcher(q4_gemv, (rows,), (16,), out, packed.reshape(-1), scales.reshape(-1), x, cols)
    rivals = {
        "numpy": lambda: np.matmul(weights(), x, out=out),
        "numba": loop and (lambda: loop(out, packed, single, x)),
    }
    return Case("Q4 GEMV", run, rivals, lambda: out, weights().astype(np.float64) @ x, 1e-4)


def check(case: Case, who: str) -> None:
    """Stop unless what was computed is within the case's bound of its scale."""
    scale = np.abs(case.expected).max()
    worst = float(np.abs(case.result() - case.expected).max() / scale)
    if not worst <= case.bound:
        raise SystemExit(f"{case.name} by {who}: off by {worst:.3g} of the scale, where {case.bound} is allowed")


def measure(case: Case, rounds: int, now) -> dict:
    """Median seconds of everyone by a clock, rounds interleaved."""
    runs = {"cpu checked": lambda: case.launch(True), "cpu unchecked": lambda: case.launch(False)}
    runs |= {name: run for name, run in case.rivals.items() if run}
    for who, run in runs.items():
        run()  # compiles
        check(case, who)
    times: dict[str, list] = {who: [] for who in runs}
    for _ in range(rounds):
        for who, run in runs.items():
            begin = now()
            run()
            times[who].append(now() - begin)
    medians = {who: statistics.median(found) for who, found in times.items()}
    others = [who for who in medians if not who.startswith("cpu")]
    fastest = min(medians[who] for who in others)
    ratios = {who: medians[who] / fastest for who in medians}
    return {"case": case.name, "seconds": medians, "ratios": ratios, "others": others}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, three rounds")
    parser.add_argument("--processor", action="store_true", help="processor time, on one thread each")
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args()
    if options.processor and any(os.environ.get(name) != value for name, value in ONE_THREAD.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | ONE_THREAD)  # libraries read it once
    now = time.process_time if options.processor else time.perf_counter
    random = np.random.default_rng(0)
    if options.quick:
        cases = [saxpy_case(random, 1 << 16), softmax_case(random, 64, 256), gemm_case(random, 64),
                 q4_case(random, 64, 1024)]  # fmt: skip
    else:
        cases = [saxpy_case(random, 1 << 24), softmax_case(random, 4096, 1024), gemm_case(random, 512),
                 q4_case(random, 4096, 4096)]  # fmt: skip
    rows = [measure(case, 3 if options.quick else 15, now) for case in cases]
    people = ["cpu unchecked", "cpu checked", "numba", "numpy"]
    table = Table("case", *(f"{who}, ms" for who in people), "unchecked to the fastest other", "checked to it")
    for row in rows:
        cells = [f"{row['seconds'][who] * 1e3:.2f}" if who in row["seconds"] else "not there" for who in people]
        ratios = (row["ratios"]["cpu unchecked"], row["ratios"]["cpu checked"])
        table.add_row(row["case"], *cells, *(f"{ratio:.2f}" for ratio in ratios))
    Console(width=120).print(table)
    if numba is None:
        print("numba is not installed (pip install .[bench]): the ratios are to numpy alone")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
