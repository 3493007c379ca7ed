"""The `kohakutpu` command as a person meets it: what it prints, where it refuses, and its exit status."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kohakutpu.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
SILU = "kohakutpu.kernels.linear:linear_silu"
SHAPES = ["--shape", "x=32x64", "--shape", "w=32x64"]
EXAMPLE = ["--in", f"x={ROOT}/examples/linear_silu/x.npy", "--in", f"w={ROOT}/examples/linear_silu/w.npy"]


@pytest.fixture
def call(capsys):
    """call(*argv) -> (status, stdout, stderr)."""

    def run(*argv):
        try:
            status = main([str(item) for item in argv])
        except SystemExit as end:
            status = end.code
        out, err = capsys.readouterr()
        return status, out, err

    return run


def test_the_console_script_is_installed():
    done = subprocess.run(
        [Path(sys.executable).parent / "kohakutpu", "machine", "list"], capture_output=True, text=True
    )
    assert done.returncode == 0 and "mm_mesh" in done.stdout.split()


def test_a_closed_pipe_is_no_error():
    command = f"{Path(sys.executable).parent / 'kohakutpu'} run --list-faults | head -1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "" and len(done.stdout.splitlines()) == 1


@pytest.mark.parametrize("machine", ["mm_mesh", "quad"])
def test_sim_is_byte_equal(call, machine):
    status, out, _ = call("sim", "--machine", machine)
    assert status == 0
    assert out.count("byte-equal\n") >= 2 and "NOT" not in out
    assert "fused: linear_silu" in out and "staged: linear_silu" in out
    assert "2048 bytes" in out and "DRAM" in out and "cycles" in out


def test_sim_of_a_machine_without_vector_cores_says_what_it_ran(call):
    status, out, _ = call("sim", "--machine", "2x2_6+0")
    assert status == 0 and "has no vector core" in out and "plain: matmul" in out


def test_sim_refuses_a_machine_that_cannot_be_built(call):
    status, _, err = call("sim", "--machine", "seed_case")
    assert status == 2 and "compile-only" in err


@pytest.mark.parametrize(
    "fault",
    ["vector-alu-sign", "cluster-l1-bit", "cluster-tile-bit", "memory-read-bit", "memory-write-bit", "noc-flipped-bit"],
)
def test_a_flipped_bit_is_reported_with_its_place_and_cause(call, fault):
    status, out, _ = call("sim", "--fault", fault)
    assert status == 1 and "NOT byte-equal" in out
    line = next(line for line in out.splitlines() if "differs at byte" in line)
    for part in ("y differs at byte 0x", "element [", "expected ", "found ", "linear.py:", "y[i, j] <<="):
        assert part in line


@pytest.mark.parametrize(
    "fault", ["vector-lost-ack", "cluster-drain-ack", "cluster-lost-completion", "orchestrator-lost-credit"]
)
def test_a_lost_message_is_a_hang_with_every_nodes_state(call, fault):
    status, _, err = call("run", SILU, *EXAMPLE, "--fault", fault, "--timeout", 20_000)
    assert status == 4
    for part in ("waiting for signals of node", "after 20,000 cycles", "vector0 (1, 0)", "cluster0 (2, 1)", "last signal", "credit",
                 "last flit on each link"):  # fmt: skip
        assert part in err


def test_a_hang_is_reported_in_the_file_too(call, tmp_path):
    report = tmp_path / "r.json"
    words = ("--fault", "vector-lost-ack", "--timeout", 2000, "--report", report)
    status, _, err = call("run", SILU, *EXAMPLE, *words)
    record = json.loads(report.read_text())
    assert status == 4 and "\n".join(record["stopped"]) in err and len(record["stopped"]) > 20
    assert record["byte_equal"] is False and record["faults"] == ["vector-lost-ack"] and record["machine"] == "mm_mesh"


def test_faults_are_listed_name_first(call):
    status, out, _ = call("run", "--list-faults")
    assert status == 0
    names = [line.split()[0] for line in out.splitlines()]
    assert "vector-alu-sign" in names and names == sorted(names)


def test_an_unknown_fault_is_refused(call):
    status, _, err = call("sim", "--fault", "vector-alu-sine")
    assert status == 2 and "no fault is named 'vector-alu-sine'; did you mean 'vector-alu-sign'?" in err
    status, _, err = call("sim", "--fault", "gold")
    assert status == 2 and "no fault is named 'gold'; there are: cluster-" in err and "vector-alu-sign" in err


def test_compile_forms(call, tmp_path):
    status, summary, _ = call("compile", SILU, *SHAPES)
    assert status == 0 and "FILL" in summary and "digest" in summary
    status, listing, _ = call("compile", SILU, *SHAPES, "--flits")
    assert status == 0 and "GEMM gm=8 gn=8 nk=2" in listing
    (tmp_path / "k.asm").write_text(listing)
    status, words, _ = call("asm", tmp_path / "k.asm")
    assert status == 0
    (tmp_path / "k.hex").write_text(words)
    status, again, _ = call("disasm", tmp_path / "k.hex")
    assert status == 0
    (tmp_path / "k2.asm").write_text(again)
    assert call("asm", tmp_path / "k2.asm")[1] == words
    status, text, _ = call("compile", SILU, *SHAPES, "--json")
    assert status == 0 and json.loads(text)["kernel"] == "linear_silu"


def test_the_measured_case_has_the_recorded_counts(call):
    case = ["compile", SILU, "--machine", "seed_case", *SHAPES, "--knob", "gm=4", "--knob", "gn=8", "--knob", "nk=2"]
    _, fused, _ = call(*case, "--lowering", "published")
    _, staged, _ = call(*case, "--lowering", "published", "--constants", "arrays", "--knob", "fuse=False")
    assert ": 94 flits" in fused and ": 107 flits" in staged
    assert " temp " not in fused and " constant " not in fused
    assert " temp " in staged and "2048 B" in staged and staged.count("16384 B") == staged.count(" constant ") == 2
    _, better, _ = call(*case)
    _, better_staged, _ = call(*case, "--knob", "fuse=False")
    count = lambda text: int(text.split(": ")[1].split(" flits")[0])  # noqa: E731
    assert count(better) <= 94 and count(better_staged) <= 107
    assert " constant " not in better_staged


def test_run_writes_what_it_says(call, tmp_path):
    y, report, trace = tmp_path / "y.npy", tmp_path / "r.json", tmp_path / "t.flits"
    status, out, _ = call("run", SILU, *EXAMPLE, "--out", f"y={y}", "--report", report, "--trace", trace)
    assert status == 0 and "byte-equal" in out
    assert np.load(y).shape == (32, 32) and np.load(y).dtype == np.float16
    record = json.loads(report.read_text())
    assert record["byte_equal"] is True and record["cycles"] > 0 and record["buffers"][0]["bytes"] == 2048
    assert trace.stat().st_size > 1000
    status, out, _ = call("run", SILU, "--engine", "reference", *EXAMPLE, "--out", f"y={tmp_path / 'z.npy'}")
    assert status == 0 and (np.load(tmp_path / "z.npy").view(np.uint16) == np.load(y).view(np.uint16)).all()


def test_a_trace_reads_as_text(call, tmp_path):
    trace = tmp_path / "t.flits"
    assert call("run", SILU, *EXAMPLE, "--trace", trace)[0] == 0
    status, text, _ = call("disasm", trace)
    assert status == 0
    lines = text.splitlines()
    cycles, flits, events, levels = (int(number) for number in re.findall(r", (\d+)", lines[0]))
    assert lines[0].startswith("# machine mm_mesh, ") and len(lines) == 1 + flits + events
    assert any("cluster0.out" in line and "MEM_RD_REQ" in line for line in lines)
    assert any("cluster0.begin" in line and "FILL txn" in line for line in lines)
    status, text, _ = call("disasm", trace, "--levels")
    assert status == 0 and len(text.splitlines()) == 1 + flits + events + levels
    assert any("agent.credit" in line and line.endswith("= 32") for line in text.splitlines())
    (tmp_path / "cut.flits").write_bytes(trace.read_bytes()[:-9])
    status, _, err = call("disasm", tmp_path / "cut.flits")
    assert status == 2 and "cut.flits: byte" in err


@pytest.mark.parametrize(
    "body, reason",
    [
        ("y <<= L.exp(x)", "write exp2(v * log2(e))"),
        ("y <<= L.sqrt(x)", "write recip(rsqrt(v))"),
        ("y <<= x + missing", "NameError: name 'missing'"),
        ("y <<= x ** 0.5", "v ** 0.5: a power is a number from 1 to 4, multiplied out"),
        ("y <<= x // 2", "a value has no //: the machine does not round to whole numbers"),
        ("y <<= L.relu(x) if x > 3 else x", "write where(less(a, b), t, f)"),
        ("y <<= L.relu(x) if x == 0 else x", "it cannot be compared there"),
    ],
)
def test_a_mistake_in_a_kernel_is_refused_with_its_line(call, tmp_path, body, reason):
    source = f"from kohakutpu import lang as L\nfrom kohakutpu.lang import kernel\n\n@kernel\ndef k(x=L.In(...), y=L.Out(...)):\n    {body}\n"
    (tmp_path / "k.py").write_text(source)
    status, _, err = call("compile", f"{tmp_path}/k.py:k", "--shape", "x=16")
    assert status == 2 and reason in err and "k.py:6" in err and body in err and "Traceback" not in err


def test_a_fault_that_does_not_show_is_said(call):
    status, out, _ = call("run", SILU, *EXAMPLE, "--fault", "cluster-pacing")
    assert status == 0 and "cluster-pacing: injected, and this kernel does not show it" in out


def test_runs_without_skipping_take_the_same_cycles(call, tmp_path):
    cycles = []
    for extra in ([], ["--no-skip"]):
        report = tmp_path / f"{len(extra)}.json"
        assert call("run", SILU, *EXAMPLE, "--report", report, *extra)[0] == 0
        cycles.append(json.loads(report.read_text()))
    visited = [record.pop("block_steps") for record in cycles]
    assert cycles[0] == cycles[1] and visited[1] > 2 * visited[0]


def test_run_ends_with_1_on_a_difference_and_writes_what_the_machine_made(call, tmp_path):
    made, meant, report = tmp_path / "y.npy", tmp_path / "z.npy", tmp_path / "r.json"
    status, out, _ = call("run", SILU, *EXAMPLE, "--fault", "vector-alu-sign", "--out", f"y={made}", "--report", report)
    assert status == 1 and "NOT byte-equal" in out and json.loads(report.read_text())["byte_equal"] is False
    call("run", SILU, "--engine", "reference", *EXAMPLE, "--out", f"y={meant}")
    assert (np.load(made).view(np.uint16) != np.load(meant).view(np.uint16)).any()


@pytest.mark.parametrize("wrong", [0, 1])
def test_sim_remembers_a_wrong_run_whichever_it_is(call, monkeypatch, wrong):
    from kohakutpu.cli import sim

    calls = []

    def spoilt(artifact, expected, found):
        calls.append(artifact)
        if len(calls) - 1 == wrong:
            found = {name: value ^ 1 for name, value in found.items()}
        return compare(artifact, expected, found)

    compare = sim.compare
    monkeypatch.setattr(sim, "compare", spoilt)
    assert call("sim")[0] == 1 and len(calls) == 2


@pytest.mark.parametrize("where", ["body", "file"])
def test_a_kernel_that_ends_the_process_is_no_success(call, tmp_path, where):
    stop = "raise SystemExit(0)"
    body, top = (stop, "") if where == "body" else ("y <<= x", stop)
    text = f"from kohakutpu import lang as L\nfrom kohakutpu.lang import kernel\n{top}\n@kernel\ndef k(x=L.In(...), y=L.Out(...)):\n    {body}\n"
    (tmp_path / "k.py").write_text(text)
    status, _, err = call("run", f"{tmp_path}/k.py:k", "--random", "1", "--shape", "x=16")
    assert status == 2 and "ended the process" in err


def test_outputs_are_plain_files_of_their_own(call, tmp_path):
    (tmp_path / "real").write_text("kept")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    status, _, err = call("run", SILU, *EXAMPLE, "--out", f"y={tmp_path}/link")
    assert (
        status == 2
        and "no plain file" in err
        and (tmp_path / "real").read_text() == "kept"
        and (tmp_path / "link").is_symlink()
    )
    status, _, err = call("run", SILU, *EXAMPLE, "--out", "y=/dev/null")
    assert status == 2 and "no plain file" in err
    status, _, err = call("run", SILU, *EXAMPLE, "--out", f"y={tmp_path}/a", "--report", f"{tmp_path}/a")
    assert status == 2 and "two outputs" in err


@pytest.mark.parametrize(
    "header",
    [
        b"{'descr': '<f2', 'fortran_order': False, 'shape': (32,",
        b"{'descr': '<f2', 'fortran_order': False, 'shape': (1000000, 1000000), }",
    ],
)
def test_a_damaged_array_file_is_refused(call, tmp_path, header):
    body = header + b" " * (118 - len(header)) + b"\n"
    (tmp_path / "x.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(body).to_bytes(2, "little") + body)
    status, _, err = call("run", SILU, "--in", f"x={tmp_path}/x.npy", "--in", f"w={tmp_path}/x.npy")
    assert status == 2 and "not a .npy array" in err and "Traceback" not in err


@pytest.mark.parametrize(
    "argv, reason",
    [
        (["run", SILU], "no value for x, w"),
        (["run", SILU, "--random", "1", "--shape", "x=32x64"], "no shape for w"),
        (["run", SILU, "--in", "x=absent.npy", "--in", "w=absent.npy"], "absent.npy"),
        (["run", SILU, *EXAMPLE, "--in", "v=v.npy"], "no operand v"),
        (["run", SILU, *EXAMPLE, "--out", "z=z.npy"], "no output z"),
        (["run", SILU, *EXAMPLE, "--random", "1"], "does not go with --in"),
        (["run", SILU, *EXAMPLE, "--engine", "reference", "--fault", "x"], "does not go with"),
        (
            ["run", SILU, *EXAMPLE, "--fault", "cluster0=x"],
            "cluster0=x: PLACE=NAME plants a fault in the gates, and goes with --engine rtl",
        ),
        (["run", SILU, *EXAMPLE, "--timeout", "0"], "at least one cycle"),
        (["run", SILU, "--random", "-1", *SHAPES], "not negative"),
        (["run", SILU, "--random", "1", "--shape", "x=99999999x99999999", "--shape", "w=1x99999999"], "more than"),
        (["compile", SILU, "--shape", "x=99999999999999999999999x64", "--shape", "w=32x64"], "an extent is at most"),
        (["run", SILU, *EXAMPLE, "--report", "/no/such/r.json"], "there is no directory /no/such"),
        (["run", SILU, *EXAMPLE, "--out", "y=/tmp"], "is a directory"),
        (["compile", SILU, *SHAPES, "--knob", "part=0"], "knob part: expected an integer of at least 1"),
        (["compile", SILU, *SHAPES, "--machine", "2x1_6+0"], "has no vector core"),
        (["compile", SILU, "--shape", "x=32by64"], "expected positive extents"),
        (["compile", SILU, "--shape", "x"], "expected name=32x64"),
        (["compile", SILU, *SHAPES, "--knob", "gmm=8"], "no knob 'gmm'"),
        (["compile", SILU, *SHAPES, "--knob", "gm=eight"], "gm"),
        (["compile", SILU, *SHAPES, "--machine", "mm_mish"], "mm_mesh"),
        (["compile", "kohakutpu.kernels.linear:linear_sulu", *SHAPES], "linear_silu"),
        (["compile", "no/such/file.py:f", *SHAPES], "no file"),
        (["machine", "check", "absent"], "absent"),
        (["machine", "show"], "needs a machine"),
        (["disasm", "/dev/null"], "no flit"),
        (["asm", "/dev/null"], "no instruction"),
        (["golden", "/dev"], "holds no golden file"),
        (["golden", "/absent"], "not a directory"),
    ],
)
def test_bad_input_is_refused_by_name(call, argv, reason):
    status, out, err = call(*argv)
    assert status == 2, (out, err)
    assert reason in err
    assert "Traceback" not in err


def test_a_refused_run_leaves_no_output(call, tmp_path):
    y = tmp_path / "y.npy"
    status, _, _ = call("run", SILU, *EXAMPLE, "--out", f"y={y}", "--fault", "vector-lost-ack", "--timeout", 2000)
    assert status == 4 and list(tmp_path.iterdir()) == []


def test_disasm_names_the_bad_line(call, tmp_path):
    (tmp_path / "x.hex").write_text(
        "# listing\n1000008000008200000128000000206000010000000000000000000000000000\nxyz\n"
    )
    status, _, err = call("disasm", tmp_path / "x.hex")
    assert status == 2 and "x.hex:3" in err and "xyz" in err


def test_machine_commands(call):
    assert call("machine", "picture", "quad")[1].splitlines()[1].split() == ["mag", "mat", "mat", "vec"]
    assert json.loads(call("machine", "show", "mm_mesh", "--json")[1])["name"] == "mm_mesh"
    assert "ok" in call("machine", "check", "ship_3x2")[1]


def test_a_map_becomes_a_description_and_back(call, tmp_path):
    drawn = call("machine", "picture", "quad")[1]
    (tmp_path / "mine.map").write_text(drawn)
    status, text, _ = call("machine", "yaml", tmp_path / "mine.map")
    assert status == 0
    (tmp_path / "mine.yaml").write_text(text)
    assert call("machine", "picture", tmp_path / "mine.yaml")[1] == drawn


def test_errata_lists_who_is_affected(call):
    _, out, _ = call("errata", "--json")
    entries = {entry["id"]: entry for entry in json.loads(out)}
    assert entries["exp2-wrap"]["reproducible"] and entries["exp2-wrap"]["affected"]


def test_golden_of_one_file_and_a_spoilt_one(call, tmp_path, golden):
    source = golden / "mx_quant.npz"
    status, out, _ = call("golden", golden, "--only", "mx_quant.npz")
    assert status == 0 and " 0 different" in out
    data = dict(np.load(source))
    data["words_A"] = data["words_A"].copy()
    data["words_A"][0, 0, 0] ^= 1
    np.savez_compressed(tmp_path / "mx_quant.npz", **data)
    status, out, _ = call("golden", tmp_path)
    assert status == 1 and " 1 different" in out


@pytest.mark.parametrize("engine", ["model", "reference"])
def test_run_is_never_silent_about_what_saturates(call, tmp_path, engine):
    """Without --precision too, and in the report."""
    np.save(tmp_path / "x.npy", np.array([[1, 2], [3, 2000]], np.float16))
    report = tmp_path / "r.json"
    words = ("kohakutpu.kernels.elementwise:scale", "--in", f"x={tmp_path}/x.npy", "--engine", engine)
    status, out, _ = call("run", *words, "--knob", "s=64", "--report", report)
    line = "1 element saturated at 65504, the first at y[1, 1]: kohakutpu/kernels/elementwise.py:"
    assert status == 0 and line in out and "p50" not in out
    record = json.loads(report.read_text())
    assert record["saturated"][0].startswith(line) and "precision" not in record
    status, out, _ = call("run", *words, "--knob", "s=2")
    assert status == 0 and "saturated" not in out


def test_run_says_what_the_formats_cost(call, tmp_path):
    report = tmp_path / "r.json"
    status, out, _ = call("run", SILU, "--engine", "reference", *EXAMPLE, "--precision", "--report", str(report))
    assert status == 0 and "no element saturated" in out
    (row,) = json.loads(report.read_text())["precision"]
    assert row["output"] == "y" and 0 < row["p50"] < row["p90"] < row["p99"] <= row["greatest"]
    assert f"p50 {row['p50']:.2e}" in out and f"{row['above']:.2%} above 10 %" in out


def test_plan_names_the_models_of_a_file_and_finds_modules_beside_it(call, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "sizes_beside_it.py").write_text("ROWS = 64\n")
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n"
        "from sizes_beside_it import ROWS\n"
        "from kohakutpu.kernels import matmul\n"
        "from kohakutpu.session import call\n"
        "def net(session):\n"
        "    w = session.pin('w', np.ones((ROWS, 32), np.float16))\n"
        "    return lambda x: call(matmul, a=x, b=w, gm=4, gn=8, nk=1)\n"
    )
    status, out, err = call("plan", f"{tmp_path}/mine.py:net", "--machine", "quad", "--shape", "x=16x32")
    assert status == 0 and "matmul(a=x, b=w) -> matmul_0" in out and not err
    sys.modules.pop("sizes_beside_it")
    status, out, err = call("plan", f"{tmp_path}/mine.py:nat", "--machine", "quad", "--shape", "x=16x32")
    sys.modules.pop("sizes_beside_it")
    assert status == 2 and not out and err.endswith("mine.py has no nat; its models are net\n")
    for name, said in (("depth", "depth is an int"), ("nothing", "nothing is None"), ("np", "np is a module")):
        (tmp_path / "other.py").write_text("import numpy as np\ndepth, nothing = 3, None\n")
        assert call("plan", f"{tmp_path}/other.py:{name}") == (
            2, "", f"kohakutpu plan: {tmp_path}/other.py:{name}: {said}, not a model\n",
        )  # fmt: skip


def test_an_error_of_pythons_in_a_model_is_refused_with_its_line(call, tmp_path):
    """In the function that pins, and in the model function that it returns."""
    (tmp_path / "broken.py").write_text(
        "from kohakutpu.kernels.elementwise import gelu\n"
        "from kohakutpu.session import call\n"
        "def added(session):\n"
        "    return lambda x: call(gelu, x=x) + x\n"
        "def divided(session):\n"
        "    return 1 / 0\n"
    )
    for name, said in (
        ("added", "4: TypeError: unsupported operand type(s) for +: 'Tensor' and 'Tensor'\n    return lambda"),
        ("divided", "6: ZeroDivisionError: division by zero\n    return 1 / 0"),
    ):
        status, out, err = call("plan", f"{tmp_path}/broken.py:{name}", "--machine", "quad", "--shape", "x=2x32")
        assert status == 2 and not out and err.startswith(f"kohakutpu plan: {tmp_path}/broken.py:{said}"), err


def test_commands_of_tiles_say_what_an_xpu_kernel_is(call):
    saxpy = f"{ROOT}/examples/saxpy_xpu.py:saxpy"
    for words, expected in ((["run", saxpy, "--random", "1"], "kernel of tiles"), (["plan", saxpy], "model")):
        status, out, err = call(*words)
        assert (status, out, err) == (
            2, "", f"kohakutpu {words[0]}: {saxpy}: saxpy is an XPU kernel, not a {expected}\n",
        )  # fmt: skip


def test_the_readme_quotes_the_line_that_a_fault_names():
    found = re.search(r"(kohakutpu/kernels/\w+\.py):(\d+): (.+) \(instance", (ROOT / "README.md").read_text())
    assert (ROOT / found[1]).read_text().splitlines()[int(found[2]) - 1].strip() == found[3]
