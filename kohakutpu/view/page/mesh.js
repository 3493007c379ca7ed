// The mesh as its machine describes it: routers, endpoints at their coordinates, every link both ways.
const CELL = 128,
  ROUTER = 19,
  BOX = [74, 46];
const LOCAL = [0.63, 0.58]; // of a cell, from a router to an endpoint on its local port

function spot(trace, name) {
  const place = trace.places.find((candidate) => candidate.name === name);
  if (!place) return { x: parseInt(name[1], 16), y: parseInt(name[2], 16), half: [ROUTER, ROUTER] };
  const local = place.x === place.router[0] && place.y === place.router[1];
  return {
    x: place.x + (local ? LOCAL[0] : 0),
    y: place.y + (local ? LOCAL[1] : 0),
    half: BOX.map((side) => side / 2),
  };
}

// Where the line from one box towards a direction leaves it.
function edge({ half }, dx, dy) {
  return Math.min(dx ? half[0] / Math.abs(dx) : Infinity, dy ? half[1] / Math.abs(dy) : Infinity);
}

// For the mouse and for the keyboard.
function pressable(group, label, action) {
  for (const [name, value] of [
    ["tabindex", 0],
    ["role", "button"],
    ["aria-label", label],
  ])
    group.setAttribute(name, value);
  group.addEventListener("click", action);
  group.addEventListener("keydown", (event) => {
    if (event.key === "Enter") action();
  });
}

function drawMesh(trace, index) {
  const spots = [...trace.routers.map(([x, y]) => ({ x, y })), ...trace.places.map((place) => spot(trace, place.name))];
  const low = [Math.min(...spots.map((s) => s.x)), Math.min(...spots.map((s) => s.y))];
  const high = [Math.max(...spots.map((s) => s.x)), Math.max(...spots.map((s) => s.y))];
  const margin = [0.36, 0.26];
  const place = (s) => [(s.x - low[0] + margin[0]) * CELL, (s.y - low[1] + margin[1]) * CELL];
  const size = [(high[0] - low[0] + 2 * margin[0]) * CELL, (high[1] - low[1] + 2 * margin[1]) * CELL];
  const shown = Math.max(size[0], 500);
  const svg = make("svg:svg", {
    class: "mesh",
    viewBox: `${(size[0] - shown) / 2} 0 ${shown} ${size[1]}`,
    role: "img",
    "data-trace": index,
    "aria-label": `mesh of ${trace.machine}`,
    style: `max-width:${1.15 * shown}px`,
  });
  trace.wires.forEach((wire, number) => {
    if (!wire.sink) return;
    const from = spot(trace, wire.source),
      to = spot(trace, wire.sink);
    const a = place(from),
      b = place(to),
      length = Math.hypot(b[0] - a[0], b[1] - a[1]);
    const [dx, dy] = [(b[0] - a[0]) / length, (b[1] - a[1]) / length];
    const side = 6.5,
      off = [-dy * side, dx * side]; // the two ways of a pair pass each other on the right
    const begin = edge(from, dx, dy) + 2,
      end = length - edge(to, dx, dy) - 3;
    const point = (along) => [a[0] + dx * along + off[0], a[1] + dy * along + off[1]];
    const [p, q] = [point(begin), point(end)];
    const line = { x1: p[0], y1: p[1], x2: q[0] - dx * 7, y2: q[1] - dy * 7 };
    const tipPoints = [
      q,
      [q[0] - dx * 9 - dy * 5, q[1] - dy * 9 + dx * 5],
      [q[0] - dx * 9 + dy * 5, q[1] - dy * 9 - dx * 5],
    ];
    const down = to.x % 1,
      local = down || from.x % 1; // labels of local links keep out of the way of the row's
    // Between a router and the one south of it stand the boxes of its own local port and of its western neighbour's: labels
    // keep above the one in the west, and below that of the way to the one in the east.
    const upright = Math.abs(dx) < 0.01;
    const between = upright && (dy > 0 ? from : to).half[0] === ROUTER;
    const along = local ? (down ? 0.58 : 0.35) * length : between ? (dy > 0 ? 0.27 : 0.4) * length : (begin + end) / 2;
    const middle = point(along);
    const group = make(
      "svg:g",
      { class: "wire", "data-link": wire.name, "data-wire": number },
      make("svg:line", { class: "halo", ...line }),
      make("svg:line", { class: "stroke", ...line }),
      make("svg:polygon", { points: tipPoints.map((xy) => xy.map((v) => v.toFixed(1)).join(",")).join(" ") }),
      make("svg:text", {
        class: down || (upright && dy > 0) ? "use before" : upright ? "use after" : "use",
        x: middle[0] - dy * (down || upright ? 7 : 15),
        y: middle[1] + dx * 13 + 3.5,
      }),
      make("svg:line", { class: "hit", ...line }),
    );
    pressable(group, `link ${wire.name}`, () => choose({ trace: index, link: number }));
    group.addEventListener("mousemove", (event) => tip(event, wireTip(trace, number)));
    group.addEventListener("mouseleave", (event) => tip(event, ""));
    svg.append(group);
  });
  for (const [x, y] of trace.routers) {
    const [cx, cy] = place({ x, y });
    svg.append(
      make(
        "svg:g",
        { class: "router" },
        make("svg:rect", { x: cx - ROUTER, y: cy - ROUTER, width: 2 * ROUTER, height: 2 * ROUTER, rx: 8 }),
        make("svg:text", { class: "sub", x: cx, y: cy + 3.5 }, `${x},${y}`),
      ),
    );
  }
  for (const unit of trace.places) {
    const [cx, cy] = place(spot(trace, unit.name));
    const box = { x: cx - BOX[0] / 2, y: cy - BOX[1] / 2, width: BOX[0], height: BOX[1], rx: 9 };
    const group = make(
      "svg:g",
      { class: "unit", "data-unit": unit.name, "data-x": unit.x, "data-y": unit.y },
      make("svg:rect", box),
      make("svg:text", { x: cx, y: cy - 4 }, unit.name),
      make("svg:text", { class: "sub", x: cx, y: cy + 9 }, `(${unit.x},${unit.y})`),
      make("svg:g", { class: "gauges", transform: `translate(${cx - BOX[0] / 2 + 9} ${cy + BOX[1] / 2 - 9})` }),
    );
    pressable(group, unit.name, () => choose({ trace: index, unit: unit.name }));
    group.addEventListener("mousemove", (event) => tip(event, laneTip(trace, unit.name, ...heatWindow(trace))));
    group.addEventListener("mouseleave", (event) => tip(event, ""));
    svg.append(group);
  }
  return svg;
}

function wireTip(trace, number) {
  const wire = trace.wires[number],
    [from, to] = heatWindow(trace);
  const flits = trace.heat.between(number, from, to);
  const cycles = to - from;
  return (
    `${wire.name}: ${wire.source} → ${wire.sink}\n` +
    `${count(flits)} flits in ${count(cycles)} cycles, ${percent(flits / cycles)}`
  );
}

function laneTip(trace, name, from, to) {
  const lane = trace.lanes.find((candidate) => candidate.name === name);
  if (!lane) return name;
  const shares = lane.states.map((s, row) => [s.label, lane.bins.between(row, from, to) / (to - from)]);
  return [
    name,
    ...shares.filter(([, share]) => share > 0).map(([label, share]) => `${percent(share).padStart(5)} ${label}`),
  ].join("\n");
}

function updateMesh(trace, svg) {
  for (const group of svg.querySelectorAll(".wire")) {
    const number = +group.dataset.wire,
      share = use(trace, number),
      tone = heatColour(share);
    group.dataset.use = share.toFixed(4);
    const stroke = group.querySelector(".stroke");
    stroke.setAttribute("stroke", tone);
    stroke.setAttribute("stroke-width", 2.5 + 5 * Math.sqrt(share));
    group.querySelector("polygon").setAttribute("fill", tone);
    group.querySelector(".use").textContent = share > 0 ? percent(share) : "";
    group.classList.toggle("chosen", isChosen(trace, { link: number }));
  }
  for (const group of svg.querySelectorAll(".unit")) {
    const name = group.dataset.unit,
      lane = trace.lanes.find((candidate) => candidate.name === name);
    group.classList.toggle("chosen", isChosen(trace, { unit: name }));
    if (!lane) continue;
    const [from, to] = heatWindow(trace),
      gauges = group.querySelector(".gauges"),
      width = BOX[0] - 18;
    let x = 0;
    gauges.replaceChildren(
      ...lane.states.map((s, row) => {
        const share = lane.bins.between(row, from, to) / (to - from);
        const bar = make("svg:rect", {
          class: "gauge",
          x,
          y: 0,
          width: share * width,
          height: 4.5,
          fill: colour(laneKey(lane, s)),
          style: "stroke:none",
        });
        x += share * width;
        return bar;
      }),
    );
  }
}
