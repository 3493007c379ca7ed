"""The synthesis check: what it counts, and that it refuses latches, loops, undriven nets and unknown families."""

from collections import Counter

import pytest

from rtl import synthesis
from rtl.synthesis import Cost, NoYosys, SynthesisError, cost, instances_of, synthesise, title_of, totals

GOOD = """
module leaf(input clk, input [7:0] a, input [7:0] b, output reg [15:0] p);
  always @(posedge clk) p <= a * b;
endmodule
module kohakutpu(input clk, input [7:0] a, input [7:0] b, output [31:0] y);
  leaf one(.clk(clk), .a(a), .b(b), .p(y[15:0]));
  leaf two(.clk(clk), .a(b), .b(a), .p(y[31:16]));
endmodule
"""
# what Yosys says: a design that is so
BAD = {
    "q.*latch|dlatch": "module kohakutpu(input e, input d, output reg q); always @* if (e) q = d; endmodule",
    "loop": "module kohakutpu(input a, output y); wire z; assign y = a ^ z; assign z = ~(y & a); endmodule",
    "no driver": "module kohakutpu(input a, output y); wire z; assign y = a & z; endmodule",
    "multiple conflicting drivers": "module kohakutpu(input a, input b, output y); assign y = a; assign y = b; endmodule",
    "not part of the design": "module kohakutpu(input a, output y); nowhere n(.a(a), .y(y)); endmodule",
}


def test_a_clean_design_is_counted():
    modules = synthesise(GOOD, family="xcup")
    sums = totals(modules)
    assert instances_of(modules)["leaf"] == 2
    one, whole = cost(sums["leaf"]), cost(sums["kohakutpu"])
    assert one.dsp + one.lut > 0 and whole == Cost(*(2 * item for item in one))


@pytest.mark.parametrize("reason", BAD)
def test_what_is_not_clean_is_refused(reason):
    with pytest.raises(SynthesisError, match=f"(?s)Yosys refuses kohakutpu.*({reason})"):
        synthesise(BAD[reason], family="xcup")


def test_an_unknown_family_is_refused():
    with pytest.raises(SynthesisError, match="xc7 or xcup is expected"):
        synthesise(GOOD, family="ice40")


def test_without_yosys_the_way_to_get_it_is_named(monkeypatch):
    monkeypatch.setattr(synthesis.shutil, "which", lambda *_, **__: None)
    with pytest.raises(NoYosys, match="make env"):
        synthesise(GOOD, family="xcup")


def test_primitives_by_kind():
    cells = Counter(
        {
            "LUT6": 3, "LUT2": 1, "INV": 1, "FDRE": 5, "FDSE": 1, "RAMB36E2": 2, "RAMB18E2": 1, "DSP48E2": 4,
            "RAM32M16": 2, "CARRY8": 9,
        }  # fmt: skip
    )
    assert cost(cells) == Cost(lut=21, lutram=16, ff=6, bram=2.5, dsp=4)


@pytest.mark.parametrize(
    "module, title",
    [
        ("Router_fifo_depth_32_grid_x_2_grid_y_1_x_1_y_1", "router"),
        ("kohakutpu.cluster0", "cluster"),
        ("kohakutpu.cluster0.base", None),
        ("kohakutpu.vector11", "vector"),
        ("kohakutpu.vector0.base$296", None),
        ("kohakutpu.control", "orchestrator"),
        ("kohakutpu.control.side", None),
        ("MemoryPort_fd5b21fa88cf", "memory port"),
        ("MemoryPort_fd5b21fa88cf.reads$83", None),
        ("Array", "cluster array"),
    ],
)
def test_blocks_by_peoples_names(module, title):
    assert title_of(module) == title
