"""From a component to a verdict: emit, compile (cached) and run one cocotb module of tests/rtl."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from amaranth.lib import wiring

from rtl.emit import verilog
from sim import runner

HERE = Path(__file__).resolve().parent.parent
DEFAULT_SEED = 20260822


def seed() -> int:
    """The seed of random benches: KOHAKUTPU_SEED, or one that every run shares."""
    text = os.environ.get("KOHAKUTPU_SEED", str(DEFAULT_SEED))
    try:
        return int(text, 0)
    except ValueError:
        raise ValueError(f"KOHAKUTPU_SEED is {text!r}; an integer is expected") from None


def run_bench(top: wiring.Component, module: str, *, name: str, simulator: str = "verilator",
              tests: Sequence[str] | None = None, **environment: object) -> runner.Verdict:  # fmt: skip
    """Run the benches of `tests/rtl/MODULE.py` on `top`, a component whose ports the bench drives.

    `name` is the Verilog module's name; `tests` the benches to run, all of them by default. Keyword arguments reach the
    bench as environment variables in capitals. `WAVES=1` in the environment records waves. Raises `BenchError`.
    """
    waves = os.environ.get("WAVES") == "1"
    folder = runner.build(verilog(top, name=name), top=name, simulator=simulator, waves=waves)
    env = {key.upper(): str(value) for key, value in environment.items()}
    stem = "-".join([module, *(f"{key}={value}" for key, value in environment.items())])
    return runner.run(folder, top=name, simulator=simulator, module=module, expected=tests, seed=seed(), extra_env=env,
                      waves=waves, name="".join(c if c.isalnum() or c in "-=_." else "_" for c in stem)[:100],
                      search=[HERE])  # fmt: skip
