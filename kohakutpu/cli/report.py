"""What a trace shows, as text: cycles by stage, use of units and links, bytes, stalls, and what limits the run.

`docs/viewing.md` says what each figure means. Of several traces the first is compared with the others.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from kohakutpu.view.limits import difference
from kohakutpu.view.text import lines, to_dict

from .output import check_outputs, write_atomically
from .traces import measures_of, trace_arguments

HELP = "where the cycles of a trace went"


def arguments(parser: argparse.ArgumentParser) -> None:
    trace_arguments(parser)
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the same as JSON, a list with an entry for each trace"
    )


def main(args: argparse.Namespace) -> int:
    if args.json:
        check_outputs([args.json])
    traces = measures_of(args)
    for measures in traces:
        print("\n".join(lines(measures)))
    for other in traces[1:]:
        print(difference(traces[0], other))
    if args.json:
        write_atomically(args.json, (json.dumps([to_dict(measures) for measures in traces], indent=1) + "\n").encode())
    return 0
