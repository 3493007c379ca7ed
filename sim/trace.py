"""What the observer of a simulation (`sim.tracer`) writes: as records, and as a trace file while it runs."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import NamedTuple

from kohakutpu.isa.flit import FLIT_WIDTH, Flit
from kohakutpu.machine import Machine
from kohakutpu.noc.trace import Event, Level, Orderer, Record, TraceError, TraceWriter, Transfer
from kohakutpu.noc.trace_tracks import tracks
from kohakutpu.wording import counted

PATH_LIMIT = 4000  # bytes of a path that a simulator is given


class Wire(NamedTuple):
    """A link as a trace knows it."""

    index: int
    name: str


def parse(lines: Iterable[str], sink: Orderer) -> None:
    """Feed records to `sink`, and tell it how long the run was.

    Raises `TraceError` for a line that is none, and for a stream that ends before the run did.
    """
    number = 0
    for number, line in enumerate(lines, 1):
        try:
            kind, *words = line.split()
            values = [int(word, 16) for word in words]
            if kind == "end":
                (sink.cycles,) = values
                continue
            index, cycle, value = values
            if kind == "f" and value >> FLIT_WIDTH:
                raise ValueError
            if kind == "f":
                record: Record = Transfer(cycle, index, Flit.from_int(value))
            else:
                record = {"l": Level, "e": Event}[kind](cycle, index, value)
        except (ValueError, KeyError):
            raise TraceError(f"line {number} of the simulation's records is none: {line.strip()!r}") from None
        sink.advance(cycle)
        sink.add(record)
    if sink.cycles is None:
        raise TraceError(
            f"the simulation's records end after {counted(number, 'line')} without saying that the run is over"
        )


def transfers(path: Path, links: Sequence[str]) -> Iterator[tuple[int, Wire, Flit]]:
    """(cycle, link, flit) of every transfer that a simulation wrote to the file `path`, in order of cycles and
    links."""
    wires = [Wire(index, name) for index, name in enumerate(links)]
    with open(path) as file:
        for line in file:
            kind, *words = line.split()
            if kind == "f":
                index, cycle, flit = (int(word, 16) for word in words)
                yield cycle, wires[index], Flit.from_int(flit)


@contextmanager
def piped(sink: Orderer) -> Iterator[Path]:
    """A named pipe for a simulation to write its records to; `sink` gets them while it runs.

    Whatever goes wrong with them is raised when the context is left, so that the simulation is not held up.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "records"
        os.mkfifo(path)
        # Both ends are open before the simulator is there: it does not wait, nor does the reader if it never comes.
        reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        writing = os.open(path, os.O_WRONLY)
        os.set_blocking(reading, True)
        failed: list[BaseException] = []

        def follow() -> None:
            with open(reading) as stream:
                try:
                    parse(stream, sink)
                except BaseException as error:
                    failed.append(error)
                    for _ in stream:
                        pass

        reader = Thread(target=follow)
        reader.start()
        try:
            yield path
        finally:
            os.close(writing)
            reader.join()
        if failed:
            raise failed[0]


@contextmanager
def recorded(trace: Path, machine: Machine, links: Sequence[str], *, agent: str = "orchestrator") -> Iterator[Path]:
    """A pipe as `piped` has it, whose records become the trace file `trace` of `machine`."""
    wires = [Wire(index, name) for index, name in enumerate(links)]
    with TraceWriter(trace, machine, wires, tracks(machine, agent=agent)) as writer, piped(writer) as path:
        yield path
