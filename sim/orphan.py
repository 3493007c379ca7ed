"""A process that does not outlive the one that wanted it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from threading import Thread

LOOK = 0.5  # s


def end_with(parent: int, end: Callable[[], None]) -> None:
    """Call `end` in a thread once the process `parent`, which has started this one, is gone, however it went."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK)
        end()

    Thread(target=watch, daemon=True).start()
