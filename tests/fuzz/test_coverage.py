"""Functional coverage: bins derived from the tables, counted, merged, written and read."""

import json

import pytest

from kohakutpu.fuzz.bins import turns, universe
from kohakutpu.fuzz.campaign import Campaign
from kohakutpu.fuzz.coverage import Coverage, CoverageError
from kohakutpu.fuzz.kernel_walk import KernelWalk
from kohakutpu.fuzz.watch import Watch
from kohakutpu.isa import cluster, vector
from kohakutpu.isa.flit import Flit, FlitType
from kohakutpu.machine import load
from kohakutpu.model.system import System
from kohakutpu.noc.router import Port

MACHINE = load("mm_mesh")


@pytest.fixture(scope="module")
def covered():
    campaign = Campaign(MACHINE, 31, coverage=Coverage(MACHINE))
    campaign.run(25)
    assert campaign.finding is None
    return campaign.coverage


def test_bins_come_from_the_tables():
    bins = universe(MACHINE)
    names = [name for group in bins.values() for name in group]
    for op in vector.Opcode:
        assert any(name.startswith((f"{op.name} ", f"{op.name}.")) for name in names), op
    for op, layout in cluster.LAYOUTS.items():
        for field in layout.fields.values():
            assert field.fixed or any(name.startswith(f"{cluster.Op(op).name}.{field.name}=") for name in names)
    assert len(names) == len(set(names))
    assert ("r11", Port.NORTH, Port.WEST) in set(turns(MACHINE))


def test_a_run_hits_bins_of_every_group(covered):
    totals = covered.totals()
    assert all(hit for hit, _ in totals.values())
    assert 0.4 < covered.share < 1
    assert covered.programs == 25
    assert len(covered.missing()) == sum(of - hit for hit, of in totals.values())


def test_nothing_that_is_left_out_was_hit(covered):
    left_out = [(g, n) for g, bins in covered.universe.items() for n, why in bins.items() if why]
    assert left_out and not [(g, n) for g, n in left_out if covered.hits[g][n]]


def test_a_name_without_a_bin_is_a_mistake():
    watch = Watch(Coverage(MACHINE), [link.name for link in System(MACHINE, agent="bench").engine.links])
    with pytest.raises(KeyError, match="no bin 'FILL of gold'"):
        watch._hit("cluster instructions", "FILL of gold")


def test_gemm_bins():
    coverage = Coverage(MACHINE)
    watch = Watch(coverage, [link.name for link in System(MACHINE, agent="bench").engine.links])
    at, agent = MACHINE.clusters[0].node, MACHINE.agent.node
    payloads = cluster.GEMM.encode(gm=255, gn=1, nk=2, emit=1, abank=1), cluster.DRAIN.encode(n=3, fuse=1)
    watch.sent(Flit(at, agent, FlitType.CU_INST, 0, 0, 0, payload) for payload in payloads)
    hits = coverage.hits["cluster instructions"]
    assert {
        "GEMM.gm=max",
        "GEMM.gn=1",
        "GEMM acc=0 emit=1, more",
        "GEMM banks 1 0",
        "emitting GEMM to memory",
    } <= hits.keys()
    assert coverage.hits["faults"] == {"cluster fused DRAIN of another count": 1}


def test_a_kernel_is_followed_up_to_its_fault():
    words = [
        vector.encode(vector.Opcode.VSETMODE, mode=vector.Mode.D2), vector.encode(vector.Opcode.VADD, sa=0, sc=3),
        vector.encode(vector.Opcode.VMUL, sa=2, sb=1, sc=2, pm=2), vector.encode(vector.Opcode.VADD, sa=2),
        vector.encode(vector.Opcode.VHALT),
    ]  # fmt: skip
    walk = KernelWalk()
    found = [walk.take(vector.IMEM.encode(addr=at, word=word)) for at, word in enumerate(words)]
    assert found == [[]] * len(words)
    hit = walk.take(vector.RUN.encode(pc=0))
    assert hit == [
        "VSETMODE FLAT", "VADD D2 first a=V", "VADD D2 first c=K", "VMUL D2 later a=C", "VMUL D2 later b=S",
        "VMUL pm=UNLESS",
    ]  # fmt: skip


def test_files_add_up(covered, tmp_path):
    path = tmp_path / "c.json"
    path.write_text(covered.to_json())
    twice = Coverage.load(path, MACHINE)
    twice.merge(covered)
    assert twice.programs == 50 and twice.share == covered.share
    group, name = "signals", "cluster INST_COMPLETE"
    assert twice.hits[group][name] == 2 * covered.hits[group][name] > 0


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda data: data.update(machine="quad"), "of machine 'quad'"),
        (lambda data: data["bins"].pop("faults"), "groups"),
        (lambda data: data["bins"]["faults"].update(gold=1), "no bin 'gold'"),
        (lambda data: data.pop("programs"), "no coverage file"),
    ],
)
def test_another_file_is_refused(covered, tmp_path, change, words):
    data = json.loads(covered.to_json())
    change(data)
    path = tmp_path / "c.json"
    path.write_text(json.dumps(data))
    with pytest.raises(CoverageError, match=words):
        Coverage.load(path, MACHINE)
    path.write_text("[" * 100_000)
    with pytest.raises(CoverageError, match="no coverage file"):
        Coverage.load(path, MACHINE)


def test_machines_do_not_mix(covered):
    with pytest.raises(CoverageError, match="cannot be added"):
        Coverage(load("quad")).merge(covered)
