"""Cocotb side of the golden cluster cases: the checker of the models runs them on the gates."""

import os
import pickle
from pathlib import Path

import cocotb
from cocotb.task import bridge, resume
from support.links import Links

from kohakutpu.conformance import cluster as golden
from kohakutpu.conformance.report import Tally

GOLDEN, RESULT = Path(os.environ["GOLDEN"]), Path(os.environ["RESULT"])


class Gates(golden.Neighbour):
    """The neighbour of a cluster in gates, for use in a thread that cocotb waits for."""

    def __init__(self, links: Links):
        super().__init__()
        self.links = links
        links.sinks["out_link"].on_flit = lambda cycle, flit: self.take(flit, cycle)
        links.each_cycle[:] = [self._offer]
        self._advance = resume(self._run)

    @property
    def now(self) -> int:
        return self.links.cycle

    def _offer(self, now: int) -> None:
        source = self.links.sources["in_link"]
        if source.done and self.next_due() <= now:
            source.send(self.next_flit())

    async def _run(self, completions: int, received: int, budget: int) -> None:
        await self.links.until(lambda: self.complete(completions, received), budget, f"completion {completions}")

    def run(self, completions: int, received: int = 0, budget: int = golden.BUDGET) -> None:
        self._advance(completions, received, budget)


@bridge
def cases(links: Links) -> list[Tally]:
    """Every case, and whether each flit left in the cycle in which it leaves the model."""
    found = golden.golden_cases(GOLDEN)
    fp16 = Tally(GOLDEN.name, f"{len(found)} cluster cases, FP16 results", "elements")
    raw = Tally(GOLDEN.name, f"{len(found)} cluster cases, raw accumulator", "elements")
    cycles = Tally(GOLDEN.name, f"{len(found)} cluster cases, the model's cycles", "flits")
    reset = resume(links.reset)
    for case in found:
        reset()
        gates, model = Gates(links), golden.ClusterBench(golden.GOLDEN_UNIT)
        nothing = Tally("", "", "")
        golden.run_case(case, nothing, nothing, model)
        try:
            golden.run_case(case, fp16, raw, gates)
        except AssertionError as error:  # the watchdog's
            fp16.differ(case.C_fp16.size, f"{case.label}: {error}")
        cycles.compared += len(model.received)
        pairs = list(zip(gates.received, model.received))
        late = next((at for at, (ours, theirs) in enumerate(pairs) if ours != theirs), len(pairs))
        wrong = max(len(gates.received), len(model.received)) - late
        cycles.differ(
            wrong, f"{case.label}: flit {late} of {len(gates.received)}, the model sends {len(model.received)}"
        )
    return [fp16, raw, cycles]


@cocotb.test()
async def golden_cases(dut):
    links = await Links.start(dut, probing=0)
    tallies = await cases(links)
    await links.finish()
    RESULT.write_bytes(pickle.dumps(tallies))
