"""Processes that do not outlive the one that wanted them."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread

LOOK = 0.5  # s


def end_with(parent: int, end: Callable[[], None]) -> None:
    """Call `end` in a thread once the process `parent`, which has started this one, is gone, however it went."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK)
        end()

    Thread(target=watch, daemon=True).start()


@contextmanager
def group() -> Iterator[int]:
    """A process group for commands that start others: all that is in it is killed when the block is left, or this
    process ends, however it does.
    """
    # Its leader reads a pipe that nobody writes to: it comes to its end with this process.
    leader = subprocess.Popen(["sh", "-c", "read _; kill -KILL 0"], stdin=subprocess.PIPE, process_group=0)
    with leader:
        try:
            yield leader.pid
        finally:
            os.killpg(leader.pid, signal.SIGKILL)
