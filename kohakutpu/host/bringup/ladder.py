"""The steps in order, and climbing them: the first that fails ends it (spec: bring-up checklist)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from kohakutpu.isa.fields import EncodingError
from kohakutpu.lang.source import KernelError
from kohakutpu.machine import Machine, MachineError
from kohakutpu.wording import counted

from ..loader import LoadError
from ..transport import Transport, TransportError
from . import compute, identity, link, memory
from .board import Board, NotPresent, Status, StepFailed, Verdict

FORMAT = "kohakutpu-bringup-1"
# What a step may end in besides its own finding: errors that the project itself names.
NAMED = (TransportError, MachineError, KernelError, LoadError, EncodingError)


class NoStep(ValueError):
    """A name that is no step, or a range of steps with none in it."""


@dataclass(frozen=True)
class Step:
    """One rung. `run(board)` returns what it measured, or raises."""

    number: int
    name: str
    title: str
    run: Callable[[Board], dict]


STEPS = tuple(
    Step(number, name, title, run)
    for number, (name, title, run) in enumerate(
        [
            ("link", "link and width", link.link),
            ("write", "the write path is honest", link.write),
            ("identity", "identity and version", identity.identity),
            ("enumerate", "every unit and port where it was described, and no other", identity.enumerate_all),
            ("memory", "memory: data lines, address lines, random data, retention", memory.memory),
            ("mover", "memory mover", memory.mover),
            ("flit", "one flit to every node", compute.flit),
            ("unit", "the smallest computation on each unit", compute.unit),
            ("all-units", "all units at once", compute.all_units),
            ("kernel", "one real kernel against the interpreter", compute.fused),
            ("repeat", "the same again, every time", compute.repeat),
        ],
        1,
    )
)


@dataclass
class Result:
    """A step's verdict: `facts` as measured, `text` what is wrong or why it was passed by, `elapsed` in the
    transport's unit."""

    step: Step
    verdict: Verdict = Verdict.NOT_RUN
    facts: dict = field(default_factory=dict)
    text: str = ""
    elapsed: float = 0

    def to_dict(self) -> dict:
        return {
            "number": self.step.number, "step": self.step.name, "title": self.step.title, "verdict": self.verdict.value,
            "text": self.text, "elapsed": self.elapsed, "facts": self.facts,
        }  # fmt: skip


@dataclass
class Report:
    """A climb: what of, over what, and a result for each step, those that did not run included."""

    machine: Machine
    transport: str
    unit: str
    results: list[Result]
    runs: int
    seed: int

    @property
    def failed(self) -> Result | None:
        return next((result for result in self.results if result.verdict.status), None)

    @property
    def status(self) -> Status:
        return self.failed.verdict.status if self.failed else Status.PASSED

    @property
    def passed(self) -> int:
        return sum(result.verdict is Verdict.PASSED for result in self.results)

    @property
    def summary(self) -> str:
        """One line: how far it got."""
        title = f"{self.machine.name} over {self.transport}"
        if self.failed:
            step = self.failed.step
            return f"{title}: step {step.number} ({step.name}) failed: {self.failed.verdict.value}"
        aside = []
        for verdict in (Verdict.NOT_PRESENT, Verdict.DOES_NOT_APPLY, Verdict.NOT_RUN):
            names = [result.step.name for result in self.results if result.verdict is verdict]
            aside += [f"{verdict.value}: {', '.join(names)}"] if names else []
        return f"{title}: {self.passed} of {counted(len(self.results), 'step')} passed" + (
            f" ({'; '.join(aside)})" if aside else ""
        )

    def to_dict(self) -> dict:
        return {
            "format": FORMAT, "machine": self.machine.name, "transport": self.transport, "unit": self.unit,
            "runs": self.runs, "seed": self.seed, "exit_status": int(self.status), "summary": self.summary,
            "steps": [result.to_dict() for result in self.results],
        }  # fmt: skip


def step_of(text: str) -> Step:
    """The step of a name or number; raises `NoStep` listing them."""
    for step in STEPS:
        if text in (step.name, str(step.number)):
            return step
    raise NoStep(f"no step {text!r}; there are {', '.join(f'{step.number} {step.name}' for step in STEPS)}")


def plan(machine: Machine, first: str | None = None, last: str | None = None) -> list[Result]:
    """A result for each step, as it stands before anything runs: which will, and why the others will not."""
    low = STEPS[0] if first is None else step_of(first)
    high = STEPS[-1] if last is None else step_of(last)
    if low.number > high.number:
        raise NoStep(f"from step {low.number} ({low.name}) until step {high.number} ({high.name}) there is none")
    results = []
    for step in STEPS:
        result = Result(step)
        if not low.number <= step.number <= high.number:
            result.text = f"left out: steps {low.number} to {high.number} were asked for"
        elif machine.compile_only and step.name != "kernel":
            result.verdict = Verdict.DOES_NOT_APPLY
            result.text = f"{machine.name} is compile-only: nothing can be built of it, and nothing answers"
        results.append(result)
    if not waiting(results):
        raise NoStep(
            f"none of steps {low.number} to {high.number} applies: {machine.name} is compile-only, and only kernel does"
        )
    return results


def waiting(results: list[Result]) -> list[Result]:
    """Those that are still to run."""
    return [result for result in results if result.verdict is Verdict.NOT_RUN and not result.text]


def compiled_only(machine: Machine) -> dict:
    """All that can be said of a machine that only compiles: the real kernel does."""
    artifact = compute.real(machine).artifact(machine)
    return {
        "kernel": artifact.kernel,
        "instructions": artifact.flit_count,
        "compiled_only": True,
        "digest": artifact.digest,
    }


def run_step(result: Result, now: Callable[[], float], run: Callable[[], dict]) -> None:
    """Run one step and put its verdict down. Errors that nobody named are not caught."""
    start = now()
    try:
        result.facts = run()
        result.verdict = Verdict.PASSED
    except NotPresent as error:
        result.verdict, result.text, result.facts = Verdict.NOT_PRESENT, str(error), error.facts
    except StepFailed as error:
        result.verdict, result.text, result.facts = Verdict.of(error.exit_status), str(error), error.facts
    except Exception as error:
        status = getattr(error, "exit_status", Status.REFUSED if isinstance(error, NAMED) else None)
        if status is None:
            raise
        result.verdict, result.text = Verdict.of(status), str(error)
    if result.verdict is not Verdict.NO_TRANSPORT:
        result.elapsed = now() - start


def climb(machine: Machine, opener: Callable[[], Transport], *, transport: str, first: str | None = None,
          last: str | None = None, runs: int = 6, seed: int = 1,
          timeout: float | None = None) -> Iterator[Result | Report]:  # fmt: skip
    """Open the transport and climb; yields each step's result as it is known, then the `Report`.

    `transport` is its name for the report. Failing to open it is the first step's verdict. It is closed at the end.
    """
    results = plan(machine, first, last)
    report = Report(machine, transport, "", results, runs, seed)
    pending = waiting(results)
    if machine.compile_only:
        for result in pending:
            run_step(result, lambda: 0, lambda: compiled_only(machine))
        yield from results
        yield report
        return
    opened: list[Transport] = []
    run_step(pending[0], lambda: 0, lambda: opened.append(opener()) or {})
    if opened:
        with opened[0] as way:
            report.unit = way.unit
            board = Board(machine, way, runs=runs, seed=seed, timeout=timeout)
            for result in results:
                if result in pending:
                    run_step(result, lambda: way.now, partial(result.step.run, board))
                yield result
                if result.verdict.status:
                    break
    failed = report.failed
    for result in waiting(results):
        result.text = f"step {failed.step.number} ({failed.step.name}) failed before"
    if not opened:
        yield failed
    yield report
