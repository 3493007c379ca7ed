"""Run kernels on the models and on the gates at once and compare every flit, level and event, cycle by cycle.

With no KERNEL every kernel of kohakutpu.kernels runs that the machine can run. Operands are random (--seed) unless --in
gives files, and shapes small unless --shape says. At the first difference both sides stop, and what is known of it is
printed: cycle, link or track, what each side did, the last events of the two nodes, the instruction and its statement.

Exit status: 0 no difference, 1 one, 2 refused, 4 both sides stopped in the same way.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import kohakutpu.kernels
from kohakutpu.compiler import Artifact, CompileError, compile_kernel
from kohakutpu.lang.extents import Expr, Extents, names_in
from kohakutpu.lang.kernel import Kernel
from kohakutpu.machine import Machine, load
from kohakutpu.wording import counted

from .gates import SIMULATORS, gates
from .kernel_options import (
    ArgumentError, kernel_arguments, kernel_of, knobs_of, options_of, pairs, read_array, shapes_of,
)  # fmt: skip

HELP = "model and gates side by side, compared in every cycle"
# Of every dim, and of those in front of the last axis of operands of three and more; the first that the machine takes.
EXTENTS = ((64, 8), (32, 8), (32, 4))


def arguments(parser: argparse.ArgumentParser) -> None:
    kernel_arguments(parser, optional=True)
    repeatable = {"action": "append", "default": []}
    parser.add_argument("--in", **repeatable, dest="inputs", metavar="x=x.npy", help="an operand (repeatable)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of random operands (default 1)")
    parser.add_argument(
        "--simulator", choices=SIMULATORS, default=SIMULATORS[0], help=f"of the gates (default {SIMULATORS[0]})"
    )
    parser.add_argument("--latency", type=int, metavar="N", help="of the memory, 1 to the machine's")
    parser.add_argument("--latency-seed", type=int, metavar="S", help="draw each burst's latency, from 1 on")
    parser.add_argument("--waves", type=Path, metavar="DIR", help="run the gates alone and record waves there")
    parser.add_argument(
        "--window", type=cycle_window, metavar="A:B", help="record cycles A to B only, counted from reset (default all)"
    )
    parser.add_argument("--timeout", type=int, metavar="CYCLES", help="cycle budget of each wait")
    parser.add_argument(
        "--fault", **repeatable, metavar="FAULT",
        help="NAME injects a fault into the models, PLACE=NAME, such as cluster0=lane-tie, into the gates (repeatable)",
    )  # fmt: skip


def cycle_window(text: str) -> tuple[int, int]:
    """(first, last) of 'A:B'."""
    first, _, last = text.partition(":")
    if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
        raise argparse.ArgumentTypeError(f"{text!r}: expected two cycles A:B, the first not behind the last")
    return int(first), int(last)


def every_kernel() -> Iterator[Kernel]:
    """The kernels of kohakutpu.kernels, by module and name."""
    for item in sorted(pkgutil.iter_modules(kohakutpu.kernels.__path__), key=lambda item: item.name):
        module = importlib.import_module(f"{kohakutpu.kernels.__name__}.{item.name}")
        found = {id(kernel): kernel for _, kernel in sorted(vars(module).items()) if isinstance(kernel, Kernel)}
        yield from found.values()


def compiled(kernel: Kernel, machine: Machine, args: argparse.Namespace) -> tuple[Artifact, dict[str, np.ndarray]]:
    """(artifact, operands) with the shapes that were given, or else the first of `EXTENTS` that the machine takes."""
    files = {name: read_array(name, path) for name, path in pairs(args.inputs, "--in", "name=file.npy").items()}
    shapes = shapes_of(args) | {name: array.shape for name, array in files.items()}
    names = [port.name for port in kernel.inputs]
    if unknown := sorted(shapes.keys() - set(names)):
        raise ArgumentError(f"{kernel.name} has no operand {', '.join(unknown)}; it has {', '.join(names)}")
    ports = [[axis for axis in port.shape if isinstance(axis, Expr)] for port in kernel.inputs]
    front = {name for axes in ports if len(axes) > 2 for axis in axes[:-1] for name in names_in(axis)}
    for extent, less in EXTENTS:
        lead = (extent, extent // 2) if any(port.whole for port in kernel.ports.values()) else ()
        every = {name for axes in ports for axis in axes for name in names_in(axis)}
        found = Extents({name: less if name in front else extent for name in every}, lead)
        chosen = {port.name: shapes.get(port.name, port.logical_shape(found)) for port in kernel.inputs}
        try:
            artifact = compile_kernel(kernel, machine, chosen, knobs_of(args), options_of(args))
        except CompileError:
            if shapes or (extent, less) == EXTENTS[-1]:
                raise
            continue
        break
    random = np.random.default_rng(args.seed)
    made = {name: random.normal(0, 0.3, shape).astype(np.float16) for name, shape in chosen.items()}
    return artifact, made | files


def again(args: argparse.Namespace, kernel: str) -> str:
    """The command that runs a kernel on the gates once more, as now, and records waves."""
    words = ["kohakutpu", "lockstep", kernel]
    given = {
        "--machine": [args.machine], "--shape": args.shape, "--knob": args.knob, "--lowering": [args.lowering],
        "--constants": [args.constants], "--in": args.inputs, "--seed": [args.seed], "--simulator": [args.simulator],
        "--latency": [args.latency], "--latency-seed": [args.latency_seed], "--timeout": [args.timeout],
        "--fault": [fault for fault in args.fault if "=" in fault], "--waves": ["waves"],
    }  # fmt: skip
    for option, values in given.items():
        for value in values:
            if value is not None:
                words += [option, str(value)]
    return shlex.join(words)


def print_all(outcomes: list, machine: Machine) -> None:
    """The line under the runs of all kernels."""
    if not outcomes:
        raise ArgumentError(f"{machine.name} can run none of the kernels: nothing was compared")
    events = sum(outcome.events for outcome in outcomes)
    differing = sum(outcome.divergence is not None for outcome in outcomes)
    both = "" if differing else f", {counted(sum(outcome.cycles for outcome in outcomes), 'cycle', form=',')} both"
    print(
        f"{counted(len(outcomes), 'kernel')} on {machine.name}: {counted(events, 'event', form=',')}, {differing} "
        f"differing{both}"
    )


def main(args: argparse.Namespace) -> int:
    machine = load(args.machine)
    machine.require_mesh()
    latency = machine.memory.latency
    if args.latency is not None and not 1 <= args.latency <= latency:
        raise ArgumentError(
            f"--latency {args.latency}: {machine.name} has a latency of {latency}, and 1 to that can be asked for"
        )
    if args.latency_seed is not None and not 0 <= args.latency_seed < 1 << 32:
        raise ArgumentError(f"--latency-seed {args.latency_seed}: 0 to {(1 << 32) - 1} is expected")
    if args.seed < 0:
        raise ArgumentError(f"--seed {args.seed}: a seed is not negative")
    if args.waves is not None and not args.kernel:
        raise ArgumentError("--waves records one run: name its KERNEL")
    if args.window is not None and args.waves is None:
        raise ArgumentError("--window is about waves: it goes with --waves DIR")
    side = gates("sim.lockstep")
    setting = side.Setting(
        simulator=args.simulator, latency=args.latency, latency_seed=args.latency_seed, timeout=args.timeout,
        faults=tuple(fault for fault in args.fault if "=" not in fault),
        gate_faults=tuple(pairs([fault for fault in args.fault if "=" in fault], "--fault", "place=name").items()),
    )  # fmt: skip
    status, outcomes = 0, []
    for kernel in [kernel_of(args)] if args.kernel else every_kernel():
        try:
            artifact, operands = compiled(kernel, machine, args)
        except CompileError as error:
            if args.kernel:
                raise
            print(f"{kernel.name} on {machine.name}: not run, as this machine cannot: {error}")
            continue
        if args.waves is not None:
            done = gates("sim.kernels").run_rtl(
                artifact, machine, operands, simulator=args.simulator, timeout=args.timeout, latency=args.latency,
                latency_seed=args.latency_seed, faults=dict(setting.gate_faults) or None, waves=args.waves,
                window=args.window,
            )  # fmt: skip
            if args.window and args.window[0] >= done.simulated:
                raise ArgumentError(
                    f"--window {args.window[0]}:{args.window[1]}: the run ended with cycle {done.simulated - 1}"
                )
            which = f"cycles {args.window[0]} to {args.window[1]}" if args.window else "all cycles"
            print(f"{kernel.name} on {machine.name}: waves of the gates, {which}, are in {args.waves}")
            continue
        command = again(args, args.kernel or f"{kernel.function.__module__}:{kernel.name}")
        outcome = side.lockstep(artifact, machine, operands, setting, command=command)
        outcomes.append(outcome)
        differing = 0 if outcome.divergence is None else 1
        print(
            f"{kernel.name} on {machine.name}: {counted(outcome.events, 'event', form=',')}, {differing} differing",
            end="",
        )
        if outcome.divergence is None:
            print(f", {counted(outcome.cycles, 'cycle', form=',')} both", flush=True)
            continue
        print(f"\n{outcome.divergence.text}")
        status = 1
    if not args.kernel:
        print_all(outcomes, machine)
    sys.stdout.flush()
    return status
