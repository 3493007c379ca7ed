"""The page in a real browser: what it shows against the trace and the machine, and that it asks nobody for anything."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kohakutpu.cli.main import main
from kohakutpu.isa.flit import type_name, xy
from kohakutpu.kernels.linear import matmul
from kohakutpu.noc.trace import Trace, Transfer
from kohakutpu.view import ViewError, html
from kohakutpu.view.browser import Browser, find_browser
from kohakutpu.view.html import bins_for, page
from kohakutpu.view.measure import measure
from kohakutpu.view.survey import Survey

from .conftest import measured, traced

ROOT = Path(__file__).resolve().parents[2]
needs_browser = pytest.mark.skipif(find_browser() is None, reason="no Chromium: apt-get install chromium")


@pytest.fixture(scope="module")
def browser():
    with Browser(1280, 900) as browser:
        yield browser


def show(browser, folder, runs, **titles):
    """Open the page of some runs."""
    surveys = [Survey(Trace(run.path)) for run in runs]
    names = list(titles.values()) or [run.path.stem for run in runs]
    traces = [measure(s, title=name, most_bins=bins_for(s, len(runs))) for s, name in zip(surveys, names, strict=True)]
    path = folder / "page.html"
    path.write_text(page(traces))
    browser.complaints.clear()
    browser.requests.clear()
    browser.open(path)
    return traces


def flits_on(run, link):
    trace = Trace(run.path)
    index = trace.links.index(link)
    return [record for record in trace if type(record) is Transfer and record.link == index]


def listed(browser):
    """The cells of the inspector's rows."""
    return browser.run(
        "[...document.querySelectorAll('#inspector tbody tr')].map(r => [...r.cells].map(c => c.textContent))"
    )


# ---- in the browser -------------------------------------------------------------------------------------


@needs_browser
def test_it_loads_without_a_complaint_and_asks_nobody(browser, tmp_path, any_run):
    show(browser, tmp_path, [any_run])
    assert browser.complaints == []
    assert browser.requests == [(tmp_path / "page.html").as_uri()]


@needs_browser
def test_a_complaint_would_be_seen(browser, tmp_path):
    (tmp_path / "bad.html").write_text(
        "<script>console.error('spoken'); fetch('http://127.0.0.1:9/x').catch(() => 0); missing();</script>"
    )
    browser.complaints.clear()
    browser.open(tmp_path / "bad.html")
    browser.run("new Promise(done => setTimeout(done, 200))")
    assert any("spoken" in text for text in browser.complaints)
    assert any("missing is not defined" in text for text in browser.complaints)
    assert any("127.0.0.1:9" in url for url in browser.requests)
    browser.complaints.clear()


@needs_browser
def test_the_mesh_is_the_machines(browser, tmp_path, any_run):
    show(browser, tmp_path, [any_run])
    shown = browser.run(
        "[...document.querySelectorAll('.unit')].map(u => [u.dataset.unit, +u.dataset.x, +u.dataset.y])"
    )
    machine = any_run.machine
    expected = [
        [f"{name}{index}", site.x, site.y]
        for name, sites in (("mag", machine.ports), ("cluster", machine.clusters), ("vector", machine.vectors))
        for index, site in enumerate(sites)
    ]
    if machine.agent.own_endpoint:
        expected.append(["agent", *machine.agent.xy])
    assert sorted(shown) == sorted(expected)
    assert browser.run("document.querySelectorAll('.router').length") == machine.nx * machine.ny
    links = set(browser.run("[...document.querySelectorAll('.wire')].map(w => w.dataset.link)"))
    routers = 2 * ((machine.nx - 1) * machine.ny + machine.nx * (machine.ny - 1))
    assert len(links) == routers + 2 * len(expected)
    assert {record_link for record_link in used_links(any_run)} <= links


LABELS = """(() => {
  const bounds = (item, more) => {
    const { left, right, top, bottom } = item.getBoundingClientRect();
    return { left: left - more, right: right + more, top: top - more, bottom: bottom + more };
  };
  const all = (what) => [...document.querySelectorAll(what)];
  const upright = (line, axis) => line.getAttribute(axis + 1) === line.getAttribute(axis + 2);
  const straight = all(".wire .stroke").filter((line) => upright(line, "x") || upright(line, "y"));
  const labels = all(".wire .use");
  for (const label of labels) label.textContent = "100%";
  const texts = labels.map((l) => [`label of ${l.parentNode.dataset.link}`, bounds(l, 0)]);
  const others = [
    ...all(".unit > rect").map((b) => [b.parentNode.dataset.unit, bounds(b, 0)]),
    ...all(".router > rect").map((b) => ["router " + b.parentNode.textContent, bounds(b, 0)]),
    ...straight.map((l) => ["link " + l.parentNode.dataset.link, bounds(l, 2)]),
    ...texts,
  ];
  const meet = (a, b) =>
    Math.min(a.right, b.right) - Math.max(a.left, b.left) > 0.5 &&
    Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 0.5;
  return [
    labels.length, straight.length, others.length - texts.length,
    texts.flatMap(([name, a]) => others.filter(([n, b]) => n !== name && meet(a, b)).map(([n]) => `${name} on ${n}`)),
  ];
})()"""


@needs_browser
@pytest.mark.parametrize("machine", ["mm_mesh", "quad", "ship_3x2", "uneven"])
def test_no_label_lies_on_anything_else(browser, tmp_path, machine):
    """Were every link in use in every cycle; diagonal links aside."""
    operands = {name: np.ones((32, 32), np.float16) for name in "ab"}
    run = traced(tmp_path / "run.trace", machine, matmul, operands, {"gm": 4, "gn": 4})
    show(browser, tmp_path, [run])
    labels, straight, others, wrong = browser.run(LABELS)
    boxes = browser.run("document.querySelectorAll('.unit, .router').length")
    assert not wrong and others == straight + boxes and labels > straight >= boxes > 5


def used_links(run):
    trace = Trace(run.path)
    return {trace.links[record.link] for record in trace if type(record) is Transfer}


@needs_browser
@pytest.mark.parametrize("link", ["r11.north", "mag0.out", "cluster0.out"])
def test_a_click_on_a_link_lists_its_flits(browser, tmp_path, fused, link):
    show(browser, tmp_path, [fused])
    browser.click(f"[data-link='{link}'] .hit")
    expected = [
        [
            f"{record.cycle:,}", type_name(record.flit.type), "({},{})".format(*xy(record.flit.src)),
            "({},{})".format(*xy(record.flit.dst)), str(record.flit.txn), "last" if record.flit.last else "",
        ]
        for record in flits_on(fused, link)
    ]  # fmt: skip
    rows = listed(browser)
    assert [row[:6] for row in rows] == expected and len(rows) > 50
    assert all(row[6] for row in rows if row[1] != "MEM_WR_ACK")
    assert browser.complaints == []


@needs_browser
def test_payloads_are_decoded_in_order(browser, tmp_path, fused):
    """Of a burst only the descriptor reads as one, and the word after a VSETI is an immediate."""
    show(browser, tmp_path, [fused])
    browser.click("[data-link='cluster0.out'] .hit")
    data = [row[6] for row in listed(browser) if row[1] == "CU_DATA"]
    assert len(data) == 72 and [text.startswith("0x") for text in data] == [at % 9 != 0 for at in range(72)]
    browser.click("[data-link='agent.out'] .hit")
    texts = [row[6] for row in listed(browser)]
    assert any(text.startswith("GEMM gm=8 gn=8 nk=2 emit") for text in texts)
    after = [texts[at + 1] for at, text in enumerate(texts) if re.search(r"VSETI [sk]\d+$", text)]
    assert after and all(".imm" in text for text in after)


@needs_browser
def test_a_click_on_a_unit_lists_its_instructions(browser, tmp_path, fused):
    measures = show(browser, tmp_path, [fused])[0]
    browser.click("[data-unit='cluster0'] rect")
    ours = [one for one in measures.survey.instructions if one.unit == "cluster0"]
    rows = [[f"{one.begin:,}", f"{one.end:,}", f"{one.end - one.begin:,}", f"{one.txn:#04x}", one.text] for one in ours]
    assert listed(browser) == rows and len(rows) == 4
    browser.click("[data-unit='mag0'] rect")
    assert "No instruction went to it" in browser.run("document.querySelector('#inspector').textContent")


@needs_browser
def test_the_mesh_by_keyboard(browser, tmp_path, fused):
    show(browser, tmp_path, [fused])
    browser.run("document.querySelector('[data-link=\"r21.west\"]').focus()")
    browser.press("Enter")
    assert len(listed(browser)) == len(flits_on(fused, "r21.west")) > 50


@needs_browser
def test_the_scrubber_changes_the_heat(browser, tmp_path, fused):
    measures = show(browser, tmp_path, [fused])[0]
    heat = "Object.fromEntries([...document.querySelectorAll('.wire')].map(w => [w.dataset.link, +w.dataset.use]))"
    whole = browser.run(heat)
    start, cycles = measures.whole.start, measures.whole.cycles
    for link, share in whole.items():
        assert share == pytest.approx(len(flits_on(fused, link)) / cycles, abs=1e-4)
    colours = {}
    for now in (180, 560, cycles):
        browser.run(
            f"(() => {{ const s = document.querySelector('#scrub'); s.value = {now};"
            " s.dispatchEvent(new Event('input')); })()"
        )
        span = int(browser.run("document.querySelector('#window').value"))
        for link, share in browser.run(heat).items():
            inside = [r for r in flits_on(fused, link) if start + now - span <= r.cycle < start + now]
            assert share == pytest.approx(len(inside) / span, abs=1e-4), (link, now)
        colours[now] = browser.run("document.querySelector('[data-link=\"r11.north\"] .stroke').getAttribute('stroke')")
    assert len(set(colours.values())) > 1


@needs_browser
def test_keys(browser, tmp_path, fused):
    show(browser, tmp_path, [fused])
    browser.press("Home")
    assert browser.run("state.now") == 1
    span = browser.run("state.span")
    browser.press("ArrowRight")
    browser.press("ArrowRight")
    browser.press("ArrowLeft")
    assert browser.run("state.now") == 1 + span / 2
    browser.press("End")
    assert browser.run("state.now === longest")
    browser.press("Home")
    browser.press(" ")
    assert browser.run("new Promise(done => setTimeout(() => done(state.playing && state.now > 1), 400))")
    browser.press(" ")
    assert not browser.run("state.playing")
    before = browser.run("document.documentElement.dataset.theme")
    browser.press("t")
    assert {before, browser.run("document.documentElement.dataset.theme")} == {"light", "dark"}
    assert browser.complaints == []


@needs_browser
def test_zooming_and_seeking_on_the_lanes(browser, tmp_path, fused):
    show(browser, tmp_path, [fused])
    box = browser.run(
        "(() => { const b = document.querySelector('canvas').getBoundingClientRect(); return [b.x, b.y, b.width]; })()"
    )

    def mouse(kind, part):
        x = box[0] + 92 + part * (box[2] - 92)
        browser.call("Input.dispatchMouseEvent", type=kind, x=x, y=box[1] + 30, button="left", clickCount=1)

    browser.run("document.querySelector('canvas').scrollIntoView({block: 'center'})")
    box[1] = browser.run("document.querySelector('canvas').getBoundingClientRect().y")
    for kind, part in (("mousePressed", 0.25), ("mouseMoved", 0.5), ("mouseReleased", 0.5)):
        mouse(kind, part)
    low, high = browser.run("state.view")
    longest = browser.run("longest")
    assert low == pytest.approx(longest / 4, abs=2) and high == pytest.approx(longest / 2, abs=2)
    for kind in ("mousePressed", "mouseReleased"):
        mouse(kind, 0.5)
    assert browser.run("state.now") == pytest.approx(longest * 3 / 8, abs=3)
    assert browser.complaints == []


@needs_browser
def test_the_breakdown_is_the_reports(browser, tmp_path, any_run):
    whole = show(browser, tmp_path, [any_run])[0].whole
    shown = browser.run(
        "[...document.querySelectorAll('#breakdown .stack')].map(s => [s.dataset.lane,"
        " Object.fromEntries([...s.querySelectorAll('i')].map(i => [i.dataset.key, +i.dataset.cycles]))])"
    )
    busy = {
        name
        for name, spent in whole.states.items()
        if re.match("cluster|vector", name) and spent["idle"] < whole.cycles
    }
    assert dict(shown) == {name: whole.states[name] for name in busy}


COLOURS_OF_UNITS = """(() => {
  const shown = (item) => getComputedStyle(item).backgroundColor;
  const legend = Object.fromEntries([...document.querySelectorAll("#legend .key")].map(k => [k.textContent, shown(k.children[0])]));
  const bars = Object.fromEntries([...document.querySelectorAll("#breakdown .stack")].map(
    s => [s.dataset.lane, shown(s.querySelector("[data-key=computing]"))]));
  const canvas = document.querySelector(".lane-block canvas"), pen = canvas.getContext("2d"), drawn = {};
  laneOrder(DATA.traces[0]).forEach((lane, row) => {
    const y = Math.round((STAGE + row * LANE + LANE - 4) * devicePixelRatio);
    const line = pen.getImageData(0, y, canvas.width, 1).data, found = new Set();
    for (let at = 0; at < line.length; at += 4) found.add(`rgb(${line[at]}, ${line[at + 1]}, ${line[at + 2]})`);
    drawn[lane.name] = [...found];
  });
  const probe = document.body.appendChild(document.createElement("i"));
  const gauges = Object.fromEntries([...document.querySelectorAll(".unit")].filter(u => u.querySelector(".gauge")).map(u => {
    probe.style.background = u.querySelector(".gauge").getAttribute("fill");
    return [u.dataset.unit, shown(probe)];
  }));
  probe.remove();
  return [legend, bars, drawn, gauges];
})()"""


@needs_browser
def test_units_have_the_colours_of_the_legend(browser, tmp_path, quad):
    """Bars, timeline and mesh: a cluster that computes is green, a vector core teal, as the legend says."""
    show(browser, tmp_path, [quad])
    legend, bars, drawn, gauges = browser.run(COLOURS_OF_UNITS)
    array, vector = legend["array computes"], legend["vector computes"]
    assert array != vector
    units = {f"{kind}{n}": colour for kind, colour in (("cluster", array), ("vector", vector)) for n in range(4)}
    assert bars == units
    assert {name: gauges[name] for name in units} == units
    for name, colour in units.items():
        assert [each in drawn[name] for each in (array, vector)] == [colour == array, colour == vector], name


@needs_browser
def test_traces_beside_each_other(browser, tmp_path, fused, staged):
    first, other = show(browser, tmp_path, [fused, staged], a="fused", b="staged")
    assert browser.run("document.querySelectorAll('.mesh').length") == 2
    share = 1 - first.whole.cycles / other.whole.cycles
    assert browser.run("document.querySelector('#headline').textContent") == f"{round(100 * share)}% fewer cycles"
    table = browser.run(
        "[...document.querySelectorAll('#spent tbody tr')].map(r => [...r.cells].map(c => c.textContent))"
    )
    numbers = [[int(cell.replace(",", "")) for cell in row[1:]] for row in table]
    assert all(b - a == more for a, b, more in numbers)
    assert [sum(column) for column in zip(*numbers[:-1], strict=True)] == numbers[-1]
    assert numbers[-1] == [first.whole.cycles, other.whole.cycles, other.whole.cycles - first.whole.cycles]
    assert browser.run("document.querySelector('#why').textContent").startswith("staged takes")
    assert browser.complaints == []


@needs_browser
def test_a_roof_for_each_machine_and_a_point_for_each_trace(browser, tmp_path, fused, staged, quad):
    traces = show(browser, tmp_path, [fused, staged, quad])
    assert browser.run("document.querySelectorAll('.roof').length") == 2
    points = browser.run("[...document.querySelectorAll('circle')].map(c => [c.dataset.point, +c.getAttribute('cy')])")
    assert [name for name, _ in points] == [measures.title for measures in traces]
    reached = [measures.whole.operations / measures.whole.cycles for measures in traces]
    assert sorted(range(3), key=lambda at: points[at][1]) == sorted(range(3), key=lambda at: -reached[at])
    assert browser.complaints == []


@needs_browser
def test_a_page_without_a_matrix_product(browser, tmp_path, fused):
    trace = measure(Survey(Trace(fused.path)), window=(1400, 1500), most_bins=64)
    (tmp_path / "page.html").write_text(page([trace]))
    browser.complaints.clear()
    browser.open(tmp_path / "page.html")
    assert "there is no point to draw" in browser.run("document.querySelector('#roofline').textContent")
    assert browser.complaints == []


@needs_browser
@pytest.mark.slow
def test_the_script_of_the_screenshots(tmp_path):
    """PNG of the width that the documents show, and the committed ones exist."""
    folder = ROOT / "docs" / "screenshots"
    subprocess.run([sys.executable, folder / "make.py", tmp_path], check=True)
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert made.keys() == {path.name for path in folder.glob("*.png")}
    for data in made.values():
        assert data[:8] == b"\x89PNG\r\n\x1a\n" and int.from_bytes(data[16:20]) == 1280 and len(data) > 50_000


@needs_browser
def test_it_fits_its_window(browser, tmp_path, quad):
    show(browser, tmp_path, [quad])
    assert browser.run("document.documentElement.scrollWidth") <= 1280


@needs_browser
def test_a_title_is_text(browser, tmp_path, fused):
    show(browser, tmp_path, [fused], a="</script><img src=x onerror=boom()>")
    assert browser.complaints == [] and browser.run("document.querySelectorAll('img').length") == 0
    assert browser.run("document.querySelector('#title').textContent") == "</script><img src=x onerror=boom()>"


@needs_browser
@pytest.mark.parametrize("more", [[], ["--html", "p.html"], ["-o", "look"]], ids=lambda more: " ".join(more) or "alone")
def test_a_picture(tmp_path, monkeypatch, fused, more):
    monkeypatch.chdir(tmp_path)
    assert main(["view", str(fused.path), "--png", "p.png", "--dark", *more]) == 0
    assert (tmp_path / "p.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert {path.name for path in tmp_path.iterdir()} == {"p.png", *more[1:]}


# ---- what is in it --------------------------------------------------------------------------------------


def data_of(text):
    return json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', text, re.S)[1])


def test_what_does_not_fit_is_left_out_and_said(monkeypatch, fused):
    monkeypatch.setattr(html, "MOST_FLITS", 300)
    monkeypatch.setattr(html, "MOST_INSTRUCTIONS", 10)
    data = data_of(page([measured(fused.path)]))
    flits, total = data["traces"][0]["flits"], measured(fused.path).whole.hops
    kept = [row for rows in flits["rows"].values() for row in rows]
    inside = [r for r in Trace(fused.path).window(flits["from"], flits["to"]) if type(r) is Transfer]
    assert 300 <= flits["kept"] == len(kept) == len(inside) < total == flits["total"]
    assert any(f"{len(kept):,} of {total:,}; the others were left out" in note for note in data["notes"])
    assert any("10 of 49 instructions" in note for note in data["notes"])


def test_nothing_is_said_when_all_is_there(fused):
    assert [note for note in data_of(page([measured(fused.path)]))["notes"] if "left out" in note] == []


def test_more_traces_than_fit_are_refused(monkeypatch, fused):
    monkeypatch.setattr(html, "MOST_BYTES", 500_000)
    with pytest.raises(ViewError, match="a page of 2 traces would have"):
        page([measured(fused.path), measured(fused.path)])


def test_a_page_of_a_longer_run_is_small(tmp_path):
    random = np.random.default_rng(3)
    operands = {name: random.normal(0, 0.3, (128, 256)).astype(np.float16) for name in ("a", "b")}
    run = traced(tmp_path / "long.trace", "mm_mesh", matmul, operands, {"gm": 8, "gn": 8, "nk": 2})
    text = page([measured(run.path), measured(run.path, title="again")])
    assert len(text.encode()) < html.MOST_BYTES and "left out" in text


def test_no_browser_is_refused(capsys, monkeypatch, tmp_path, fused):
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert main(["view", str(fused.path), "--html", str(tmp_path / "p.html"), "--png", str(tmp_path / "p.png")]) == 2
    assert "none of chromium, chromium-browser, google-chrome is installed" in capsys.readouterr().err
    assert not (tmp_path / "p.png").exists()
