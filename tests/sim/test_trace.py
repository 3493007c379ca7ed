"""What observers of simulations write becomes records: in order, while it comes, and not when it is none."""

import gc
import warnings

import pytest
from amaranth.hdl import UnusedElaboratable

from kohakutpu.isa.flit import Flit
from kohakutpu.machine import list_machines, load
from kohakutpu.model.system import System
from kohakutpu.noc.trace import Event, Level, Orderer, Trace, TraceError, Transfer
from kohakutpu.noc.trace_tracks import tracks
from rtl.mesh import Mesh
from sim.trace import parse, piped, recorded, transfers
from sim.tracer import Places, events, levels

FLIT = Flit(0x12, 0x21, 5, 7, 1, 0, 0xABC)
TEXT = f"l 3 0 1f\nf 1 5 {FLIT.to_int():x}\ne 2 5 40\nl 3 6 0\nend 20\n"
RECORDS = [Level(0, 3, 0x1F), Transfer(5, 1, FLIT), Event(5, 2, 0x40), Level(6, 3, 0)]


def parsed(text):
    found = []
    sink = Orderer(found.extend)
    parse(text.splitlines(keepends=True), sink)
    sink.finish()
    return found, sink.cycles


def test_lines_become_records():
    assert parsed(TEXT) == (RECORDS, 0x20)


@pytest.mark.parametrize(
    "line", ["x 1 2 3\n", "l 1 2\n", "l 1 2 3 4\n", "f 1 2 zz\n", "\n", "end\n", f"f 1 2 {1 << 288:x}\n"]
)
def test_a_line_that_is_none_is_named(line):
    with pytest.raises(TraceError, match="line 2 of the simulation's records is none: "):
        parsed(f"l 0 0 1\n{line}end 5\n")


def test_records_that_end_before_the_run_are_refused():
    with pytest.raises(TraceError, match="end after 4 lines without saying that the run is over"):
        parsed(TEXT.replace("end 20\n", ""))


def test_a_pipe_is_read_while_it_is_written():
    found = []
    sink = Orderer(found.extend)
    with piped(sink) as path, open(path, "w") as stream:
        stream.write(TEXT)
    sink.finish()
    assert (found, sink.cycles) == (RECORDS, 0x20)


def test_a_simulation_that_never_comes_does_not_hang():
    with pytest.raises(TraceError, match="end after 0 lines"):
        with piped(Orderer(lambda _: None)):
            pass


def test_wrong_records_do_not_hold_the_simulation_up():
    with pytest.raises(TraceError, match="line 1 "):
        with piped(Orderer(lambda _: None)) as path, open(path, "w") as stream:
            stream.write("nonsense\n" + "l 0 0 1\n" * 100_000)


def test_a_pipe_becomes_a_trace_file(tmp_path):
    machine = load("mm_mesh")
    with recorded(tmp_path / "t", machine, ["a", "b"]) as path, open(path, "w") as stream:
        stream.write(TEXT)
    trace = Trace(tmp_path / "t")
    trace.require(machine)
    assert (list(trace), trace.cycles, trace.links, trace.tracks) == (RECORDS, 0x20, ["a", "b"], tracks(machine))


def test_transfers_alone(tmp_path):
    (tmp_path / "t").write_text(TEXT)
    assert [(cycle, link.name, flit) for cycle, link, flit in transfers(tmp_path / "t", ["a", "b"])] == [(5, "b", FLIT)]


@pytest.mark.parametrize("agent", ["orchestrator", "bench"])
@pytest.mark.parametrize("name", [name for name in list_machines() if not load(name).compile_only])
def test_models_and_gates_count_links_and_tracks_alike(name, agent):
    machine = load(name)
    system = System(machine, agent=agent)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnusedElaboratable)
        names = list(Mesh(machine).links)
        gc.collect()
    assert [link.name for link in system.engine.links] == names
    shown = [*levels(machine, agent), *events(machine, agent)]
    assert sorted(shown) == sorted(track.name for track in system.tracks)


VERILOG = r"""
module \top.sub (clk, x);
  input clk;
  wire [3:0] \level$7 ;
  reg [1:0] \state$2 = 2'h0;
  wire state;
endmodule
module top (clk);
  input clk;
  \top.sub  \inner$12 (
    .clk(clk)
  );
endmodule
"""


def test_signals_are_found_by_their_plain_names():
    places = Places(VERILOG, "top")
    assert places.resolve("clk") == "clk"
    assert places.resolve("inner.level") == r"\inner$12 .\level$7 "
    assert places.resolve("inner.state") == r"\inner$12 .state"


@pytest.mark.parametrize(
    "path, reason", [("outer.level", "top has no instance outer"), ("inner.depth", r"top\.sub has no signal depth")]
)
def test_a_signal_that_is_not_there_is_named(path, reason):
    with pytest.raises(KeyError, match=reason):
        Places(VERILOG, "top").resolve(path)
