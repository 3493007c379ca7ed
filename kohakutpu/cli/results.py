"""What a run prints: the machine's counts, and each buffer on both sides."""

from __future__ import annotations

from kohakutpu.compiler.artifact import Artifact
from kohakutpu.host.compare import Comparison
from kohakutpu.wording import counted


def print_machine(artifact: Artifact, result, engine: str = "model") -> None:
    """Cycles, instruction flits, flits by node and type, and memory traffic of a `ModelRun` or an `RtlRun`."""
    kinds = ", ".join(f"{count} {name}" for name, count in artifact.kinds().items())
    print(
        f"{artifact.kernel} on {artifact.machine}, {engine}: {counted(result.cycles, 'cycle')}, "
        f"{counted(artifact.flit_count, 'instruction flit')} ({kinds})"
    )
    for node, types in result.flits.items():
        print(f"  {node:16} sent " + ", ".join(f"{count} {name}" for name, count in types.items()))
    print(
        f"  {counted(result.hops, 'flit-hop')}, DRAM {result.dram_read} bytes read, {result.dram_written} bytes written"
    )


def print_comparisons(rows: list[Comparison], engine: str = "model") -> bool:
    """Each buffer's size and digest on both sides; True when all are equal."""
    for row in rows:
        verdict = "byte-equal" if row.equal else f"{row.different} of {row.bytes // 2} elements differ"
        print(
            f"  {row.buffer:12} {row.bytes} bytes  reference sha256 {row.expected}  {engine} sha256 {row.found}  "
            f"{verdict}"
        )
        if row.first is not None:
            print(f"  {row.first}")
    equal = all(row.equal for row in rows) and bool(rows)
    print("  byte-equal" if equal else "  NOT byte-equal")
    return equal
