"""Points on the workers of a dask scheduler; their rows as they arrive."""

from __future__ import annotations

import logging
import queue
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from .point import Point

LOCAL = "local"
ANSWER_S = 15  # for a scheduler to answer, and to come back
JOIN_S = 60  # for a first worker to join, and for another when the last has gone
LOOK_S = 10  # between looks at the workers while no row arrives
ADDRESS = re.compile(r"(?:tcp|tls)://(?:[^\s/:\[\]]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})")


class NoScheduler(RuntimeError):
    """No scheduler, no worker, or none any more: says which."""

    exit_status = 3


def is_address(text: str) -> bool:
    """Whether `text` is `tcp://host:port`, or `tls://`, with a port of 1 to 65535."""
    found = ADDRESS.fullmatch(text)
    return found is not None and 0 < int(found[1]) < 1 << 16


def _dask():
    """(`dask.config`, `distributed`): a second's import, and an optional dependency."""
    try:
        import dask
        import distributed
    except ModuleNotFoundError as error:
        raise NoScheduler(f"{error.name} is not installed: run `make env`, or `pip install -e '.[sweep]'`") from error
    return dask.config, distributed


@contextmanager
def connected(scheduler: str, workers: int):
    """A `distributed.Client` of `scheduler`: `local` starts one with `workers` processes, else `tcp://host:port` or
    `tls://..`.

    Raises `NoScheduler` when nothing answers there or no worker joins.
    """
    config, distributed = _dask()
    settings = {"distributed.comm.timeouts.connect": f"{ANSWER_S}s", "distributed.logging.distributed": "error"}
    with config.set(settings):
        if scheduler == LOCAL:
            # Without its dashboard a scheduler serves HTTP all the same, on 8787 and with a warning when that is taken,
            # unless it is told another address: any free port of this machine.
            http = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
            with (
                distributed.LocalCluster(
                    n_workers=workers,
                    threads_per_worker=1,
                    processes=True,
                    dashboard_address=None,
                    scheduler_kwargs=http,
                    silence_logs=logging.ERROR,
                ) as cluster,
                distributed.Client(cluster) as client,
            ):
                yield client
            return
        try:
            client = distributed.Client(scheduler, timeout=ANSWER_S)
        except (OSError, ValueError) as error:
            raise NoScheduler(f"--scheduler {scheduler}: no answer ({error or type(error).__name__})") from error
        with client:
            try:
                client.wait_for_workers(1, timeout=JOIN_S)
            except TimeoutError:
                raise NoScheduler(
                    f"--scheduler {scheduler}: it has no worker, and none joined within {JOIN_S} s"
                ) from None
            yield client


def rows(client, points: Sequence[Point], task: Callable[[Point], dict]) -> Iterator[tuple[Point, dict | None, str]]:
    """(point, its row, "") for each point, in the order in which they are done; (point, None, why) for one without a
    row.

    A point whose worker died runs again on another; one that took several workers with it has no row. Raises
    `NoScheduler` when the scheduler is lost, or all workers are gone and none comes back.
    """
    keys = [f"sweep-{point.key}" for point in points]
    futures = client.map(task, points, key=keys, pure=False, batch_size=1000)
    waiting = dict(zip(keys, zip(points, futures, strict=True), strict=True))
    del futures  # the scheduler keeps a result for as long as somebody holds its future
    done: queue.SimpleQueue = queue.SimpleQueue()
    for _, future in waiting.values():
        future.add_done_callback(done.put)
    alone = 0
    while waiting:
        try:
            future = done.get(timeout=LOOK_S)
        except queue.Empty:
            alone = 0 if _workers(client) else alone + LOOK_S
            if alone >= JOIN_S:
                raise NoScheduler(f"the last worker has gone, and none joined within {JOIN_S} s") from None
            continue
        alone = 0
        point, _ = waiting.pop(future.key)
        if future.cancelled() or client.status != "running":
            raise NoScheduler("the connection to the scheduler is lost")
        error = future.exception()
        row = None if error else future.result()
        future.release()
        yield point, row, "" if error is None else f"{type(error).__name__}: {error}"


def _workers(client) -> int:
    """How many workers the scheduler has."""
    if client.status != "running":
        raise NoScheduler("the connection to the scheduler is lost")
    return len(client.scheduler_info(n_workers=-1)["workers"])
