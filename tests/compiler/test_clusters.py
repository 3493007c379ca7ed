"""Cluster stages: fills, banks and regions, what stays resident, order of drains, limits."""

import pytest

from kohakutpu import lang as L
from kohakutpu.compiler import CompileError, Options, compile_kernel
from kohakutpu.isa import cluster
from kohakutpu.isa.cluster import Op
from kohakutpu.kernels.linear import geglu, matmul
from kohakutpu.lang import dims, kernel, loop, units

from .conftest import build_machine
from .kernels import interleaved, row_of_tiles
from .test_fusion import compiled, programs

M, K, N = dims("M, K, N")
PUBLISHED = Options("published")


def sequence(artifact, stage=0):
    """(op, fields that matter) of the one instance of a stage."""
    (program,) = programs(artifact, stage).values()
    return program


def names(program):
    return [Op(i.op).name for i in program]


def test_published_banks_alternate_by_chunk(bench):
    """spec: K=256, gm=gn=nk=2: FILL FILL GEMM four times, DRAIN; banks 0,1,0,1; acc 0,1,1,1."""
    program = sequence(compiled(matmul_of(2), bench, depth=256, gm=2, gn=2, nk=2, options=PUBLISHED))
    assert names(program) == ["FILL", "FILL", "GEMM"] * 4 + ["DRAIN"]
    assert [i.fbank for i in program if i.op == Op.FILL] == [0, 0, 1, 1, 0, 0, 1, 1]
    assert [(i.abank, i.bbank, i.acc) for i in program if i.op == Op.GEMM] == [
        (0, 0, 0),
        (1, 1, 1),
        (0, 0, 1),
        (1, 1, 1),
    ]
    assert [i.sel for i in program if i.op == Op.FILL] == [0, 1] * 4
    image = compiled(matmul_of(2), bench, depth=256, gm=2, gn=2, nk=2).buffer("x")
    assert [i.addr - image.address for i in program if i.op == Op.FILL and not i.sel] == [0, 1024, 2048, 3072]
    assert {i.n for i in program if i.op == Op.FILL} == {4} and program[-1].n == 4


def matmul_of(_):
    @kernel
    def made(x=L.In(M, K), w=L.In(N, K), y=L.Out(M, N), *, gm=2, gn=2, nk=2):
        with units(x.tiles(gm), w.tiles(gn)) as (i, j):
            acc = L.tile(gm, gn, nk)
            for k in loop(x.chunks32(nk)):
                acc += x[i, k] @ w[j, k]
            y[i, j] <<= acc

    return made


def test_published_second_weight_has_a_region_of_its_own_and_x_stays(bench):
    """spec: two accumulators over one x: the second sweep has only B fills, eoff = boff = 8."""
    program = sequence(compiled(geglu, bench, rows=16, columns=16, depth=128, gm=4, gn=4, nk=2, options=PUBLISHED))
    second = program[program.index(next(i for i in program if i.op == Op.DRAIN)) + 1 :]
    assert names(second) == ["FILL", "GEMM"] * 2 + ["DRAIN"]
    assert {i.sel for i in second if i.op == Op.FILL} == {1}
    assert {i.eoff for i in second if i.op == Op.FILL} == {8} == {i.boff for i in second if i.op == Op.GEMM}
    assert {i.aoff for i in second if i.op == Op.GEMM} == {0}


def test_published_chunks_beyond_the_banks_are_fetched_again(bench):
    """By default, whatever fits L1 stays, and one FILL fetches all chunks of sweeps that would wait for each: x, wg, wu."""
    shape = dict(rows=16, columns=16, depth=256, gm=4, gn=4, nk=2)
    assert names(sequence(compiled(geglu, bench, **shape, options=PUBLISHED))).count("FILL") == 16
    program = sequence(compiled(geglu, bench, **shape))
    assert [i.n for i in program if i.op == Op.FILL] == [32] * 3


def stream_of(artifact, node, stage=0):
    """What a node is sent in one stage, in order."""
    return [
        cluster.decode(flit.payload)
        for round_ in artifact.rounds if round_.stage == stage for kick in round_.kicks if kick.node == node
        for flit in round_.flits[kick.base : kick.base + kick.count]
    ]  # fmt: skip


def fetched(stream):
    """Entries of each side."""
    return [sum(i.n for i in stream if i.op == Op.FILL and i.sel == side) for side in (0, 1)]


def test_chunks_are_fetched_together_where_sweeps_would_wait():
    """64 sub-tiles of one block are swept before the next 16 entries are there; 512 are not, and their FILLs stay apart."""
    machine = build_machine(clusters=1)
    sizes = {}
    for gm, gn in ((8, 8), (16, 32)):
        artifact = compile_kernel(matmul, machine, {"a": (4 * gm, 128), "b": (4 * gn, 128)}, {"gm": gm, "gn": gn, "nk": 1})
        stream = stream_of(artifact, machine.clusters[0].node)
        check_entries(stream, 512)
        sizes[gm, gn] = [i.n for i in stream if i.op == Op.FILL]
    assert sizes == {(8, 8): [32, 32], (16, 32): [16, 32] * 4}


def test_a_tile_leaves_beside_the_next_ones_sweeps():
    """Two tiles of four chunks on one cluster: the last GEMM of each emits, its DRAIN only waits, before the next one
    that emits; the second operand stays."""
    machine = build_machine(clusters=1)
    artifact = compile_kernel(matmul, machine, {"a": (16, 128), "b": (8, 128)}, {"gm": 2, "gn": 2, "nk": 1})
    (node,) = set(artifact.stages[0].nodes.values())
    stream = stream_of(artifact, node)
    assert names(stream) == ["FILL"] * 2 + ["GEMM"] * 4 + ["FILL"] + ["GEMM"] * 3 + ["DRAIN", "GEMM", "DRAIN"]
    gemms = [i for i in stream if i.op == Op.GEMM]
    assert [i.emit for i in gemms] == [0, 0, 0, 1] * 2
    drains = [i for i in stream if i.op == Op.DRAIN]
    assert [(i.fuse, i.n, i.addr) for i in drains] == [(1, 4, i.addr) for i in gemms if i.emit]
    assert {i.sel for i in stream[6:] if i.op == Op.FILL} == {0}


def test_a_second_drain_of_a_tile_is_explicit(bench):
    """A tile that leaves twice can be emitted once."""

    @kernel
    def twice(x=L.In(M, K), w=L.In(N, K), y=L.Out(M, N), z=L.Out(M, N), *, gm=2, gn=2, nk=1):
        with units(x.tiles(gm), w.tiles(gn)) as (i, j):
            acc = L.tile(gm, gn, nk)
            for k in loop(x.chunks32(nk)):
                acc += x[i, k] @ w[j, k]
            y[i, j] <<= acc
            z[i, j] <<= acc

    program = sequence(compiled(twice, bench, rows=8, columns=8, depth=64, gm=2, gn=2, nk=1))
    assert [(Op(i.op).name, i.emit, i.fuse) for i in program[-4:]] == [
        ("GEMM", 0, 0), ("GEMM", 1, 0), ("DRAIN", 0, 1), ("DRAIN", 0, 0),
    ]  # fmt: skip


def test_instances_are_dealt_so_that_operands_stay():
    """Eight tiles on two clusters: each takes a column of the result and fetches its part of b once."""
    machine = build_machine(clusters=2)
    artifact = compile_kernel(matmul, machine, {"a": (32, 64), "b": (16, 64)}, {"gm": 2, "gn": 2, "nk": 1})
    columns = {}
    for (_, j), node in artifact.stages[0].nodes.items():
        columns.setdefault(node, set()).add(j)
    assert sorted(columns.values(), key=min) == [{0}, {1}]
    for node in columns:
        stream = stream_of(artifact, node)
        assert fetched(stream) == [16, 4]


def test_what_is_needed_last_is_replaced_first():
    """32 entries hold 8 operands of 4, and two tiles need b's 10 one after the other: 8 stay and 2 are fetched again."""
    machine = build_machine(clusters=1, cluster_b_entries=32)
    artifact = compile_kernel(matmul, machine, {"a": (16, 320), "b": (16, 320)}, {"gm": 2, "gn": 4, "nk": 1})
    (node,) = set(artifact.stages[0].nodes.values())
    assert fetched(stream_of(artifact, node))[1] == 12 * 4


def test_what_an_earlier_instance_left_is_kept_on_its_cluster():
    """One cluster, a row of four tiles: x is fetched once by default, four times as published."""
    machine = build_machine(clusters=1)
    shapes = {"a": (8, 64), "b": (32, 64)}
    knobs = {"gm": 2, "gn": 2, "nk": 1}
    (node,) = (unit.node for unit in machine.clusters)
    entries = {
        lowering: fetched(stream_of(compile_kernel(matmul, machine, shapes, knobs, Options(lowering)), node))
        for lowering in ("default", "published")
    }
    assert entries == {"default": [4, 16], "published": [16, 16]}


def check_entries(program, entries):
    """Replays fills and sweeps: a sweep reads what was filled for it, and no fill overlaps the sweep that may still
    run, which is the last one unless a drain has waited for it. A fused drain waits for the GEMM that emitted."""
    held = [dict(), dict()]
    emits = 0
    running: list[set] = [set(), set()]
    for i in program:
        if i.op == Op.FILL:
            places = [(i.fbank << 8 | (i.eoff + n) % 256) % entries for n in range(i.n)]
            assert not running[i.sel] & set(places), "a FILL overlaps a running sweep"
            held[i.sel] |= {place: i.addr + 256 * n for n, place in enumerate(places)}
        elif i.op == Op.GEMM:
            for side, (groups, bank, first) in enumerate(((i.gm, i.abank, i.aoff), (i.gn, i.bbank, i.boff))):
                places = [(bank << 8 | (first + n) % 256) % entries for n in range(groups * i.nk)]
                found = [held[side][place] for place in places]
                assert found == [found[0] + 256 * n for n in range(len(places))]
                running[side] = set(places)
            emits = i.emit
        elif emits or not i.fuse:
            running = [set(), set()]


@pytest.mark.parametrize("entries", [16, 32, 64, 256, 512])
@pytest.mark.parametrize("depth", [32, 64, 96, 320])
def test_no_fill_touches_a_running_sweep(entries, depth):
    """Without banks (at most 256 entries) the halves of a side take their place."""
    machine = build_machine(clusters=2, cluster_a_entries=entries, cluster_b_entries=entries)
    artifact = compile_kernel(matmul, machine, {"a": (40, depth), "b": (24, depth)}, {"gm": 2, "gn": 3, "nk": 1})
    for node in set(artifact.stages[0].nodes.values()):
        check_entries(stream_of(artifact, node), entries)


def test_the_replay_notices_a_wrong_region():
    machine = build_machine(clusters=1)
    artifact = compile_kernel(matmul, machine, {"a": (64, 64), "b": (128, 64)}, {"gm": 16, "gn": 32, "nk": 1})
    (stream,) = programs(artifact, 0).values()
    check_entries(stream, 512)
    with pytest.raises(AssertionError, match="overlaps a running sweep"):
        check_entries([i._replace(eoff=0) if i.op == Op.FILL else i for i in stream], 512)
    with pytest.raises(KeyError):
        check_entries([i._replace(eoff=i.eoff + 1) if i.op == Op.FILL else i for i in stream], 512)


def test_a_tile_opened_in_a_loop(bench):
    program = sequence(compiled(row_of_tiles, bench, rows=8, columns=32, depth=64))
    assert names(program).count("DRAIN") == 4
    assert [i.acc for i in program if i.op == Op.GEMM] == [0, 1] * 4
    assert [i.addr - program[-1].addr for i in program if i.op == Op.DRAIN] == [-384, -256, -128, 0]


# ---- refusals --------------------------------------------------------------------------------------------


def test_interleaved_sweeps_are_refused(bench):
    with pytest.raises(CompileError, match="acc1 is accumulated again after another accumulator was begun"):
        compiled(interleaved, bench, depth=64)
    with pytest.raises(CompileError, match="a cluster holds one"):
        compiled(interleaved, bench, depth=64, fuse=False)


@pytest.mark.parametrize(
    "machine, knobs, depth, reason",
    [
        (
            {"cluster_tiles": 64},
            {"gm": 9, "gn": 8, "nk": 1},
            32,
            "9x8 is 72 sub-tiles and the accumulator of the cluster at",
        ),
        (
            {},
            {"gm": 64, "gn": 1, "nk": 4},
            128,
            "a FILL of 256 entries .64 groups of 4 blocks.; at most 255 are counted",
        ),
        ({}, {"gm": 1, "gn": 128, "nk": 2}, 64, "w: a FILL of 256 entries"),
        (
            {"cluster_a_entries": 32, "cluster_b_entries": 32},
            {"gm": 17, "gn": 2, "nk": 1},
            64,
            "x needs 17 entries on side A",
        ),
        (
            {"cluster_a_entries": 32, "cluster_b_entries": 32},
            {"gm": 33, "gn": 2, "nk": 1},
            32,
            "x needs 33 entries .*holds 32",
        ),
        (
            {"cluster_b_entries": 8},
            {"gm": 2, "gn": 5, "nk": 1},
            64,
            "w needs 5 entries on side B .* holds 8 and the sweep before, which still runs, needs w; use a smaller gn",
        ),
    ],
)
def test_limits_are_found_by_compiling(machine, knobs, depth, reason):
    rows, columns = 4 * knobs["gm"], 4 * knobs["gn"]
    with pytest.raises(CompileError, match=reason) as caught:
        compiled(matmul_of(knobs["nk"]), build_machine(**machine), rows, columns, depth, **knobs)
    assert "@" in caught.value.source.text


@pytest.mark.parametrize(
    "machine, knobs, depth",
    [
        ({"cluster_tiles": 64}, {"gm": 8, "gn": 8, "nk": 1}, 32),
        ({}, {"gm": 51, "gn": 1, "nk": 5}, 320),
        ({"cluster_a_entries": 32, "cluster_b_entries": 32}, {"gm": 16, "gn": 2, "nk": 1}, 64),
        ({"cluster_a_entries": 32, "cluster_b_entries": 32}, {"gm": 32, "gn": 2, "nk": 1}, 32),
        ({"cluster_b_entries": 8}, {"gm": 2, "gn": 4, "nk": 1}, 64),
    ],
)
def test_just_below_the_limits_compiles(machine, knobs, depth):
    compiled(matmul_of(knobs["nk"]), build_machine(**machine), 4 * knobs["gm"], 4 * knobs["gn"], depth, **knobs)


def test_published_two_weights_share_a_bank(bench):
    knobs = {"gm": 2, "gn": 16, "nk": 8, "options": PUBLISHED}
    compiled(geglu, bench, rows=8, columns=64, depth=512, **knobs)
    with pytest.raises(CompileError, match="wu needs 136 entries on side B .*holds 256 and wg 136 are taken"):
        compiled(geglu, bench, rows=8, columns=68, depth=512, **(knobs | {"gn": 17}))
    compiled(geglu, bench, rows=8, columns=68, depth=512, gm=2, gn=17, nk=8)


def test_no_cluster():
    with pytest.raises(CompileError, match="machine bench has no cluster"):
        compiled(matmul_of(2), build_machine(clusters=0))


def test_one_mantissa(bench):
    from dataclasses import replace

    mixed = replace(bench, clusters=(replace(bench.clusters[0], mantissa=12), *bench.clusters[1:]))
    with pytest.raises(CompileError, match=r"accumulators of \[12, 14\] mantissa bits"):
        compiled(matmul_of(2), mixed)
    assert compiled(matmul_of(2), build_machine(cluster_mantissa=12)).mantissa == 12
