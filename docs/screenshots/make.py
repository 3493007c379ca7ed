"""The pictures of docs/viewing.md: runs the example kernels on the models, makes their pages, photographs them.

python docs/screenshots/make.py [DIR]      (default: the folder of this file; needs chromium)
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

from kohakutpu.compiler import compile_kernel
from kohakutpu.host.simulate import run_model
from kohakutpu.kernels.linear import linear_silu
from kohakutpu.machine import load
from kohakutpu.noc.trace import Trace
from kohakutpu.view.browser import Browser
from kohakutpu.view.html import bins_for, page
from kohakutpu.view.measure import measure
from kohakutpu.view.survey import Survey

HERE = Path(__file__).resolve().parent
EXAMPLE = HERE.parents[1] / "examples" / "linear_silu"


def pages(folder: Path) -> None:
    """compare.html (the example kernels, fused and staged, on mm_mesh) and quad.html."""
    example = {name: np.load(EXAMPLE / f"{name}.npy") for name in ("x", "w")}
    random = np.random.default_rng(1)
    larger = {name: random.normal(0, 0.3, (64, 256)).astype(np.float16) for name in ("x", "w")}
    runs = {
        "compare": [("fused", "mm_mesh", example, {}), ("staged", "mm_mesh", example, {"fuse": False})],
        "quad": [("quad", "quad", larger, {})],
    }  # fmt: skip
    for name, cases in runs.items():
        surveys = {}
        for title, machine_name, operands, knobs in cases:
            machine, path = load(machine_name), folder / f"{title}.trace"
            artifact = compile_kernel(
                linear_silu, machine, {n: a.shape for n, a in operands.items()}, {"gm": 8, "gn": 8, **knobs}
            )
            run_model(artifact, machine, operands, trace=path)
            surveys[title] = Survey(Trace(path))
        traces = [
            measure(survey, title=title, most_bins=bins_for(survey, len(surveys))) for title, survey in surveys.items()
        ]
        (folder / f"{name}.html").write_text(page(traces))


def main(target: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pages(folder)
        with Browser(1280, 900) as browser:
            browser.open(folder / "compare.html")
            foot = browser.run("document.querySelector('#lanes').getBoundingClientRect().bottom")
            (target / "fused-and-staged.png").write_bytes(browser.picture(height=foot + 46))
        with Browser(1280, 900, dark=True) as browser:
            browser.open(folder / "compare.html")
            browser.run(
                "choose({ trace: 0, link: DATA.traces[0].wires.findIndex((wire) => wire.name === 'r11.north') });"
                "seek(592)"
            )
            foot = browser.run("document.querySelector('#lanes').getBoundingClientRect().bottom")
            (target / "link.png").write_bytes(browser.picture(height=foot + 46))
        with Browser(1280, 900) as browser:
            browser.open(folder / "quad.html")
            browser.run("choose({ trace: 0, unit: 'cluster2' }); seek(1500)")
            (target / "quad.png").write_bytes(browser.picture())


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
