"""The fused epilogue: the refusal table of the seed with its band edges, and what is emitted."""

import hashlib
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from kohakutpu import lang as L
from kohakutpu.compiler import Await, CannotFuse, CompileError, Kick, Options, Seed, compile_kernel, fusion
from kohakutpu.compiler.refusals import L1_SAFE
from kohakutpu.isa import cluster, vector
from kohakutpu.kernels.linear import geglu, linear_bias, linear_silu, product
from kohakutpu.machine import Agent, load
from kohakutpu.reference import interpret
from kohakutpu.wording import counted

from .conftest import build_machine
from .kernels import bias_only, bias_twice, fused, residual, several_gates, silu_only, two_results

RETILE, STAGE, STEPS, LOWERING = "retile", "write two stages with a temp", "compute it in steps", "with lowering='default'"

M, K, N = L.dims("M, K, N")


def compiled(kernel, machine, rows=8, columns=8, depth=32, options=Options(), **knobs):
    """Compile a kernel over x(rows, depth), w(columns, depth) and whatever else it takes."""
    shapes = {"x": (rows, depth), "w": (columns, depth), "v": (columns, depth), "r": (rows, columns), "b": (columns,),
              "c": (columns,), "wg": (columns, depth), "wu": (columns, depth)}  # fmt: skip
    return compile_kernel(kernel, machine, {port.name: shapes[port.name] for port in kernel.inputs}, knobs, options)


def refusal(kernel, machine, fixes=(RETILE, STAGE), **settings) -> CannotFuse:
    """The refusal, which advises those `fixes` and no other."""
    with pytest.raises(CannotFuse) as caught:
        compiled(kernel, machine, **settings)
    error = caught.value
    assert [fix for fix in (RETILE, STAGE, STEPS, LOWERING) if fix in str(error).split("Fix: ")[1]] == list(fixes)
    assert error.source is not None and "<<=" in error.source.text and str(error.source.line) in str(error)
    return error


# ---- the bands -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lowering", ["default", "published"])
@pytest.mark.parametrize("gm, gn", [(1, 1), (16, 10), (8, 20), (160, 1), (1, 160)])
def test_up_to_160_sub_tiles_fuse(bench, gm, gn, lowering):
    artifact = compiled(silu_only, bench, 4 * gm, 4 * gn, gm=gm, gn=gn, options=Options(lowering))
    assert len(artifact.stages) == 2 and not [image for image in artifact.buffers if image.role == "temp"]


@pytest.mark.parametrize("gm, gn", [(7, 23), (23, 7), (8, 21), (12, 20), (31, 8), (25, 10), (16, 16), (13, 19)])
def test_161_and_more_are_refused(bench, gm, gn):
    """161..248 as published, and also 249..256, which the published compiler lets through."""
    error = refusal(silu_only, bench, rows=4 * gm, columns=4 * gn, gm=gm, gn=gn)
    (condition,) = error.conditions
    assert "above the 320 that are safe (L1_SAFE)" in condition and f"gm*gn = {gm * gn}" in condition


def test_257_also_names_the_walk(bench):
    error = refusal(silu_only, bench, rows=4, columns=4 * 257, gm=1, gn=257)
    assert [("L1_SAFE" in c, "F_LEN" in c) for c in error.conditions] == [(True, False), (False, True)]
    assert "F_LEN" not in str(refusal(silu_only, bench, rows=64, columns=64, gm=16, gn=16))


@pytest.mark.parametrize("count, cores", [(1, 1), (8, 8), (5, 8), (4, 4)])
def test_as_many_instances_as_cores_fuse(count, cores):
    artifact = compiled(silu_only, build_machine(vectors=cores), rows=8 * count, gm=2, gn=2)
    assert len(set(artifact.stages[1].nodes.values())) == count


@pytest.mark.parametrize("count, cores", [(2, 1), (9, 8), (5, 4)])
def test_one_more_instance_is_refused(count, cores):
    error = refusal(silu_only, build_machine(vectors=cores), rows=8 * count, gm=2, gn=2)
    assert error.conditions == [f"{count} instances on {counted(cores, 'vector core')}: each core can take one open stream"]


def test_batch_elements_are_instances(bench):
    shapes = {"x": (9, 8, 32), "w": (8, 32)}
    with pytest.raises(CannotFuse, match="9 instances on 8 vector cores"):
        compile_kernel(linear_silu, bench, shapes, {"gm": 2, "gn": 2, "nk": 1})
    shapes["x"] = (2, 4, 8, 32)
    assert compile_kernel(linear_silu, bench, shapes, {"gm": 2, "gn": 2, "nk": 1}).stages[1].grid == (8, 1, 1)


# ---- the other conditions --------------------------------------------------------------------------------


def test_no_agent(bench):
    error = refusal(silu_only, fixes=(STAGE,), machine=replace(bench, agent=Agent(0, 0, own_endpoint=True)))
    assert "names no agent" in error.conditions[0]
    assert len(compiled(silu_only, replace(bench, agent=Agent(0, 0, own_endpoint=True)), fuse=False).stages) == 2


def test_no_vector_core():
    """Neither fix of an epilogue that does not fit would help, so neither is advised."""
    for fuse in (True, False):
        with pytest.raises(CompileError, match="machine bench has no vector core") as caught:
            compiled(silu_only, build_machine(vectors=0), fuse=fuse)
        assert "Fix" not in str(caught.value)


def test_a_second_operand(bench):
    assert refusal(residual, bench, [STAGE]).conditions == [
        "r is neither the accumulator nor a constant; it would need a fill of its own"
    ]
    assert "2 per-channel operands (b, c)" in refusal(bias_twice, bench, [STAGE]).conditions[0]
    refusal(bias_twice, bench, [STAGE, LOWERING], options=Options("published"))
    assert [stage.unit for stage in compiled(residual, bench, fuse=False).stages] == ["cluster", "vector"]


def only(value):
    """A fused kernel of the accumulator alone: its unused ports are left out."""

    def made(x=L.In(L.dims("M"), L.dims("K")), w=L.In(L.dims("N"), L.dims("K")), y=L.Out(L.dims("M"), L.dims("N"))):
        with L.units(x.tiles(2), w.tiles(2)) as (i, j):
            acc = L.tile(2, 2, 1)
            for k in L.loop(x.chunks32(1)):
                acc += x[i, k] @ w[j, k]
            y[i, j] <<= value(acc)

    return L.kernel(made)


@pytest.mark.parametrize(
    "value",
    [
        lambda a: a * 3.0, lambda a: L.maximum(a, 0.3), lambda a: L.minimum(a, -7), lambda a: a + 1, lambda a: a - 1,
        lambda a: 1 - a, lambda a: 1 / a, lambda a: a * L.dims("N"), lambda a: L.maximum(0, a), lambda a: a + (-1),
        lambda a: L.silu(a), lambda a: L.gelu(a), lambda a: L.relu(a), lambda a: a / a,
    ],
)  # fmt: skip
def test_demonstrated_slots_fuse(bench, value):
    assert len(compiled(only(value), bench).stages) == 2


@pytest.mark.parametrize(
    "value, slot",
    [
        (lambda a: 3.0 * a, "va of VMUL"), (lambda a: a + 0.5, "vc of VADD"), (lambda a: 0.5 + a, "va of VADD"),
        (lambda a: 1.5 - a, "va of VSUB"), (lambda a: a / 3, "va of VINV"), (lambda a: 3 / a, "va of VMUL"),
        (lambda a: a - 0.25, "vc of VSUB"), (lambda a: L.dims("N") * a, "va of VMUL"),
    ],
)  # fmt: skip
def test_undemonstrated_slots_are_refused_as_published(bench, value, slot):
    """The published software has never used these; every slot is seen to work on the gates (tests/rtl/test_vector.py)."""
    (condition,) = refusal(only(value), bench, [STAGE], options=Options("published")).conditions
    assert f"would be operand {slot} from an S register, a source slot that is undemonstrated" in condition
    compiled(only(value), bench, options=Options("published"), fuse=False)  # constants are spread over vector registers
    compiled(only(value), bench)


def test_every_condition_is_listed():
    kernel = fused(lambda acc, r, b: (acc + r) * b + 0.5)
    error = refusal(kernel, build_machine(vectors=1), [STAGE, LOWERING], rows=200, columns=100, gm=25, gn=11, options=Options("published"))
    starts = [
        "6 instances on 1 vector core",
        "its footprint in L1",
        "gm*gn = 275 is above 256",
        "r is neither",
        "the constant 0.5",
    ]
    assert [c[: len(start)] for c, start in zip(error.conditions, starts, strict=True)] == starts


def test_nothing_is_staged_silently(bench):
    """The published compiler falls back; ours refuses, and stages when fuse=False says so."""
    refusal(silu_only, bench, rows=72, gm=2, gn=2)
    artifact = compiled(silu_only, bench, rows=72, gm=2, gn=2, fuse=False)
    assert [image.name for image in artifact.buffers if image.role == "temp"] == ["land3"]
    assert artifact.knobs["fuse"] is False


@pytest.mark.parametrize("lead", [(), (2,)])
@pytest.mark.parametrize("rows, columns", [(8, 8), (7, 37), (33, 100)])
def test_per_channel_operands_are_staged(run, rows, columns, lead):
    """fuse=False reads them as rows that repeat: any number of them, beside operands in tiles."""

    @L.kernel
    def gated(x=L.In(..., M, K), w=L.In(N, K), b=L.In(N), c=L.In(N), g=L.In(..., M, N), y=L.Out(..., M, N)):
        with L.units(x.tiles(2), w.tiles(3)) as (i, j):
            y[i, j] <<= L.silu(product(x, w, i, j, 2, 3, 1) * c[j] + b[j]) * g[i, j]

    quad = load("quad")
    shapes = {"x": (*lead, rows, 40), "w": (columns, 40), "b": (columns,), "c": (columns,), "g": (*lead, rows, columns)}
    draw = np.random.default_rng(rows)
    operands = {port: draw.normal(size=shape).astype(np.float16) for port, shape in shapes.items()}
    artifact = compile_kernel(gated, quad, shapes, {"fuse": False})
    assert [stage.unit for stage in artifact.stages] == ["cluster", "vector"]
    meant = interpret(gated.trace(fuse=False), gated.solve(shapes), operands).outputs["y"]
    assert hashlib.sha256(run(artifact, quad, operands)["y"].tobytes()).digest() == hashlib.sha256(meant.tobytes()).digest()
    with pytest.raises(CompileError, match="no operands that repeat; use lowering='default'"):
        compile_kernel(gated, quad, shapes, {"fuse": False}, Options("published"))


def test_arrays_of_constants_need_the_staged_form(bench):
    with pytest.raises(CompileError, match="constants='arrays' rounds -1.4426950408889634 to FP16"):
        compiled(silu_only, bench, options=Options(constants="arrays"))
    compiled(only(L.relu), bench, options=Options(constants="arrays"))  # 0 is the same in both


@pytest.mark.parametrize("count", [1, 3, 7])
def test_up_to_seven_accumulators(bench, count):
    artifact = compiled(several_gates, bench, rows=4, columns=4, count=count)
    assert len([n for n in artifact.rounds[0].flits if cluster.decode(n.payload).op == cluster.Op.DRAIN]) == count


def test_published_descriptors_and_image(bench):
    """errata: late-refusal. Both are found by compiling."""
    published = Options("published")
    compiled(several_gates, bench, rows=4, columns=4, count=6, options=published)
    with pytest.raises(CompileError, match="7 accumulators need 9 descriptors of 8 as published"):
        compiled(several_gates, bench, rows=4, columns=4, count=7, options=published)

    def powers(acc):
        for _ in range(24):
            acc = acc * acc
        return acc

    def made(x=L.In(L.dims("M"), L.dims("K")), w=L.In(L.dims("N"), L.dims("K")), y=L.Out(L.dims("M"), L.dims("N"))):
        with L.units(x.tiles(16), w.tiles(10)) as (i, j):
            acc = L.tile(16, 10, 1)
            for k in L.loop(x.chunks32(1)):
                acc += x[i, k] @ w[j, k]
            y[i, j] <<= powers(acc)

    with pytest.raises(CompileError, match="the vector program is 52[0-9] words and a core holds 512"):
        compiled(L.kernel(made), bench, rows=64, columns=40, options=published)
    compiled(L.kernel(made), bench, rows=64, columns=40)


def test_eight_accumulators_are_refused(bench):
    """fuse=False would need ten descriptors, which is not advised; the steps that are do compile."""
    error = refusal(several_gates, bench, [STEPS], rows=4, columns=4, count=8)
    assert "8 accumulators; 7 fit" in error.conditions[0] and "at most 6 operands a statement" in str(error)
    with pytest.raises(CompileError, match="8 operands, .*, need 10 descriptors of 8"):
        compiled(several_gates, bench, rows=4, columns=4, count=8, fuse=False)

    def steps(x=L.In(M, K), w=L.In(N, K), y=L.Out(M, N), *, gm=1, gn=1, nk=1):
        t, u = L.temp(M, N), L.temp(M, N)
        with L.units(x.tiles(gm), w.tiles(gn)) as (i, j):
            for temp in (t, u):
                first, second, third, fourth = (product(x, w, i, j, gm, gn, nk) for _ in range(4))
                temp[i, j] <<= first + second + third + fourth
            y[i, j] <<= t[i, j] + u[i, j]

    compiled(L.kernel(steps), bench, rows=4, columns=4)


def test_a_per_channel_operand_of_five_is_not_advised_to_be_staged(bench):
    """Rows of tiles with an operand that repeats take four operands."""

    def made(x=L.In(M, K), w=L.In(N, K), b=L.In(N), y=L.Out(M, N), *, count=4, gm=1, gn=1, nk=1):
        with L.units(x.tiles(gm), w.tiles(gn)) as (i, j):
            value = b[j] * 2
            for _ in range(count):
                value = value + product(x, w, i, j, gm, gn, nk)
            y[i, j] <<= value

    few = build_machine(vectors=1)
    for count, fixes in ((3, [RETILE, STAGE]), (4, [RETILE, STEPS])):
        refusal(L.kernel(made), few, fixes, rows=8, columns=4, count=count)
    compiled(L.kernel(made), few, rows=8, columns=4, count=3, fuse=False)
    with pytest.raises(CompileError, match="need 9 descriptors of 8"):
        compiled(L.kernel(made), few, rows=8, columns=4, count=4, fuse=False)


def test_several_tiles_share_the_safe_span(bench):
    """(N + 1) * span <= 320: two accumulators of 104 words fit, of 105 (112 in chunks) do not."""
    wide = {"rows": 4 * 13, "columns": 4 * 8, "nk": 1}
    compiled(geglu, bench, gm=13, gn=8, **wide)
    error = refusal(geglu, bench, rows=4 * 15, columns=4 * 7, nk=1, gm=15, gn=7)
    assert "3 * 112 words (gm*gn = 105) = 336" in error.conditions[0]


# ---- what is emitted -------------------------------------------------------------------------------------


def programs(artifact, stage):
    """The decoded instructions of each instance of a stage, in order."""
    decode = cluster.decode if artifact.stages[stage].unit == "cluster" else vector.decode
    found: dict = {key: [] for key in artifact.stages[stage].nodes}
    for round_ in artifact.rounds:
        if round_.stage == stage:
            for key, flit in zip(round_.instances, round_.flits, strict=True):
                found[key].append(decode(flit.payload))
    return found


def test_the_send_names_receiver_slot_and_agent(bench):
    artifact = compiled(silu_only, bench, rows=64, gm=2, gn=2)
    receivers = artifact.stages[1].nodes
    for key, instructions in programs(artifact, 0).items():
        send = instructions[-1]
        assert (send.dnode, send.dbuf, send.dflags, send.addr, send.n) == (1, 0, 1, 0, 4)
        assert send.dst_y << 4 | send.dst_x == receivers[key]
        assert (send.dack_x, send.dack_y) == bench.agent.xy and send.dfin == send.dmesh == 0


@pytest.mark.parametrize("lowering", ["default", "published"])
def test_two_accumulators_drain_into_one_core(bench, lowering):
    """Sweep, drain, sweep, drain, apply: the second sweep would clear the first tile. Slots are a span apart."""
    artifact = compiled(geglu, bench, rows=16, columns=16, depth=128, gm=4, gn=4, nk=1, options=Options(lowering))
    (program,) = programs(artifact, 0).values()
    order = [cluster.Op(i.op).name for i in program]
    first = order.index("DRAIN")
    assert set(order[:first]) == {"FILL", "GEMM"} and order[-1] == "DRAIN" and order.count("DRAIN") == 2
    assert [i.addr for i in program if i.op == cluster.Op.DRAIN] == [0, 16 * 32]
    assert [i.acc for i in program if i.op == cluster.Op.GEMM] == [0, 1, 1, 1] * 2
    assert artifact.stages[0].acks == {(0, 0): (artifact.stages[1].nodes[0, 0], 4)}


def test_published_size_of_the_gated_form(bench):
    """spec: gm=gn=4, 16x128: 12 cluster flits; swiglu's chain is 35 vector flits."""
    from kohakutpu.kernels.linear import swiglu

    artifact = compiled(swiglu, bench, rows=16, columns=16, depth=128, gm=4, gn=4, nk=2, options=Options("published"))
    assert [sum(len(p) for p in programs(artifact, s).values()) for s in (0, 1)] == [12, 35]


def test_residents_count_for_every_store_of_a_tiling(bench):
    artifact = compiled(two_results, bench)
    assert [stage.unit for stage in artifact.stages] == ["cluster", "vector", "vector"]
    sends = [i.addr // 32 for i in programs(artifact, 0)[0, 0] if i.op == cluster.Op.DRAIN]
    assert sends == [0, 8]


@pytest.mark.parametrize("gn", [1, 2, 3, 4, 5, 6, 7, 8, 12, 16])
def test_per_channel_reads_stay_inside_what_was_filled(bench, gn):
    """errata: bias-walk. Every word that a VLD of the per-channel operand touches was filled, with the right column."""
    artifact = compiled(bias_only, bench, rows=20, columns=4 * gn, gm=5, gn=gn)
    (program,) = programs(artifact, 1).values()
    window: dict[int, dict[int, int]] = {}
    image: dict[int, int] = {}
    tile_reads, channel_reads = [], []
    for i in program:
        if i.op == vector.Envelope.IMEM:
            image[i.addr] = i.word
        elif i.op == vector.Envelope.DESC:
            window.setdefault(i.ad, {})[i.field] = i.value if i.field == 0 else (i.stride, i.bound)
        else:
            pc, span = i.pc, -(-5 * gn // 8) * 8
            while (word := vector.decode_word(image[pc])).op != vector.Opcode.VHALT:
                if word.op == vector.Opcode.VFILL:
                    fill = word.l1, window[word.ad][1][1] * window[word.ad].get(2, (0, 1))[1]
                if word.op == vector.Opcode.VSETI:
                    pc += 1
                if word.op == vector.Opcode.VLD:
                    base = window[word.ad][0] + word.offset
                    if base >= 2 * span:
                        assert fill[0] <= base and base + 8 <= fill[0] + fill[1]
                        channel_reads.append(base - fill[0])
                    else:
                        tile_reads.append(base)
                pc += 1
    assert sorted(set(tile_reads)) == list(range(0, -(-5 * gn // 8) * 8, 8))
    assert [phase % gn for phase in channel_reads] == [off % gn for off in tile_reads]


def test_published_per_channel_walk_is_refused_where_it_is_wrong(bench):
    with pytest.raises(CompileError, match="wrong for gn = 6.*use lowering='default'"):
        compiled(bias_only, bench, rows=20, columns=24, gm=5, gn=6, options=Options("published"))


def test_per_channel_words_count_in_the_footprint(bench):
    compiled(bias_only, bench, rows=4 * 19, columns=32, gm=19, gn=8)
    assert "+ 8 per-channel words = 328" in refusal(bias_only, bench, rows=80, columns=64, gm=20, gn=8).conditions[0]


def test_awaits_stand_with_the_drains_that_cause_them(bench):
    """errata: ack-round. An instance of more than one window is acknowledged where its drains are awaited."""
    for lowering in ("default", "published"):
        artifact = compiled(
            geglu, bench, rows=16, columns=16, depth=2048, gm=4, gn=4, nk=1, options=Options(lowering)
        )  # fmt: skip
        receiver = artifact.stages[1].nodes[0, 0]
        chains = [chain for chain in artifact.chains() if chain[0].stage == 0]
        assert sum(map(len, chains)) > 1 and all(len(r.flits) <= bench.staging_flits for c in chains for r in c)
        for chain in chains:
            flits = [f for r in chain for f in r.flits]
            drains = [i for i in (cluster.decode(f.payload) for f in flits) if i.op == cluster.Op.DRAIN]
            owed = sum(-(-i.n // 8) for i in drains)
            assert sum(a.count for a in chain[-1].awaits if a.node == receiver) == owed
            assert sum(a.acks for a in chain[-1].awaits) == owed
        assert sum(a.acks for chain in chains for r in chain for a in r.awaits) == 4


def test_kicks_and_awaits_agree(bench):
    artifact = compiled(silu_only, bench, rows=64, gm=2, gn=2)
    for chain in artifact.chains():
        kicked = Counter()
        for round_ in chain:
            assert all(round_.flits[k.base + k.count - 1].last for k in round_.kicks)
            assert sum(f.last for f in round_.flits) == len(round_.kicks)
            kicked.update({kick.node: kick.count for kick in round_.kicks})
            kinds = [Seed] * (round_ is chain[0]) + [Kick] * len(round_.kicks) + [Await] * len(round_.awaits)
            assert [type(s) for s in round_.steps] == kinds
        for step in chain[-1].awaits:
            assert step.count - step.acks == kicked[step.node]


def test_the_default_bias_kernel_takes_any_width(bench):
    for gn in np.random.default_rng(3).choice(np.arange(1, 17), 6, replace=False):
        compile_kernel(linear_bias, bench, {"x": (9, 40), "w": (4 * gn, 40), "b": (4 * gn,)}, {"gm": 3, "gn": int(gn)})


def test_repeated_per_channel_words_stay_within_one_walk():
    """Whatever fits the safe room after two slots is a fill that one walk can make: at most three spans of them."""
    for gn in range(1, vector.WALK_LIMIT + 1):
        for gm in range(1, vector.WALK_LIMIT // gn + 1):
            shape = fusion._Shape((0,), 1, 1, gm * gn, fusion.span_words(gm, gn), gm, gn)
            for per in range(1, shape.chunks + 1):
                starts = tuple(min(first, shape.chunks - per) for first in range(0, shape.chunks, per))
                words = fusion._bias_repeats(shape, starts, per) * gn
                assert shape.side + words > L1_SAFE or words <= vector.WALK_LIMIT
