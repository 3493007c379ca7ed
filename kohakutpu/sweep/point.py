"""One point of a sweep: its identity, and what running it gives, as a row of plain values."""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache, cached_property
from pathlib import Path

import kohakutpu
from kohakutpu.compiler import Options, compile_kernel, settle
from kohakutpu.host.compare import compare, digest
from kohakutpu.host.simulate import random_operands, run_reference
from kohakutpu.lang.kernel import Kernel, KernelError
from kohakutpu.lang.kernel import load as load_kernel
from kohakutpu.machine import from_yaml

PACKAGE = Path(kohakutpu.__file__).resolve().parent
VERDICTS = ("byte-equal", "wrong", "refused", "no transport", "no answer")  # by exit status
FAILED = "failed"  # an error that nobody names: of the program or the worker, not of the point
AGAIN = ("no transport", FAILED)  # what a worker's own trouble gives: a resumed sweep runs these points again
FOLDER = "sweep-kernel-"  # of a kernel's file on a worker
MESSAGE_LINES, MESSAGE_LENGTH = 3, 500


class OtherCode(RuntimeError):
    """A worker has another version of the program than the sweep: its rows could not be compared."""

    exit_status = 3


def text_digest(text: str) -> str:
    """The first 16 hexadecimal digits of the text's SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def code_digest(gates: bool) -> str:
    """A digest of the program's own files, those of the RTL and its harness included for sweeps over gates."""
    folders = [PACKAGE, *(PACKAGE.parent / name for name in ("rtl", "sim") if gates)]
    total = hashlib.sha256()
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.suffix in (".py", ".json") and path.is_file():
                total.update(f"{path.relative_to(PACKAGE.parent)}\0".encode() + path.read_bytes() + b"\0")
    return total.hexdigest()[:16]


@dataclass(frozen=True)
class Point:
    """What is run. `kernel_text` is the source of a kernel `file.py:function`: workers need not have that file."""

    kernel: str
    kernel_text: str | None
    kernel_digest: str
    machine: str
    machine_yaml: str
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    knobs: tuple[tuple[str, object], ...]
    engine: str
    seed: int
    simulator: str
    faults: tuple[str, ...]
    timeout: int | None
    lowering: str
    constants: str
    preq: tuple[str, ...]
    code: str

    @cached_property
    def key(self) -> str:
        """16 hexadecimal digits: equal for points that must give equal results, and for no others."""
        return text_digest(json.dumps(asdict(self), sort_keys=True))

    def label(self) -> str:
        """The point in words, for people."""
        shapes = " ".join(f"{name}={'x'.join(map(str, shape))}" for name, shape in self.shapes)
        knobs = "".join(f" {name}={value}" for name, value in self.knobs)
        return f"{self.kernel} {shapes}{knobs} seed {self.seed} on {self.machine}, {self.engine}"

    def columns(self) -> dict:
        """The row's identity: a column for each operand's shape and each knob."""
        return {
            "key": self.key,
            "kernel": self.kernel,
            "machine": self.machine,
            "engine": self.engine,
            "seed": self.seed,
            **{f"shape_{name}": "x".join(map(str, shape)) for name, shape in self.shapes},
            **{f"knob_{name}": value for name, value in self.knobs},
        }


MEASURED = {
    "verdict": str, "error": str, "message": str, "chosen": str, "cycles": int, "instruction_flits": int,
    "flit_hops": int,
    "dram_read_bytes": int, "dram_written_bytes": int, "result_bytes": int, "elements_different": int, "digest": str,
    "expected_digest": str, "artifact": str, "seconds": float, "worker": str, "finished": str,
}  # fmt: skip
# what may differ between two runs of one point
INCIDENTAL = ("seconds", "worker", "finished")


@cache
def _kernel(reference: str, text: str | None, expected: str) -> Kernel:
    if text is None:
        kernel = load_kernel(reference)
        if text_digest(Path(kernel.source.file).read_text()) != expected:
            raise OtherCode(f"{reference} in {kernel.source.file} is not the kernel that this sweep began with")
        return kernel
    file, _, function = reference.rpartition(":")
    with tempfile.TemporaryDirectory(prefix=FOLDER) as folder:
        path = Path(folder) / file
        path.write_text(text)
        return load_kernel(f"{path}:{function}")


def measure(point: Point, engines: Mapping[str, Callable], status_of: Callable[[Exception], int | None]) -> dict:
    """The row of `point`: identity, verdict, and what was measured as far as it came.

    `engines` maps an engine's name to `(artifact, machine, operands, point) -> run`, a `ModelRun` or `RtlRun`;
    `status_of` gives the exit status of an error that has one. Never raises for what a point does: that is a verdict.
    """
    row = {**point.columns(), **dict.fromkeys(MEASURED)}
    row["worker"] = f"{socket.gethostname()}:{os.getpid()}"
    start = time.perf_counter()
    try:
        row |= _run(point, engines)
    except (Exception, SystemExit) as error:
        status = None if isinstance(error, (OSError, SystemExit)) else status_of(error)
        row["verdict"] = FAILED if status is None else VERDICTS[status]
        row["error"] = type(error).__name__
        text = re.sub(rf"\S*/{FOLDER}[^/\s]+/", "", str(error)).replace(f"{PACKAGE.parent}/", "")
        row["message"] = "\n".join(text.splitlines()[:MESSAGE_LINES])[:MESSAGE_LENGTH]
    row["seconds"] = round(time.perf_counter() - start, 3)
    row["finished"] = datetime.now(UTC).isoformat(timespec="milliseconds")
    return row


def _run(point: Point, engines: Mapping[str, Callable]) -> dict:
    here = code_digest(point.engine == "rtl")
    if here != point.code:
        raise OtherCode(
            f"worker {socket.gethostname()} has program {here}, and the sweep {point.code}: install the same version"
        )
    kernel = _kernel(point.kernel, point.kernel_text, point.kernel_digest)
    machine = from_yaml(point.machine_yaml)
    shapes, given = dict(point.shapes), dict(point.knobs)
    options = Options(lowering=point.lowering, constants=point.constants, preq=point.preq)
    knobs = settle(kernel, machine, shapes, given, options)
    artifact = compile_kernel(kernel, machine, shapes, knobs, options)
    operands = random_operands(shapes, point.seed)
    run = engines[point.engine](artifact, machine, operands, point)
    image = run_reference(kernel, knobs, operands, machine, constants=point.constants)
    rows = compare(artifact, image.outputs, run.run.outputs)
    if not rows:
        raise KernelError(f"{kernel.name} has no result: nothing was compared")
    first = next((str(row.first) for row in rows if row.first is not None), None)
    return {
        "verdict": VERDICTS[0] if all(row.equal for row in rows) else VERDICTS[1],
        "message": first,
        "chosen": " ".join(f"{name}={value}" for name, value in knobs.items() if given.get(name) != value),
        "cycles": run.cycles,
        "instruction_flits": artifact.flit_count,
        "flit_hops": run.hops,
        "dram_read_bytes": run.dram_read,
        "dram_written_bytes": run.dram_written,
        "result_bytes": sum(row.bytes for row in rows),
        "elements_different": sum(row.different for row in rows),
        "digest": _digest(run.run.outputs),
        "expected_digest": _digest(image.outputs),
        "artifact": artifact.digest,
    }


def _digest(outputs: Mapping) -> str:
    """One output's digest as other commands print it; of several, theirs joined."""
    return " ".join(digest(outputs[name]) for name in sorted(outputs))
