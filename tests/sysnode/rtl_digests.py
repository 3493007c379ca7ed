"""What the example kernels leave on a machine's gates, as digests: run as a process of its own by `test_rtl_kernels`.

    python rtl_digests.py MACHINE SIMULATOR SEED [ENDPOINT=FAULT]...

prints {kernel: {"image": sha256 of the memory image, "trace": sha256 of the trace file, "cycles": ...}}.
"""

import hashlib
import json
import sys
import tempfile
from pathlib import Path

from kohakutpu.cli.kernel_options import read_array
from kohakutpu.cli.sim import EXAMPLES, cases
from kohakutpu.compiler import compile_kernel
from kohakutpu.lang.kernel import load as load_kernel
from kohakutpu.machine import load
from sim.kernels import run_rtl


def digests(machine: str, simulator: str, seed: int, faults: dict[str, str]) -> dict[str, dict[str, object]]:
    found = {}
    described = load(machine)
    for title, reference, knobs, files in cases(described):
        operands = {name: read_array(name, str(EXAMPLES / file)) for name, file in files.items()}
        shapes = {name: array.shape for name, array in operands.items()}
        artifact = compile_kernel(load_kernel(reference), described, shapes, knobs)
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder) / "gates.trace"
            done = run_rtl(artifact, described, operands, simulator=simulator, seed=seed, trace=trace, faults=faults)
            image = hashlib.sha256(repr(sorted(done.run.images.items())).encode())
            found[title] = {
                "image": image.hexdigest(), "trace": hashlib.sha256(trace.read_bytes()).hexdigest(),
                "cycles": done.cycles,
            }  # fmt: skip
    return found


if __name__ == "__main__":
    machine, simulator, seed, *planted = sys.argv[1:]
    print(json.dumps(digests(machine, simulator, int(seed), dict(item.split("=") for item in planted))))
