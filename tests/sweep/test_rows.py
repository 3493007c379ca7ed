"""One point's row, the journal that keeps rows, and the tables made of them; no scheduler."""

import io
import json
import os
from dataclasses import replace

import pyarrow.parquet
import pytest

from kohakutpu.cli import sweep as command
from kohakutpu.cli.main import main
from kohakutpu.sweep import cluster, point, tables
from kohakutpu.sweep.journal import FILE, Journal, JournalError
from kohakutpu.sweep.point import INCIDENTAL, code_digest
from kohakutpu.sweep.spec import read

TEXT = """
name: rows
kernel: kohakutpu.kernels:linear_silu
machines: [mm_mesh]
extents: {M: [16], K: [32], N: [32]}
knobs: {gm: [4], nk: [1]}
"""


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(TEXT)
    return path


def points_of(spec, *lines):
    spec.write_text(TEXT + "".join(f"{line}\n" for line in lines))
    return read(spec, code=code_digest).points


# ---- a row -----------------------------------------------------------------------------------------


def test_a_right_row(spec):
    (only,) = points_of(spec)
    first, again = command.task(only), command.task(only)
    assert first["verdict"] == "byte-equal" and first["error"] is None and first["elements_different"] == 0
    assert first["digest"] == first["expected_digest"] and first["result_bytes"] == 2 * 16 * 32
    assert (
        first["cycles"] > 100
        and first["dram_written_bytes"] == 1024
        and first["shape_x"] == "16x32"
        and first["knob_gm"] == 4
    )
    assert {**first, **dict.fromkeys(INCIDENTAL)} == {**again, **dict.fromkeys(INCIDENTAL)}


@pytest.mark.parametrize(
    "line, verdict, error, reason",
    [
        ("faults: [vector-alu-sign]", "wrong", None, "y differs at byte 0x"),
        ("faults: [vector-lost-ack]\ntimeout: 3000", "no answer", "NoAnswer", "after 3,000 cycles"),
        ("timeout: 1", "no answer", "NoAnswer", "after 1 cycles"),
    ],
)
def test_what_goes_wrong_is_a_verdict(spec, line, verdict, error, reason):
    (only,) = points_of(spec, line)
    row = command.task(only)
    assert (row["verdict"], row["error"]) == (verdict, error) and reason in row["message"]


def test_a_refusal_is_a_verdict_with_a_name(spec):
    (only,) = points_of(spec)
    row = command.task(replace(only, shapes=(("x", (64, 32)), ("w", (32, 32)))))
    assert (row["verdict"], row["error"]) == ("refused", "CannotFuse") and row["cycles"] is None
    assert row["message"].startswith("kohakutpu/kernels/linear.py:")


def test_tiles_that_the_compiler_chose_are_in_the_row(spec):
    (only,) = points_of(spec, "preq: [w]")
    row = command.task(replace(only, knobs=(("gm", "auto"), ("gn", 8), ("nk", "auto"))))
    assert (
        row["verdict"] == "byte-equal"
        and row["chosen"].startswith("gm=")
        and "gn" not in row["chosen"]
        and "nk=" in row["chosen"]
    )
    assert row["artifact"] != command.task(replace(only, preq=()))["artifact"]


def test_a_worker_with_another_program_computes_nothing(spec):
    row = command.task(replace(points_of(spec)[0], code="older"))
    assert (row["verdict"], row["error"]) == ("no transport", "OtherCode") and "install the same version" in row[
        "message"
    ]


def test_models_and_gates_of_one_sweep_have_a_program_each(spec):
    """A worker finds both right; what the gates are made of is no part of a row of the models."""
    model, rtl = points_of(spec, "engines: [model, rtl]")
    assert (model.code, rtl.code) == (code_digest(False), code_digest(True)) and model.code != rtl.code
    row = point.measure(rtl, {"rtl": command.on_models}, lambda error: None)
    assert row["verdict"] == "byte-equal" and command.task(model)["verdict"] == "byte-equal"


def test_the_trouble_of_a_worker_is_no_verdict_on_the_point(spec):
    def broken(*_):
        raise OSError(28, "No space left on device")

    row = point.measure(points_of(spec)[0], {"model": broken}, lambda error: 2)
    assert (row["verdict"], row["error"]) == ("failed", "OSError") and row["verdict"] in point.AGAIN


def test_a_kernel_comes_with_its_text(spec, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from kohakutpu import lang as L\nfrom kohakutpu.lang import kernel\n\n@kernel\ndef twice(a=L.In(...), "
        "b=L.Out(...)):\n    b <<= a * 2.0\n"
    )
    spec.write_text("name: mine\nkernel: mine.py:twice\nmachines: [mm_mesh]\nshapes: [{a: [64]}]\n")
    (only,) = read(spec, code=code_digest).points
    file.unlink()
    row = command.task(only)
    assert row["verdict"] == "byte-equal", row["message"]
    text = command.task(replace(only, kernel_text=only.kernel_text.replace("a * 2.0", "a * q")))
    assert text["error"] == "KernelError" and text["message"].startswith("mine.py:6: ")


# ---- the journal -----------------------------------------------------------------------------------

KEYS = ["a", "b", "c"]


def row(key, verdict="byte-equal"):
    return {"key": key, "verdict": verdict}


def opened(folder, *, resume=True, code="1", keys=KEYS):
    return Journal(folder, name="rows", code=code, keys=keys, resume=resume)


def test_rows_are_kept(tmp_path):
    with opened(tmp_path, resume=False) as journal:
        journal.add(row("a"))
        # on the disk at once, whatever becomes of this process
        assert json.loads((tmp_path / FILE).read_text().splitlines()[1]) == row("a")
    with opened(tmp_path) as journal:
        assert list(journal.rows) == ["a"] and journal.cut == 0
        journal.add(row("c"))
    with opened(tmp_path) as journal:
        assert list(journal.rows) == ["a", "c"]


@pytest.mark.parametrize("kept", [0, 10, "a", "b"])
def test_a_line_cut_short_is_cut_off(tmp_path, kept):
    """Killed while it wrote the header, a row, or the newline of a row."""
    with opened(tmp_path) as journal:
        journal.add(row("a"))
        journal.add(row("b"))
    data = (tmp_path / FILE).read_bytes()
    length = {"a": data.index(b'"b"'), "b": len(data) - 1}.get(kept, kept)
    os.truncate(tmp_path / FILE, length)
    with opened(tmp_path) as journal:
        assert list(journal.rows) == ([] if isinstance(kept, int) else ["a"])
        assert bool(journal.cut) == (kept != 0)
        for key in KEYS:
            if key not in journal.rows:
                journal.add(row(key))
    with opened(tmp_path) as journal:
        assert sorted(journal.rows) == KEYS and journal.cut == 0


def test_a_row_twice_and_a_strange_row_are_refused(tmp_path):
    with opened(tmp_path) as journal:
        journal.add(row("a"))
        with pytest.raises(JournalError, match="point a, which has one"):
            journal.add(row("a"))
        with pytest.raises(JournalError, match="point z, which is not in the sweep"):
            journal.add(row("z"))


def test_rows_of_a_workers_own_trouble_run_again(tmp_path):
    with opened(tmp_path) as journal:
        journal.add(row("a", "failed"))
        journal.add(row("b", "wrong"))
    with opened(tmp_path) as journal:
        assert list(journal.rows) == ["b"] and journal.again == 1
        journal.add(row("a"))
    with opened(tmp_path) as journal:
        assert journal.rows == {"a": row("a"), "b": row("b", "wrong")}


@pytest.mark.parametrize(
    "line, reason",
    [
        ('{"key": "a", "verdict": "byte-equal"}', r":3: point a has a row already"),
        ('{"key": "z", "verdict": "byte-equal"}', r":3: point z is not in this sweep"),
        ('{"key": "b"}', ":3: no row of a sweep"),
        ("][", ":3: no row of a sweep"),
        ("17", ":3: no row of a sweep"),
        ("[" * 100_000, ":3: no row of a sweep"),
        ('{"key": [], "verdict": "byte-equal"}', ":3: no row of a sweep"),
        ('{"key": "b", "verdict": {}}', ":3: no row of a sweep"),
    ],
)
def test_a_damaged_journal_is_refused_by_line(tmp_path, line, reason):
    with opened(tmp_path) as journal:
        journal.add(row("a"))
    with open(tmp_path / FILE, "a") as file:
        file.write(line + "\n")
    before = (tmp_path / FILE).read_bytes()
    with pytest.raises(JournalError, match=reason):
        opened(tmp_path)
    assert (tmp_path / FILE).read_bytes() == before


def test_rows_are_not_mixed(tmp_path):
    opened(tmp_path).__exit__()
    with pytest.raises(JournalError, match="--resume goes on with them"):
        opened(tmp_path, resume=False)
    with pytest.raises(JournalError, match="rows come from program 1, and this is 2"):
        opened(tmp_path, code="2")
    (tmp_path / FILE).write_text("key,verdict\n")
    with pytest.raises(JournalError, match=":1: no journal"):
        opened(tmp_path)


def test_two_sweeps_do_not_write_to_one_folder(tmp_path):
    with opened(tmp_path), pytest.raises(JournalError, match="another sweep is writing here"):
        opened(tmp_path)
    opened(tmp_path).__exit__()


# ---- tables ----------------------------------------------------------------------------------------


def test_tables_hold_every_row(spec):
    points = points_of(spec, "seeds: [0, 1]")
    rows = [command.task(each) for each in points]
    rows.append({**rows[0], "key": "x", "knob_gm": "auto", "verdict": "refused", "cycles": None})
    made = tables.files("rows", rows)
    assert set(made) == {"rows.parquet", "rows.csv", "cycles.png", "bytes.png"}
    table = pyarrow.parquet.read_table(io.BytesIO(made["rows.parquet"])).to_pylist()
    assert [line["key"] for line in table] == [line["key"] for line in rows]
    assert [line["knob_gm"] for line in table] == ["4", "4", "auto"] and table[2]["cycles"] is None
    assert [line["cycles"] for line in table[:2]] == [line["cycles"] for line in rows[:2]]
    assert made["rows.csv"].decode().splitlines()[0].startswith('"key","kernel","machine","engine","seed","shape_x"')
    assert tables.files("rows", rows) == made


def test_lines_of_a_plot_are_right_rows_apart_by_what_varies():
    common = {"machine": "m", "engine": "model", "verdict": "byte-equal", "shape_x": "4x8"}
    rows = [
        {**common, "knob_g": 1, "cycles": 5}, {**common, "knob_g": 2, "cycles": 7},
        {**common, "knob_g": 2, "cycles": 9},
    ]  # fmt: skip
    rows.append({**common, "knob_g": 3, "cycles": 1, "verdict": "wrong"})
    assert tables.series(rows, "cycles") == {"g 1": {32: [5]}, "g 2": {32: [7, 9]}}


# ---- the command -----------------------------------------------------------------------------------


def without_a_cluster(monkeypatch, lost=()):
    """The command's points run here, one after the other; those of seeds in `lost` have no row."""

    class Here:
        def __init__(self, *_):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    def rows(_, points, task):
        for each in points:
            yield (each, None, "KilledWorker: gone") if each.seed in lost else (each, task(each), "")

    monkeypatch.setattr(cluster, "connected", Here)
    monkeypatch.setattr(cluster, "rows", rows)


@pytest.mark.parametrize(
    "lines, status, said",
    [
        ("seeds: [0, 1]", 0, "2 byte-equal"),
        ("faults: [vector-alu-sign]", 1, "1 wrong"),
        ("timeout: 1", 4, "1 no answer: 1 NoAnswer"),
        ("lowering: published\nseeds: [0]", 0, "1 byte-equal"),
    ],
)
def test_the_exit_status_is_the_worst_verdict(spec, tmp_path, monkeypatch, capsys, lines, status, said):
    without_a_cluster(monkeypatch)
    spec.write_text(TEXT + lines + "\n")
    assert main(["sweep", str(spec), "-o", str(tmp_path / "out")]) == status
    assert said in capsys.readouterr().out and (tmp_path / "out" / "rows.parquet").exists()


def test_nothing_but_refusals_is_refused(spec, tmp_path, monkeypatch, capsys):
    without_a_cluster(monkeypatch)
    spec.write_text(TEXT.replace("M: [16]", "M: [64]"))
    assert main(["sweep", str(spec), "-o", str(tmp_path / "out")]) == 2
    assert "1 refused: 1 CannotFuse" in capsys.readouterr().out


def test_points_without_a_row_are_named_and_run_again(spec, tmp_path, monkeypatch, capsys):
    spec.write_text(TEXT + "seeds: [0, 1]\n")
    without_a_cluster(monkeypatch, lost={1})
    assert main(["sweep", str(spec)]) == 4
    out, err = capsys.readouterr()
    assert "1 of 2 rows in" in out and "seed 1 on mm_mesh, model: KilledWorker: gone" in err
    without_a_cluster(monkeypatch)
    assert main(["sweep", str(spec)]) == 2 and "--resume goes on" in capsys.readouterr().err
    assert main(["sweep", str(spec), "--resume"]) == 0
    assert "1 row kept" in (said := capsys.readouterr().out) and "2 of 2 rows" in said


@pytest.mark.parametrize(
    "options, status, reason",
    [
        (["--workers", "0"], 2, "at least one"),
        (["--scheduler", "elsewhere"], 2, "local or tcp://host:port"),
        (["--scheduler", "tcp://127.0.0.1:1x"], 2, "local or tcp://host:port"),
        (["--scheduler", "tcp://127.0.0.1"], 2, "local or tcp://host:port"),
        (["--scheduler", "tcp://127.0.0.1:70000"], 2, "local or tcp://host:port"),
        (["--scheduler", "tcp://127.0.0.1:9", "--workers", "3"], 2, "has its own"),
        (["--scheduler", "tcp://127.0.0.1:9"], 3, "no answer"),
        (["-o", "SPEC"], 2, "it is no directory"),
    ],
)
def test_what_the_command_refuses(spec, monkeypatch, capsys, options, status, reason):
    monkeypatch.setattr(cluster, "ANSWER_S", 0.5)
    assert main(["sweep", str(spec), *(str(spec) if item == "SPEC" else item for item in options)]) == status
    assert reason in capsys.readouterr().err
    assert spec.with_suffix("").exists() == (status == 3)


def test_without_dask_the_way_to_get_it_is_named(spec, monkeypatch, capsys):
    monkeypatch.setitem(__import__("sys").modules, "distributed", None)
    assert main(["sweep", str(spec)]) == 3
    assert "pip install -e '.[sweep]'" in capsys.readouterr().err
