"""Run a kernel over shapes, knobs, machines and seeds on the workers of a dask scheduler, each point against the
interpreter.

Exit status: 0 all rows that ran are byte-equal, 1 a wrong row, 2 refused, 3 no scheduler or worker, 4 a point without
an answer.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from kohakutpu.host.simulate import run_model
from kohakutpu.sweep import cluster, tables
from kohakutpu.sweep.journal import Journal
from kohakutpu.sweep.point import FAILED, VERDICTS, Point, code_digest, measure
from kohakutpu.sweep.spec import read
from kohakutpu.wording import counted

from .gates import gates
from .output import OutputError, write_atomically
from .progress import rounds

HELP = "a kernel over shapes, knobs, machines and seeds, on many processes or machines"
MOST_SHOWN = 10  # rows of a kind that are printed


class SweepError(ValueError):
    """Options that do not go together: says which."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("spec", type=Path, metavar="SPEC.yaml", help="what is swept (docs/sweep.md)")
    parser.add_argument(
        "--scheduler",
        default=cluster.LOCAL,
        metavar="S",
        help="local, or tcp://host:port of a dask scheduler (default local)",
    )
    parser.add_argument("--workers", type=int, metavar="N", help="processes of --scheduler local (default 2)")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="DIR", help="the folder for rows and plots (default SPEC beside the file)"
    )
    parser.add_argument("--resume", action="store_true", help="go on with the rows that the folder has")


def on_models(artifact, machine, operands, point: Point):
    return run_model(artifact, machine, operands, faults=point.faults, timeout=point.timeout)


def on_gates(artifact, machine, operands, point: Point):
    return gates("sim.kernels").run_rtl(artifact, machine, operands, simulator=point.simulator, timeout=point.timeout)


def task(point: Point) -> dict:
    """What a worker does: `kohakutpu.sweep.point.measure` with the engines that there are."""
    from .main import status_of

    return measure(point, {"model": on_models, "rtl": on_gates}, status_of)


def main(args: argparse.Namespace) -> int:
    workers = 2 if args.workers is None else args.workers
    if workers < 1:
        raise SweepError(f"--workers {workers}: at least one is expected")
    if args.scheduler != cluster.LOCAL:
        if not cluster.is_address(args.scheduler):
            raise SweepError(f"--scheduler {args.scheduler}: local or tcp://host:port is expected")
        if args.workers is not None:
            raise SweepError(f"--workers is about --scheduler local: {args.scheduler} has its own")
    sweep = read(args.spec, code=code_digest)
    code = code_digest(sweep.gates)
    folder = args.output or args.spec.with_suffix("")
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"cannot write into {folder}: it is no directory")
    folder.mkdir(exist_ok=True)
    points = {point.key: point for point in sweep.points}
    with Journal(folder, name=sweep.name, code=code, keys=points, resume=args.resume) as journal:
        print(f"{sweep.name}: {counted(len(points), 'point')}, program {code}{_kept(journal)}", flush=True)
        missing = [point for key, point in points.items() if key not in journal.rows]
        lost = _run(args.scheduler, workers, missing, journal, len(points)) if missing else {}
        ordered = [journal.rows[key] for key in points if key in journal.rows]
    if ordered:
        for name, data in tables.files(sweep.name, ordered).items():
            write_atomically(folder / name, data)
    _summary(ordered, lost)
    plots = ", ".join(f"{name}.png" for name in tables.PLOTS)
    print(f"{len(ordered)} of {counted(len(points), 'row')} in {folder}: rows.parquet, rows.csv, {plots}")
    return _status(ordered, lost)


def _kept(journal: Journal) -> str:
    kept = f", {counted(len(journal.rows), 'row')} kept" if journal.rows else ""
    again = f", {counted(journal.again, 'row')} of a worker's own trouble to run again" if journal.again else ""
    return kept + again + (", an unfinished row cut off" if journal.cut else "")


def _run(scheduler: str, workers: int, points: Sequence[Point], journal: Journal, total: int) -> dict[Point, str]:
    """Run the points into the journal; returns those without a row, and why."""
    lost: dict[Point, str] = {}
    try:
        with cluster.connected(scheduler, workers) as client, rounds("sweep", "points") as progress:
            for point, row, why in cluster.rows(client, points, task):
                if row is None:
                    lost[point] = why
                else:
                    journal.add(row)
                if progress:
                    progress(len(journal.rows), total)
    except cluster.NoScheduler as error:
        raise cluster.NoScheduler(f"{error}; {_so_far(journal, total)}") from error
    except KeyboardInterrupt:
        print(_so_far(journal, total), file=sys.stderr)
        raise
    return lost


def _so_far(journal: Journal, total: int) -> str:
    return f"{len(journal.rows)} of {counted(total, 'row')} in {journal.path}: --resume goes on"


def _summary(rows: Sequence[dict], lost: dict[Point, str]) -> None:
    for verdict in (*VERDICTS, FAILED):
        found = [row for row in rows if row["verdict"] == verdict]
        if not found:
            continue
        kinds = Counter(row["error"] for row in found if row["error"])
        print(
            f"{len(found):6} {verdict}"
            + (f": {', '.join(f'{n} {kind}' for kind, n in kinds.most_common())}" if kinds else "")
        )
        if verdict == VERDICTS[0]:
            continue
        reasons = Counter(f"{row['error'] or 'bytes'}: {row['message']}" for row in found)
        for reason, count in reasons.most_common(MOST_SHOWN):
            print("       " + f"{count} x {reason}".replace("\n", "\n         "))
        if len(reasons) > MOST_SHOWN:
            print(f"       and {counted(len(reasons) - MOST_SHOWN, 'other message')}, in the rows")
    for point, why in list(lost.items())[:MOST_SHOWN]:
        print(f"no row: {point.label()}: {why}", file=sys.stderr)
    if lost:
        print(f"no row for {counted(len(lost), 'point')}; --resume tries again", file=sys.stderr)


def _status(rows: Sequence[dict], lost: dict[Point, str]) -> int:
    """Wrong before no answer before refused: a refused point among right ones is a result, and nothing but those is
    none."""
    verdicts = Counter(row["verdict"] for row in rows)
    if verdicts["wrong"] or verdicts[FAILED]:
        return 1
    if lost or verdicts["no answer"]:
        return 4
    if verdicts["no transport"]:
        return 3
    return 0 if verdicts["byte-equal"] else 2
