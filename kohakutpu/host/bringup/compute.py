"""Steps 7 to 11: one flit to every node, the smallest computation of each unit, all units, a real kernel, repeats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from kohakutpu import lang as L
from kohakutpu.compiler import compile_kernel
from kohakutpu.compiler.artifact import Artifact
from kohakutpu.isa.memory import WORD_BYTES
from kohakutpu.lang import dims, kernel, loop, units
from kohakutpu.lang.kernel import Kernel
from kohakutpu.lang.kernel import load as load_kernel
from kohakutpu.machine import Machine
from kohakutpu.wording import counted

from .. import counters
from ..compare import compare, digest
from ..discovery import port_answers, write_through_port
from ..programs import Program, run_programs
from ..simulate import run_reference
from .board import Board, WrongAnswer, place
from .identity import check_port_word
from .memory import tag, walked_addresses

M, K, N = dims("M, K, N")
NOTHING = 0  # an opcode that both kinds of unit retire without effect (spec: envelope, completion)
FIRST_TXN = 0x11
LIBRARY = "kohakutpu.kernels.linear"
OPERAND_SETS = 2  # of the last step: one operand set may be right by luck


@kernel
def product(a=L.In(..., M, K), b=L.In(N, K), c=L.Out(..., M, N), *, gm=1, gn=1, nk=1):
    """c = a @ b.T"""
    with units(a.tiles(gm), b.tiles(gn)) as (i, j):
        acc = L.tile(gm, gn, nk)
        for k in loop(a.chunks32(nk)):
            acc += a[i, k] @ b[j, k]
        c[i, j] <<= acc


@kernel
def copied(x=L.In(..., M, N), y=L.Out(..., M, N), *, part=1024):
    """y = x"""
    y <<= x


@kernel
def activated(x=L.In(..., M, N), y=L.Out(..., M, N), *, part=1024):
    """y = silu(x)"""
    y <<= L.silu(x)


@dataclass(frozen=True)
class Case:
    """A kernel with its knobs and the shapes of its operands."""

    kernel: Kernel
    shapes: Mapping[str, tuple[int, ...]]
    knobs: Mapping[str, object]

    def artifact(self, machine: Machine) -> Artifact:
        return compile_kernel(self.kernel, machine, self.shapes, self.knobs)

    def operands(self, seed: int) -> dict[str, np.ndarray]:
        random = np.random.default_rng(seed)
        return {name: random.normal(0, 0.3, shape).astype(np.float16) for name, shape in self.shapes.items()}


def only(machine: Machine, *kept) -> Machine:
    """The machine without the units that are not in `kept`; places and ports stay."""
    return replace(
        machine, clusters=tuple(unit for unit in machine.clusters if unit in kept),
        vectors=tuple(unit for unit in machine.vectors if unit in kept),
    )  # fmt: skip


# ---- one flit to every node --------------------------------------------------------------------------------


def signals_seen(board: Board) -> dict[int, int]:
    return {at: board.driver.node_status(at)["count"] for at in board.kinds}


def ask_units(board: Board) -> None:
    """One instruction without effect for each unit: its completion comes from there, and nothing from anywhere else."""
    machine = board.machine
    for number, unit in enumerate(machine.units):
        before = signals_seen(board)
        program = Program(unit.node, (NOTHING,), FIRST_TXN + number)
        run_programs(
            board.driver, [program], slots=machine.staging_flits, credit=machine.credit_limit, kinds=board.kinds
        )
        after = signals_seen(board)
        moved = {place(at): (after[at] - before[at]) & 0xFFFF for at in after if after[at] != before[at]}
        if moved != {place(unit.node): 1}:
            raise WrongAnswer(f"one instruction for {place(unit.node)} gave signals {moved}")


def ask_ports(board: Board) -> int:
    """Each memory port reads what the host wrote at every power of two, and writes there: its lines are its own."""
    addresses = walked_addresses(board.machine.memory.bytes)
    words = {at: tag(at, False) for at in addresses}
    belongs = {word: at for at, word in words.items()}
    for port in board.machine.ports:
        for at, word in words.items():
            board.write(at, word)
        for at, word in words.items():
            answer = port_answers(board.driver, port.node, agent=board.agent, address=at)
            if answer is None:
                raise board.stopped(f"the memory port at {place(port.node)} did not answer a read of {at:#x}")
            check_port_word(port.node, answer, at, word, belongs)
        for at, word in words.items():
            turned = tag(at, True)
            if not write_through_port(board.driver, port.node, at, turned, agent=board.agent):
                raise board.stopped(f"the memory port at {place(port.node)} did not acknowledge a write of {at:#x}")
            found = board.read(at, WORD_BYTES)
            if found != turned:
                was = "what was there before" if found == word else found.hex()
                raise WrongAnswer(
                    f"{at:#x} reads {was} after the memory port at {place(port.node)} wrote {turned.hex()} there"
                )
    return len(addresses)


def flit(board: Board) -> dict:
    """One flit to every node and back: each unit and each memory port, from the host."""
    ask_units(board)
    words = ask_ports(board)
    return {"units": len(board.machine.units), "ports": len(board.machine.ports), "words_by_each_port": words}


# ---- computing ---------------------------------------------------------------------------------------------


def sent(artifact: Artifact) -> Counter[int]:
    """Instructions that an artifact sends to each node."""
    count: Counter[int] = Counter()
    for round_ in artifact.rounds:
        for kick in round_.kicks:
            count[kick.node] += kick.count
    return count


def compute(board: Board, case: Case, machine: Machine, what: str, seed: int) -> dict:
    """Run a case that is compiled for `machine`, compare with the interpreter, and see by their counters who worked.

    Raises `WrongAnswer` with the first element that differs, or the unit that retired another number of instructions.
    """
    artifact = case.artifact(machine)
    operands = case.operands(seed)
    board.driver.identify()
    board.driver.clear_error()
    board.loader.load(artifact, operands)
    work = sent(artifact)
    before = {at: counters.read(board.driver, at, board.kinds[at], agent=board.agent) for at in work}
    run = board.loader.execute(artifact)
    counts = {at: counters.read(board.driver, at, board.kinds[at], agent=board.agent).since(before[at]) for at in work}
    rows = compare(artifact, run_reference(case.kernel, case.knobs, operands, machine).outputs, run.outputs)
    for row in rows:
        if not row.equal:
            raise WrongAnswer(f"{what}: {row.different} of {counted(row.bytes // 2, 'element')} differ; {row.first}")
    for at, count in work.items():
        if counts[at]["retired"] != count:
            raise WrongAnswer(
                f"{what}: {place(at)} retired {counts[at]['retired']} instructions, and {count} were sent to it"
            )
    return {
        "kernel": artifact.kernel, "instructions": artifact.flit_count, "elapsed": run.elapsed, "unit": run.unit,
        "bytes": sum(row.bytes for row in rows), "sha256": {row.buffer: row.found for row in rows},
        "busy_cycles": {place(at): count["busy_cycles"] for at, count in counts.items()},
    }  # fmt: skip


def unit(board: Board) -> dict:
    """Alone, one after the other: a 4x4 product of 32 terms on each cluster, a copy and a silu on each core."""
    machine = board.machine
    done: dict[str, dict] = {}
    for each in machine.units:
        name = place(each.node)
        alone = only(machine, each)
        if each in machine.clusters:
            cases = [Case(product, {"a": (4, 32), "b": (4, 32)}, {})]
        else:
            cases = [Case(copied, {"x": (1, 16)}, {}), Case(activated, {"x": (1, 16)}, {})]
        for case in cases:
            ran = compute(board, case, alone, f"{case.kernel.name} on {name} alone", board.seed + each.node)
            done.setdefault(name, {})[case.kernel.name] = ran
    return {"clusters": len(machine.clusters), "vector_cores": len(machine.vectors), "done": done}


def all_units(board: Board) -> dict:
    """All clusters at once, a tile each, then all vector cores, a part each; every one of them has to have worked."""
    machine = board.machine
    done = {}
    tile = {"gm": 2, "gn": 2, "nk": 2}
    groups = [
        ("clusters", machine.clusters, Case(product, {"a": (8 * len(machine.clusters), 64), "b": (8, 64)}, tile)),
        ("vector cores", machine.vectors, Case(activated, {"x": (len(machine.vectors), 1024)}, {})),
    ]  # fmt: skip
    for name, group, case in groups:
        if not group:
            continue
        idle = {each.node for each in group} - sent(case.artifact(machine)).keys()
        if idle:
            raise WrongAnswer(f"the program for all {name} leaves out {', '.join(place(at) for at in sorted(idle))}")
        done[name] = compute(board, case, machine, f"{case.kernel.name} on all {name}", board.seed)
    return {"clusters": len(machine.clusters), "vector_cores": len(machine.vectors), "done": done}


def substitute(machine: Machine) -> str:
    """Why the real kernel of a machine is not the fused one; empty where it is."""
    if not machine.clusters:
        return "no cluster: the activation alone in place of the fused kernel"
    return "" if machine.vectors else "no vector core: the plain product in place of the fused kernel"


def real(machine: Machine) -> Case:
    """The fused kernel; on a machine without vector cores the plain product, without clusters the activation alone."""
    if not machine.clusters:
        return Case(activated, {"x": (32, 32)}, {})
    shapes, knobs = ((32, 64), (32, 64)), {"gm": 8, "gn": 8}
    name, ports = ("linear_silu", ("x", "w")) if machine.vectors else ("matmul", ("a", "b"))
    return Case(load_kernel(f"{LIBRARY}:{name}"), dict(zip(ports, shapes, strict=True)), knobs)


def fused(board: Board) -> dict:
    """One real kernel of the library against its meaning; wrong once, it is run again to tell flicker from a fault."""
    case = real(board.machine)
    try:
        note = substitute(board.machine)
        done = compute(board, case, board.machine, case.kernel.name, board.seed)
        return done | ({"note": note} if note else {})
    except WrongAnswer as error:
        _, text = repetitions(board, case, board.seed, 3)
        raise WrongAnswer(f"{error}\n{text}", error.facts) from error


# ---- repeatability -----------------------------------------------------------------------------------------


def repetitions(board: Board, case: Case, seed: int, runs: int) -> tuple[dict, str]:
    """Run a case `runs` times on the same operands: facts, and what is wrong with the results in words (or nothing).

    An element that is wrong with the same value in every run is reproducible; one whose value changes flickers.
    """
    artifact = case.artifact(board.machine)
    operands = case.operands(seed)
    meant = run_reference(case.kernel, case.knobs, operands, board.machine).outputs
    images = [board.loader.run(artifact, operands).outputs for _ in range(runs)]
    texts, digests = [], {}
    for name, right in meant.items():
        stack = np.stack([image[name] for image in images])
        steady = (stack == stack[0]).all(axis=0)
        wrong = stack != right
        flickers, reproducible = ~steady, steady & wrong[0]
        digests[name] = [digest(image[name]) for image in images]
        if flickers.any():
            index = tuple(int(axis) for axis in np.argwhere(flickers)[0])
            values = Counter(f"{int(image[name][index]):04x}" for image in images)
            seen = ", ".join(f"{value} in {count}" for value, count in values.items())
            bad = int(wrong.reshape(runs, -1).any(axis=1).sum())
            texts.append(
                f"flicker: {int(flickers.sum())} of {counted(right.size, 'element')} of {name} change over {runs} "
                "runs on the "
                f"same operands, {bad} of them wrong; {name}{list(index)} is {int(right[index]):04x} and was {seen}"
            )
        if reproducible.any():
            index = tuple(int(axis) for axis in np.argwhere(reproducible)[0])
            texts.append(
                f"reproducible: {int(reproducible.sum())} of {counted(right.size, 'element')} of {name} are wrong in "
                "the same "
                f"way in all {runs} runs; {name}{list(index)} is {int(right[index]):04x} and was "
                f"{int(stack[0][index]):04x}"
            )
    return {"kernel": artifact.kernel, "runs": runs, "sha256": digests}, "; ".join(texts)


def repeat(board: Board) -> dict:
    """The real kernel again and again, on two sets of operands; flicker and what is always wrong are told apart."""
    case = real(board.machine)
    facts: dict = {"kernel": case.kernel.name, "runs": board.runs * OPERAND_SETS, "operand_sets": OPERAND_SETS}
    texts = []
    for number in range(1, OPERAND_SETS + 1):
        seed = board.seed + 100 * number
        facts[f"operands {number}"], text = repetitions(board, case, seed, board.runs)
        if text:
            texts.append(f"operands {number}: {text}")
    if texts:
        raise WrongAnswer("; ".join(texts), facts)
    return facts
