"""Speed of the XPU interpreter: its fast path beside the walker, in work-items a second of processor time.

    python benchmarks/xpu_reference.py [--json FILE]

The exit status is 1 where the fast path is less than fifty times as fast.

A saxpy of 2**20 elements and a tiled GEMM of 256 x 256. The walker, which is the definition, runs a part and is
counted by work-item; that both give the same bytes is tested, not measured.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np

from kohakutpu.reference.xpu import Launch, run
from xpu_kernels import saxpy, tiled_gemm


COUNT, PART, SIDE = 1 << 20, 1 << 13, 256


def seconds(*arguments, **more) -> float:
    """Processor time of one run."""
    start = time.process_time()
    run(*arguments, **more)
    return time.process_time() - start


def rates() -> list[dict]:
    """Work-items a second of both paths."""
    x, tiles = np.ones(COUNT, np.float32), [np.ones(SIDE * SIDE, np.float32) for _ in range(3)]
    cases = (
        ("saxpy", saxpy, lambda n: [x[:n].copy(), x[:n], 2.5, n], COUNT, PART, lambda n: Launch(n // 256, 256)),
        ("gemm", tiled_gemm, lambda n: [*tiles, SIDE], SIDE * SIDE, 256,
         lambda n: Launch((16, 16) if n > 256 else 1, (16, 16))),
    )  # fmt: skip
    rows = []
    for name, kernel_, arguments, count, part, launch in cases:
        kernel_.program  # noqa: B018 - reading the source is not part of a run
        fast = min(seconds(kernel_, arguments(count), launch(count)) for _ in range(3))
        walked = seconds(kernel_, arguments(part), launch(part), walk=True)
        rows.append(
            {"kernel": name, "fast": count / fast, "walk": part / walked, "ratio": count / fast / (part / walked)}
        )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers")
    args = parser.parse_args()
    rows = rates()
    for row in rows:
        print(f"{row['kernel']:8} {row['fast']:12,.0f} {row['walk']:10,.0f} work-items/s {row['ratio']:8.0f} times")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    return int(any(row["ratio"] < 50 for row in rows))


if __name__ == "__main__":
    sys.exit(main())
