// What the page does: transport, choice, inspector, keys.
const meshes = DATA.traces.map((trace, index) => drawMesh(trace, index));
const canvases = DATA.traces.map((trace, index) => {
  const canvas = make("canvas", { "data-trace": index });
  watchLanes(trace, canvas, index);
  return canvas;
});

function isChosen(trace, what) {
  const chosen = state.chosen;
  return (
    Boolean(chosen) &&
    DATA.traces[chosen.trace] === trace &&
    Object.entries(what).every(([key, value]) => chosen[key] === value)
  );
}

function choose(what) {
  state.chosen = what;
  redraw();
}

function seek(cycle) {
  state.now = Math.min(longest, Math.max(1, cycle));
  if (!state.span) setSpan(defaultSpan());
  redraw();
}

function zoom(from, to) {
  state.view = to - from < 8 ? [Math.max(0, from - 4), Math.min(longest, from + 4)] : [from, to];
  redraw();
}

// A sixteenth of the run as a power of two, and no less than a bin.
function defaultSpan() {
  const width = Math.max(...DATA.traces.map((trace) => trace.width));
  return Math.max(width, 2 ** Math.max(3, Math.round(Math.log2(longest / 16))));
}

function setSpan(span) {
  state.span = span;
  at("window").value = String(span);
}

function table(heads, rows, now) {
  const body = make(
    "tbody",
    { class: "seek" },
    ...rows.map(({ cells, cycle, lit }) => {
      const row = make(
        "tr",
        lit ? { class: "now" } : {},
        ...cells.map((cell, column) => make("td", { class: heads[column][1] ?? "", title: cell }, cell)),
      );
      row.addEventListener("click", () => seek(cycle + 1));
      return row;
    }),
  );
  const scroll = make(
    "div",
    { class: "scroll" },
    make(
      "table",
      {},
      make("thead", {}, make("tr", {}, ...heads.map(([label, kind]) => make("th", { class: kind ?? "" }, label)))),
      body,
    ),
  );
  requestAnimationFrame(() => {
    const row = body.querySelector("tr.now");
    if (row && now) scroll.scrollTop = row.offsetTop - 60;
  });
  return scroll;
}

const MOST_ROWS = 400; // in the document at once, around the playhead
function around(rows, cycleOf) {
  if (rows.length <= MOST_ROWS) return rows;
  let middle = rows.findIndex((row) => cycleOf(row) >= state.now);
  if (middle < 0) middle = rows.length;
  const from = Math.max(0, Math.min(rows.length - MOST_ROWS, middle - MOST_ROWS / 2));
  return rows.slice(from, from + MOST_ROWS);
}

function inspectLink(trace, number) {
  const wire = trace.wires[number],
    all = trace.flits.rows[number] ?? [],
    [from, to] = heatWindow(trace);
  const rows = around(all, (row) => row[0] - trace.start);
  const kept =
    trace.flits.kept < trace.flits.total
      ? ` The page holds the flits of cycles ${count(trace.flits.from)} to ${count(trace.flits.to)},` +
        ` ${count(trace.flits.kept)} of ${count(trace.flits.total)}.`
      : "";
  const shown = rows.length < all.length ? ` ${count(rows.length)} of them are listed, around the playhead.` : "";
  return [
    make(
      "h2",
      {},
      `${trace.title}: link ${wire.name} `,
      make(
        "small",
        {},
        `${wire.source} → ${wire.sink}. ` +
          `${count(wire.flits)} flits, ${percent(wire.flits / trace.cycles)} of the run.${kept}${shown}`,
      ),
    ),
    table(
      [["cycle", "number"], ["type"], ["from"], ["to"], ["txn"], ["last"], ["payload", "text"]],
      rows.map((row) => {
        const [cycle, kind, source, target, txn, last, text] = row,
          relative = cycle - trace.start;
        return {
          cycle: relative,
          lit: state.span && relative >= from && relative < to,
          cells: [count(cycle), DATA.types[kind], source, target, txn, last ? "last" : "", DATA.texts[text]],
        };
      }),
      state.span,
    ),
  ];
}

function inspectUnit(trace, name) {
  const lane = trace.lanes.find((candidate) => candidate.name === name);
  const all = trace.instructions.rows.filter((row) => row[0] === name),
    [from, to] = heatWindow(trace);
  const rows = around(all, (row) => row[1] - trace.start);
  const spent = lane ? lane.states.map((s) => `${count(lane.cycles[s.key])} ${s.label}`).join(", ") : "";
  const kept =
    trace.instructions.kept < trace.instructions.total
      ? ` The page holds ${count(trace.instructions.kept)} of ${count(trace.instructions.total)} instructions.`
      : "";
  const head = make(
    "h2",
    {},
    `${trace.title}: ${name} `,
    make("small", {}, `${spent}${spent ? " cycles." : ""}${kept}`),
  );
  if (!all.length) return [head, make("p", { class: "hint" }, "No instruction went to it.")];
  return [
    head,
    table(
      [["begin", "number"], ["end", "number"], ["cycles", "number"], ["txn"], ["instruction", "text"]],
      rows.map((row) => {
        const [, begin, end, txn, text] = row,
          relative = begin - trace.start;
        return {
          cycle: relative,
          lit: state.span && relative < to && (end ?? Infinity) - trace.start >= from,
          cells: [
            count(begin),
            end === null ? "never" : count(end),
            end === null ? "" : count(end - begin),
            txn,
            DATA.texts[text],
          ],
        };
      }),
      state.span,
    ),
  ];
}

function drawInspector() {
  const chosen = state.chosen,
    box = at("inspector");
  if (!chosen) {
    box.replaceChildren(
      make("h2", {}, "Flits and instructions"),
      make("p", { class: "hint" }, "Click a link for its flits, decoded, or a unit for its instructions."),
    );
    return;
  }
  const trace = DATA.traces[chosen.trace];
  box.replaceChildren(...(chosen.unit ? inspectUnit(trace, chosen.unit) : inspectLink(trace, chosen.link)));
}

function redraw() {
  DATA.traces.forEach((trace, index) => {
    updateMesh(trace, meshes[index]);
    drawLanes(trace, canvases[index]);
  });
  drawInspector();
  at("scrub").value = state.now;
  at("clock").textContent = state.span
    ? `cycle ${count(state.now)} of ${count(longest)}`
    : `all ${count(longest)} cycles`;
  at("play").textContent = state.playing ? "❚❚" : "▶";
}

let lastFrame = 0;
function frame(time) {
  if (!state.playing) return;
  const elapsed = lastFrame ? time - lastFrame : 0;
  lastFrame = time;
  state.now += Math.max(1, (elapsed * longest) / 12000); // the whole run in twelve seconds
  if (state.now >= longest) {
    state.now = longest;
    state.playing = false;
  }
  state.now = Math.round(state.now);
  redraw();
  requestAnimationFrame(frame);
}

function toggle() {
  if (!state.span) setSpan(defaultSpan());
  if (!state.playing && state.now >= longest) state.now = 1;
  state.playing = !state.playing;
  lastFrame = 0;
  redraw();
  if (state.playing) requestAnimationFrame(frame);
}

function setTheme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  drawLegend();
  drawVerdict();
  drawBreakdown();
  drawRoofline();
  drawScale();
  redraw();
}

function drawScale() {
  const stops = [0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 1]
    .map((root) => `${heatColour(root * root)} ${100 * root}%`)
    .join(",");
  for (const scale of document.querySelectorAll(".scale i"))
    scale.style.background = `linear-gradient(90deg, ${theme("wire")} 0, ${stops})`;
}

function start() {
  at("title").textContent = DATA.traces.map((trace) => trace.title).join(" · ");
  at("subtitle").textContent = DATA.traces.map((trace) => `${trace.file} on ${trace.machine}`).join(" · ");
  at("scrub").max = longest;
  const widths = new Set(
    [8, 32, 128, 512, 2048, 8192, 65536, 524288].filter((span) => span < longest && span >= DATA.traces[0].width),
  );
  widths.add(defaultSpan());
  at("window").append(
    make("option", { value: 0 }, "the whole run"),
    ...[...widths].sort((a, b) => a - b).map((span) => make("option", { value: span }, `${count(span)} cycles`)),
  );
  at("window").value = "0";
  DATA.traces.forEach((trace, index) => {
    at("meshes").append(
      make(
        "div",
        { class: "panel" },
        make(
          "h2",
          {},
          make("span", {}, trace.title),
          make("span", { class: "scale" }, "flits a cycle 0", make("i"), "1"),
        ),
        meshes[index],
      ),
    );
    at("lanes").append(
      make(
        "div",
        { class: "lane-block" },
        make(
          "div",
          { class: "group" },
          `${trace.title}: ${count(trace.cycles)} cycles, from cycle ${count(trace.start)} of the trace`,
        ),
        canvases[index],
        ...quiet(trace),
      ),
    );
  });
  at("mesh-row").classList.toggle("single", DATA.traces.length === 1);
  drawStages();
  at("notes").replaceChildren(...DATA.notes.map((note) => make("p", {}, note)));
  at("scrub").addEventListener("input", (event) => seek(+event.target.value));
  at("window").addEventListener("change", (event) => {
    state.span = +event.target.value;
    redraw();
    event.target.blur();
  });
  at("play").addEventListener("click", () => {
    at("play").blur();
    toggle();
  });
  at("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme !== "dark"));
  addEventListener("resize", redraw);
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || event.target.tagName === "SELECT") return;
    const step = event.shiftKey ? 1 : Math.max(1, Math.round((state.span || defaultSpan()) / 2));
    const keys = {
      ArrowLeft: () => seek(state.now - step),
      ArrowRight: () => seek(state.now + step),
      " ": toggle,
      Home: () => seek(1),
      End: () => seek(longest),
      t: () => at("theme").click(),
      T: () => at("theme").click(),
    };
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
  setTheme(matchMedia("(prefers-color-scheme: dark)").matches);
}

start();
