"""Look at traces: a page for the browser, a timeline for Perfetto, and what wave viewers need to decode flits.

With -o DIR all of it: index.html with every trace on one page, NAME.perfetto.json.gz for each trace, and waves/.
`docs/viewing.md` says what each figure means.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from kohakutpu.view.browser import Browser
from kohakutpu.view.html import bins_for, page
from kohakutpu.view.timeline import write_timeline
from kohakutpu.view.topology import Topology
from kohakutpu.view.waves import wave_files

from .kernel_options import ArgumentError
from .output import check_outputs, text_atomically, write_atomically
from .traces import measures_of, trace_arguments

HELP = "a page, a timeline and wave filters from traces"


def arguments(parser: argparse.ArgumentParser) -> None:
    trace_arguments(parser)
    parser.add_argument(
        "-o", "--out", type=Path, metavar="DIR", help="write all of the below into a folder, made if need be"
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="the page: one file that needs nothing else")
    parser.add_argument(
        "--perfetto", type=Path, metavar="FILE", help="the timeline, for ui.perfetto.dev; NAME.gz is compressed"
    )
    parser.add_argument("--waves", type=Path, metavar="DIR", help="files for GTKWave and Surfer")
    parser.add_argument("--png", type=Path, metavar="FILE", help="a picture of the page (needs chromium)")
    parser.add_argument("--dark", action="store_true", help="the picture is of the dark page")


def main(args: argparse.Namespace) -> int:
    if not (args.out or args.html or args.perfetto or args.waves or args.png):
        raise ArgumentError("nothing to write was asked for: give -o DIR, --html, --perfetto, --waves or --png")
    if args.dark and not args.png:
        raise ArgumentError("--dark is about the picture: it goes with --png")
    if args.perfetto and len(args.traces) > 1:
        raise ArgumentError(
            f"--perfetto holds one trace and {len(args.traces)} are named: give -o DIR for one file each"
        )
    check_outputs([path for path in (args.html, args.perfetto, args.png) if path])
    for folder in (args.out, args.waves):
        if folder and folder.exists() and not folder.is_dir():
            raise ArgumentError(f"{folder} is no folder")
    traces = measures_of(args, bins_for)
    written: list[Path] = []
    pages = [path for path in (args.html, args.out and args.out / "index.html") if path]
    timelines = [(args.perfetto, traces[0])] if args.perfetto else []
    if args.out:
        timelines += [(args.out / f"{measures.title}.perfetto.json.gz", measures) for measures in traces]
    for folder in (args.out, args.waves, args.out and args.out / "waves"):
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
    for path in pages:
        write_atomically(path, page(traces).encode())
        written.append(path)
    for path, measures in timelines:
        with text_atomically(path) as file:
            write_timeline(measures.survey, file)
        written.append(path)
    for folder in (args.waves, args.out and args.out / "waves"):
        if folder:
            for topology in {measures.survey.machine.name: measures.survey.topology for measures in traces}.values():
                written += _waves(folder, topology)
    if args.png:
        with tempfile.TemporaryDirectory() as folder, Browser(dark=args.dark) as browser:
            if not pages:
                pages = [Path(folder) / "index.html"]
                pages[0].write_bytes(page(traces).encode())
            browser.open(pages[0])
            write_atomically(args.png, browser.picture())
        written.append(args.png)
    for path in written:
        print(path)
    return 0


def _waves(folder: Path, topology: Topology) -> list[Path]:
    paths = []
    for name, (text, executable) in wave_files(topology, folder).items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, text.encode())
        if executable:
            path.chmod(0o755)
        paths.append(path)
    return paths
