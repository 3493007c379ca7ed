"""Compile a kernel of tiles, or an XPU launch, for a machine: a summary, every flit as text, or the artifact as
JSON."""

from __future__ import annotations

import argparse
from pathlib import Path

from kohakutpu.compiler import compile_kernel
from kohakutpu.compiler.artifact import Artifact
from kohakutpu.compiler.explain import summary
from kohakutpu.lang.kernel import Kernel
from kohakutpu.lang.kernel import load as load_kernel
from kohakutpu.machine import Machine, load
from kohakutpu.xpu.kernel import Kernel as XpuKernel

from .kernel_options import ArgumentError, kernel_arguments, knobs_of, options_of, shapes_of
from .output import check_writable, write_atomically
from .xpu_launch import launch_arguments, lowered, only_tiles

HELP = "compile a kernel and show what it became"


def arguments(parser: argparse.ArgumentParser) -> None:
    kernel_arguments(parser)
    launch_arguments(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--summary", action="store_true", help="counts, buffers, maps of L1, memory, predicted cycles (the default)"
    )
    form.add_argument("--flits", action="store_true", help="every flit, as text that `kohakutpu asm` reads")
    form.add_argument("--json", action="store_true", help="the artifact")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write to a file instead")


def compiled(args: argparse.Namespace, machine: Machine) -> list[Artifact]:
    """What a kernel becomes: one artifact, or for an XPU kernel those of its launch."""
    kernel = load_kernel(args.kernel, (Kernel, XpuKernel))
    if isinstance(kernel, XpuKernel):
        return lowered(kernel, args).artifacts
    only_tiles(args)
    return [compile_kernel(kernel, machine, shapes_of(args), knobs_of(args), options_of(args))]


def main(args: argparse.Namespace) -> int:
    if args.output:
        check_writable(args.output)
    machine = load(args.machine)
    artifacts = compiled(args, machine)
    if args.flits:
        text = "".join(artifact.flit_listing() for artifact in artifacts)
    elif args.json:
        if len(artifacts) > 1:
            what = f"this launch is {len(artifacts)} artifacts, one after another, and a file holds one"
            raise ArgumentError(f"--json: {what}; --flits shows them")
        text = artifacts[0].to_json()
    else:
        text = "".join(summary(artifact, machine) + "\n" for artifact in artifacts)
    if args.output:
        write_atomically(args.output, text.encode())
    else:
        print(text, end="")
    return 0
