"""What benchmarks/efficiency.py reaches on two clusters, on the gates: the same events in the same cycles."""

import re

import pytest

from kohakutpu.cli.main import main

AUTO = [word for knob in ("gm", "gn", "nk") for word in ("--knob", f"{knob}=auto")]
EQUAL = re.compile(r"matmul on 2x2: ([\d,]+) events, 0 differing, ([\d,]+) cycles both")


@pytest.mark.slow
@pytest.mark.parametrize("extent, preq", [(256, ["--preq", "a", "--preq", "b"]), (64, [])], ids=["preq", "fp16"])
def test_two_clusters_on_the_gates(capsys, extent, preq):
    shapes = ["--shape", f"a={extent}x{extent}", "--shape", f"b={extent}x{extent}"]
    status = main(["lockstep", "kohakutpu.kernels.linear:matmul", "--machine", "2x2", *shapes, *AUTO, *preq])
    out = capsys.readouterr().out
    found = EQUAL.fullmatch(out.strip())
    assert status == 0 and found, out
    assert int(found[1].replace(",", "")) > 1000
