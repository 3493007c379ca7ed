"""Products that benchmarks measure: the library's matmul on a machine's cycle model, its bytes compared with the
interpreter's."""

from __future__ import annotations

from dataclasses import dataclass

from kohakutpu.compiler import AUTO, Artifact, Options, compile_kernel
from kohakutpu.host.compare import compare
from kohakutpu.host.simulate import random_operands, run_model, run_reference
from kohakutpu.kernels.linear import matmul
from kohakutpu.machine import load

CHOSEN = dict.fromkeys(("gm", "gn", "nk"), AUTO)  # tiles: the compiler's own


@dataclass(frozen=True)
class Product:
    """C[M,N] = A[M,K] @ B[N,K].T on `machine`; `preq`: operands are MXFP7 in memory, otherwise FP16."""

    machine: str
    m: int
    k: int
    n: int
    preq: bool = False

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        return {"a": (self.m, self.k), "b": (self.n, self.k)}

    def compiled(self, knobs: dict, **options) -> Artifact:
        """Raises CompileError."""
        preq = ("a", "b") if self.preq else ()
        return compile_kernel(matmul, load(self.machine), self.shapes, knobs, Options(preq=preq, **options))

    def run(self, artifact: Artifact) -> dict:
        """One run on seeded operands: what it was of, its cycles, and whether every byte is the interpreter's."""
        machine, operands = load(self.machine), random_operands(self.shapes, 0)
        result = run_model(artifact, machine, operands)
        image = run_reference(matmul, artifact.knobs, operands, machine)
        return {
            "machine": self.machine, "clusters": len(machine.clusters), "shape": f"{self.m}x{self.k}x{self.n}",
            "operands": "MXFP7" if self.preq else "FP16", "tile": "{gm}x{gn}x{nk}".format(**artifact.knobs),
            "cycles": result.cycles,
            "byte_equal": all(row.equal for row in compare(artifact, image.outputs, result.run.outputs)),
        }  # fmt: skip
