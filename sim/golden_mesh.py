"""Whole-mesh recordings replayed on the gates: `mesh.npz` and `mesh_links.npz`, with the comparisons of the model's
replay.

One simulation for each run, since L1s and accumulators survive a reset.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

from kohakutpu.conformance import mesh
from kohakutpu.conformance.arrays import replaying
from kohakutpu.conformance.report import Tally
from kohakutpu.isa.flit import Flit
from kohakutpu.machine import load
from kohakutpu.wording import counted

from .machine import Built, build, simulate
from .trace import transfers

# Which of our links each recorded link is (conformance.mesh.RECORDED_LINKS, by name).
RECORDED_LINKS = {
    1: "r11.local", 2: "cluster0.out", 3: "r21.local", 4: "vector0.out", 5: "r11.north", 6: "mag0.out", 7: "r11.west",
}  # fmt: skip
LOOK = 200  # cycles


class Replay(mesh.Replay):
    """The model's replay on a running simulation (`sim.inside.Machine`)."""

    def __init__(self, machine, before):
        self.machine = machine
        self.arrived: list[tuple[int, Flit]] = []
        self.signals = self.received = 0
        self.types = defaultdict(int)
        self.noted = 0
        machine.write_memory(0, before.astype("<u4").tobytes())
        self.system = SimpleNamespace(
            bench=SimpleNamespace(inject=lambda flit: machine.inject([flit])), engine=_Clock(machine),
            memory=SimpleNamespace(read=machine.read_memory),
        )  # fmt: skip

    def _catch_up(self) -> None:
        while self.noted < len(self.machine.received):
            self.note(*self.machine.received[self.noted])
            self.noted += 1

    def wait(self, condition, budget: int = mesh.GATE_BUDGET) -> bool:
        def looked() -> bool:
            self._catch_up()
            return condition()

        # what does not come with an arrival is looked at now and then
        return any(self.machine.wait(looked, LOOK) for _ in range(-(-budget // LOOK)))

    def sent(self) -> bool:
        return self.machine.unsent == 0

    def quiet(self, cycles: int) -> None:
        if not self.machine.wait_quiet(cycles, mesh.GATE_BUDGET):
            raise RuntimeError(f"links still move after {mesh.GATE_BUDGET} cycles\n{self.machine.report()}")
        self.machine.advance(cycles)
        self._catch_up()


class _Clock:
    def __init__(self, machine):
        self.machine, self.advance = machine, machine.advance

    @property
    def now(self) -> int:
        return self.machine.now


def replay(machine, run, name: str, words: int) -> dict:
    """The job: one recorded run; what arrived at the bench, memory, gates that never opened, and cycle rows."""
    replaying_ = Replay(machine, run.before)
    tally = Tally("", name, "flits")
    if isinstance(run, mesh.PortRun):
        mesh.replay_waits(name, run, replaying_, tally)
    else:
        mesh.replay_gates(run, replaying_, tally)
    return {
        "arrived": replaying_.arrived, "memory": machine.read_memory(0, words), "wrong": tally.mismatched,
        "first": tally.first, "cycles": tally.cycles,
    }  # fmt: skip


def _replayed(built: Built, run, name: str, memory: Tally, flits: Tally) -> dict[str, list[Flit]]:
    """Replay one run, compare its memory, note its gates and cycles; the flits of each link."""
    with tempfile.TemporaryDirectory() as folder:
        prefix = Path(folder) / "flits"
        done = simulate(built, "sim.golden_mesh:replay", records=prefix, run=run, name=name, words=run.after.size * 4)
        links = defaultdict(list)
        for _, link, flit in transfers(prefix, built.links):
            links[link.name].append(flit)
    flits.differ(done["wrong"], done["first"])
    flits.cycles += done["cycles"]
    seen = SimpleNamespace(
        system=SimpleNamespace(memory=SimpleNamespace(read=lambda address, length: done["memory"][:length]))
    )
    mesh.compare_memory(memory, name, seen, run.after)
    return links | {"arrived": [flit for _, flit in done["arrived"]]}


def check_mesh(path: Path, *, simulator: str) -> list[Tally]:
    """The whole-mesh runs of `mesh.npz` on the gates of mm_mesh."""
    runs = mesh.port_runs(path)
    memory = Tally(path.name, f"{counted(len(runs), 'whole-mesh run')} on the gates, memory", "words")
    flits = Tally(path.name, f"{counted(len(runs), 'whole-mesh run')} on the gates, agent port", "flits")
    built = build(load("mm_mesh"), simulator=simulator, agent="bench")
    for prefix, run in runs.items():
        with replaying(path, prefix):
            links = _replayed(built, run, prefix, memory, flits)
            mesh.compare_flits(flits, prefix, links["arrived"], run.on(1))
    return [memory, flits]


def check_mesh_links(path: Path, *, simulator: str) -> list[Tally]:
    """The runs of `mesh_links.npz` on the gates of mm_mesh_links.

    Runs that show errata are on a second machine, which has every erratum that one of them shows, as the recorded one
    had.
    """
    names, runs = mesh.link_runs(path)
    showing = {run.name: run.errata | mesh.UNLISTED_ERRATA.get(run.name, frozenset()) for run in runs}
    timing = sum(run.timing for run in runs)
    memory = Tally(path.name, f"{counted(len(runs), 'link-level run')} on the gates, memory", "words")
    title = (
        f"{counted(len(runs) - timing, 'link-level run')} on the gates, every link ({timing} more bind in memory only)"
    )
    flits = Tally(path.name, title, "flits")
    machine = load("mm_mesh_links")
    for errata in (frozenset(), frozenset().union(*showing.values())):
        group = [run for run in runs if bool(showing[run.name]) == bool(errata)]
        if not group:
            continue
        built = build(dataclasses.replace(machine, errata=errata), simulator=simulator, agent="bench")
        for run in group:
            with replaying(path, run.name):
                links = _replayed(built, run, run.name, memory, flits)
                if run.timing:
                    continue
                for number, link in RECORDED_LINKS.items():
                    mesh.compare_flits(flits, f"{run.name}, {names[number]}", links.get(link, []), run.on(number))
    return [memory, flits]
