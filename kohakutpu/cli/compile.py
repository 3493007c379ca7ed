"""Compile a kernel for a machine: a summary, every flit as text, or the whole artifact as JSON."""

from __future__ import annotations

import argparse
from pathlib import Path

from kohakutpu.compiler import compile_kernel
from kohakutpu.compiler.explain import summary
from kohakutpu.machine import load

from .kernel_options import kernel_arguments, kernel_of, knobs_of, options_of, shapes_of
from .output import check_writable, write_atomically

HELP = "compile a kernel and show what it became"


def arguments(parser: argparse.ArgumentParser) -> None:
    kernel_arguments(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--summary", action="store_true", help="counts, buffers, maps of L1, memory, predicted cycles (the default)")
    form.add_argument("--flits", action="store_true", help="every flit, as text that `kohakutpu asm` reads")
    form.add_argument("--json", action="store_true", help="the artifact")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write to a file instead")


def main(args: argparse.Namespace) -> int:
    if args.output:
        check_writable(args.output)
    machine = load(args.machine)
    artifact = compile_kernel(kernel_of(args), machine, shapes_of(args), knobs_of(args), options_of(args))
    if args.flits:
        text = artifact.flit_listing()
    elif args.json:
        text = artifact.to_json()
    else:
        text = summary(artifact, machine) + "\n"
    if args.output:
        write_atomically(args.output, text.encode())
    else:
        print(text, end="")
    return 0
