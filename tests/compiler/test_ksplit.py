"""K in parts: phases and their waits, what is refused by name, and what the artifact keeps."""

import pytest

from kohakutpu.compiler import Artifact, CompileError, Options, compile_kernel
from kohakutpu.isa import cluster
from kohakutpu.isa.cluster import Op
from kohakutpu.isa.flit import node, xy
from kohakutpu.kernels.elementwise import silu
from kohakutpu.kernels.linear import linear_silu, matmul
from kohakutpu.machine import Agent

from .conftest import build_machine
from .kernels import interleaved, row_of_tiles, two_results

GIVEN = {"gm": 2, "gn": 2, "nk": 1}
X = {"x": (8, 256), "w": (8, 256)}


def phases(artifact):
    """By chain, (sender, receiver) of the sums that it sends, its GEMMs, and {node: (signals, acks)} awaited."""
    found = []
    for chain in artifact.chains():
        sent, gemms = [], 0
        for round_ in chain:
            for kick in round_.kicks:
                for flit in round_.flits[kick.base : kick.base + kick.count]:
                    i = cluster.decode(flit.payload)
                    gemms += i.op == Op.GEMM
                    if i.op == Op.DRAIN and i.dnode:
                        assert (i.dbuf, i.n, i.addr, i.dflags, (i.dack_x, i.dack_y)) == (2, 4, 0, 1, (0, 1))
                        sent.append((kick.node, node(i.dst_x, i.dst_y)))
        found.append((sent, gemms, {step.node: (step.count, step.acks) for step in chain[-1].awaits}))
    return found


def test_each_level_is_awaited_on_both_sides(bench):
    """8 chunks in 5 parts: 2 2 2 1 1; then 1 to 0 and 3 to 2, then 2 to 0, then 4 to 0."""
    artifact = compile_kernel(matmul, bench, {"a": (8, 256), "b": (8, 256)}, GIVEN | {"ksplit": 5})
    (stage,) = artifact.stages
    ((key, head),) = stage.nodes.items()
    team = (head, *stage.helpers[key])
    accumulate, first, second, third, leave = phases(artifact)
    assert not accumulate[0] and accumulate[1] == 8 and set(accumulate[2]) == set(team)
    for (sent, gemms, awaited), pairs in ((first, [(1, 0), (3, 2)]), (second, [(2, 0)]), (third, [(4, 0)])):
        assert sorted(sent) == sorted((team[a], team[b]) for a, b in pairs) and not gemms
        # A sender's completion, and of the receiver one DATA_RECEIVED for 8 granules: 4 sub-tiles of two.
        assert awaited == {team[a]: (1, 0) for a, _ in pairs} | {team[b]: (1, 1) for _, b in pairs}
    assert leave == ([], 0, {head: (1, 0)})
    assert [round_.ends_stage for round_ in artifact.rounds] == [False] * (len(artifact.rounds) - 1) + [True]


def test_no_cluster_sends_and_receives_at_once_and_none_hears_from_two(bench):
    for parts in range(2, 9):
        artifact = compile_kernel(row_of_tiles, bench, {"x": (16, 320), "w": (16, 320)}, GIVEN | {"ksplit": parts})
        for sent, _, _ in phases(artifact):
            nodes = [at for pair in sent for at in pair]
            assert len(nodes) == len(set(nodes))


def test_fewer_chunks_than_parts_are_fewer_parts(bench):
    few, more = (compile_kernel(matmul, bench, {"a": (8, 96), "b": (8, 96)}, GIVEN | {"ksplit": parts}) for parts in (3, 8))
    assert [round_.flits for round_ in few.rounds] == [round_.flits for round_ in more.rounds]
    one = compile_kernel(matmul, bench, {"a": (8, 32), "b": (8, 32)}, GIVEN | {"ksplit": 3})
    whole = compile_kernel(matmul, bench, {"a": (8, 32), "b": (8, 32)}, GIVEN)
    assert one.rounds == whole.rounds and not one.stages[0].helpers


def test_tiles_are_dealt_to_as_many_teams_as_there_are(bench):
    artifact = compile_kernel(matmul, bench, {"a": (40, 96), "b": (8, 96)}, GIVEN | {"ksplit": 3})
    (stage,) = artifact.stages
    assert len(stage.nodes) == 5 and len(set(stage.nodes.values())) == 2 and len(stage.units) == 6


def test_one_part_changes_nothing(bench):
    shapes = {"a": (8, 256), "b": (8, 256)}
    whole = compile_kernel(matmul, bench, shapes, GIVEN)
    assert compile_kernel(matmul, bench, shapes, GIVEN | {"ksplit": 1}).digest == whole.digest
    assert compile_kernel(matmul, bench, shapes, GIVEN, Options(ksplit=1)).digest == whole.digest


def test_option_and_knob_are_one(bench):
    shapes = {"a": (8, 256), "b": (8, 256)}
    knob = compile_kernel(matmul, bench, shapes, GIVEN | {"ksplit": 3})
    for knobs, option in ((GIVEN, 3), (GIVEN | {"ksplit": 3}, 3), (GIVEN | {"ksplit": 3}, "auto"), (GIVEN | {"ksplit": "auto"}, 3)):
        assert compile_kernel(matmul, bench, shapes, knobs, Options(ksplit=option)).digest == knob.digest
    with pytest.raises(CompileError, match="ksplit=3 as a knob and ksplit=4 as an option; give one"):
        compile_kernel(matmul, bench, shapes, GIVEN | {"ksplit": 3}, Options(ksplit=4))


def test_an_artifact_keeps_who_helped(bench):
    artifact = compile_kernel(matmul, bench, {"a": (40, 96), "b": (8, 96)}, GIVEN | {"ksplit": 3})
    again = Artifact.from_json(artifact.to_json())
    assert again == artifact and again.stages[0].helpers == artifact.stages[0].helpers
    assert "5 instances on 6 units" in artifact.summary()
    assert "helpers" not in str(compile_kernel(matmul, bench, {"a": (8, 96), "b": (8, 96)}, GIVEN).to_dict())


@pytest.mark.parametrize("credit, staging", [(2, 1), (2, 128), (3, 7), (512, 1)])
def test_little_room_for_instructions_makes_more_rounds(credit, staging):
    machine = build_machine(cluster_inst_depth=credit, staging_flits=staging)
    artifact = compile_kernel(matmul, machine, {"a": (40, 256), "b": (8, 256)}, GIVEN | {"ksplit": 4})
    for chain in artifact.chains():
        assert sum(len(round_.kicks) for round_ in chain) < credit
    assert all(len(round_.flits) <= staging for round_ in artifact.rounds)
    order = [bool(sent) - bool(gemms) for sent, gemms, _ in phases(artifact)]
    assert {-1, 1} <= set(order) and all(not (sent and gemms) for sent, gemms, _ in phases(artifact))


REFUSED = {
    "more parts than clusters": (
        matmul, {"a": (8, 256), "b": (8, 256)}, GIVEN | {"ksplit": 7}, build_machine(clusters=6), Options(),
        "ksplit=7 cuts K into 7 parts here, each on a cluster of its own, and bench has 6",
    ),
    "no product": (
        silu, {"x": (8, 32)}, {"ksplit": 2}, build_machine(), Options(), "ksplit=2: there is no product here whose K could be cut"
    ),
    "published": (
        matmul, {"a": (8, 256), "b": (8, 256)}, {"ksplit": 2}, build_machine(), Options("published"),
        "ksplit=2: the published programs leave K in one part",
    ),
    "nobody to tell": (
        matmul, {"a": (8, 256), "b": (8, 256)}, {"ksplit": 2}, build_machine(agent=Agent(0, 0, own_endpoint=True)), Options(),
        "ksplit=2: bench names no agent, which is told when a part has arrived",
    ),
    "stored in between": (
        two_results, X, GIVEN | {"ksplit": 2}, build_machine(), Options(),
        "this accumulator is stored before and accumulated on here, and ksplit adds its parts up once",
    ),
    "two at once": (
        interleaved, X | {"v": (8, 256)}, GIVEN | {"ksplit": 2}, build_machine(), Options(),
        "accumulated again after another accumulator was begun",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name):
    kernel, shapes, knobs, machine, options, message = REFUSED[name]
    with pytest.raises(CompileError, match=message):
        compile_kernel(kernel, machine, shapes, knobs, options)


@pytest.mark.parametrize("value", [0, -1, 2.0, True, "two", "AUTO"])
def test_an_option_that_is_no_number_of_parts_is_refused(value):
    with pytest.raises(CompileError, match=r"ksplit=.*: expected a number of parts, at least 1, or 'auto'"):
        Options(ksplit=value)


def test_a_fused_tile_leaves_its_cluster_after_the_sums(bench):
    """The last phase drains to the vector core, whose acknowledgements it awaits."""
    artifact = compile_kernel(linear_silu, bench, X, GIVEN | {"ksplit": 2})
    stage = artifact.stages[0]
    ((key, (receiver, count)),) = stage.acks.items()
    *_, leave = [chain for chain in artifact.chains(0)]
    assert {step.node: (step.count, step.acks) for step in leave[-1].awaits} == {stage.nodes[key]: (1, 0), receiver: (count, count)}
    assert xy(receiver)[1] > 2  # a vector core
