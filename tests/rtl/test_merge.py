"""Merging equal modules: what becomes one, what stays two, and names that only differ in a number."""

from rtl.merge import merge

LEAF = """module \\top.{name} (d, \\q${number} , clk);
  input d;
  output \\q${number} ;
  reg \\q${number} ;
  always @(posedge clk)
    \\q${number}  <= {body};
endmodule
"""
MIDDLE = """module \\top.{name} (d, q, clk);
  \\top.{leaf}  leaf (
    .clk(clk),
    .d(d),
    .\\q${number} (q)
  );
endmodule
"""
TOP = """module top(clk);
  \\top.a  a (
    .clk(clk),
    .q(x)
  );
  \\top.b  b (
    .clk(clk),
    .q(y)
  );
  Foreign z (
    .clk(clk)
  );
endmodule
"""


def text(first="d", second="d"):
    return "// kept\n" + "".join(
        [
            LEAF.format(name="a.leaf", number=1, body=first),
            LEAF.format(name="b.leaf$2", number=33, body=second),
            MIDDLE.format(name="a", leaf="a.leaf", number=1),
            MIDDLE.format(name="b", leaf="b.leaf$2", number=33),
            TOP,
        ]
    )


def modules(verilog):
    return [line.split()[1].split("(")[0] for line in verilog.splitlines() if line.startswith("module ")]


def test_equal_modules_become_one_all_the_way_up():
    merged = merge(text())
    assert modules(merged) == ["\\top.a.leaf", "\\top.a", "top"]
    assert merged.count("  \\top.a  b (") == 1 and "\\top.b" not in merged
    assert merged.startswith("// kept\n")
    assert ".\\q$33" not in merged


def test_different_modules_stay_two_and_so_do_their_parents():
    merged = merge(text(second="~d"))
    assert modules(merged) == ["\\top.a.leaf", "\\top.b.leaf$2", "\\top.a", "\\top.b", "top"]
    assert merged == text(second="~d")


def test_a_parent_is_connected_by_the_names_of_the_module_that_stays():
    swapped = text().replace(
        MIDDLE.format(name="b", leaf="b.leaf$2", number=33),
        MIDDLE.format(name="b", leaf="b.leaf$2", number=33).replace("(q)", "(p)"),
    )
    merged = merge(swapped)
    assert modules(merged) == ["\\top.a.leaf", "\\top.a", "\\top.b", "top"]
    assert "  \\top.a.leaf  leaf (\n    .clk(clk),\n    .d(d),\n    .\\q$1 (p)\n  );" in merged


def test_merging_twice_changes_nothing():
    assert merge(merge(text())) == merge(text())
