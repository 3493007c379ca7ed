// Verdict, stall breakdown, roofline, stages.
const units = (trace) => trace.lanes.filter((lane) => lane.kind === "cluster" || lane.kind === "vector");

function drawVerdict() {
  const [first, other] = DATA.traces,
    heading = make("div", { class: "panel" });
  if (other) {
    const share = 1 - first.cycles / other.cycles;
    const words = share ? `${percent(Math.abs(share))} ${share > 0 ? "fewer" : "more"} cycles` : "as many cycles";
    heading.append(
      make("h3", {}, `${first.title} beside ${other.title}`),
      make("div", { class: "big", id: "headline" }, words),
    );
  } else {
    heading.append(make("h3", {}, "what limits it"), make("div", { class: "big" }, `${count(first.cycles)} cycles`));
  }
  heading.append(make("div", { class: "why", id: "why" }, other ? DATA.why : first.limit));
  const bars = ([label, values]) => [
    make("h3", {}, label),
    ...DATA.traces.map((trace, index) =>
      make(
        "div",
        { class: index ? "bar" : "bar first" },
        make("span", { class: "name", title: trace.title }, trace.title),
        make("span", {}, make("i", { style: `width:${(100 * values[index]) / Math.max(...values, 1)}%` })),
        make("b", {}, count(values[index])),
      ),
    ),
  ];
  const totals = [
    ["bytes read from DRAM", "read"],
    ["bytes written to DRAM", "written"],
    ["flits over links", "hops"],
  ].map(([label, key]) => [label, DATA.traces.map((trace) => trace.totals[key])]);
  at("verdict").replaceChildren(
    heading,
    make("div", { class: "panel", id: "spent" }, ...spent()),
    make("div", { class: "panel" }, ...totals.flatMap(bars)),
  );
}

// Every cycle of every run by what it went to; the rows add up to the run.
function spent() {
  const lanes = DATA.traces.map((trace) => trace.lanes.find((lane) => lane.kind === "run"));
  const bars = DATA.traces.map((trace, index) =>
    make(
      "div",
      { class: "spent", style: `width:${(100 * trace.cycles) / longest}%` },
      ...lanes[index].states.map((s) =>
        make("i", {
          style: `width:${(100 * lanes[index].cycles[s.key]) / trace.cycles}%;background:${colour(s.key)}`,
          title: `${trace.title}, ${s.label}: ${count(lanes[index].cycles[s.key])} cycles`,
        }),
      ),
    ),
  );
  const compared = DATA.traces.length === 2;
  const row = (label, key, values) => {
    const more = compared ? values[1] - values[0] : 0;
    return make(
      "tr",
      {},
      make("td", {}, ...(key ? [make("i", { style: `background:${colour(key)}` })] : []), label),
      ...values.map((value) => make("td", { class: "number" }, count(value))),
      ...(compared
        ? [make("td", { class: more ? "number more" : "number none" }, more > 0 ? `+${count(more)}` : count(more))]
        : []),
    );
  };
  const heads = [
    "where the cycles went",
    ...DATA.traces.map((trace) => trace.title),
    ...(compared ? ["difference"] : []),
  ];
  return [
    ...bars,
    make(
      "table",
      {},
      make(
        "thead",
        {},
        make("tr", {}, ...heads.map((head, column) => make("th", column ? { class: "number" } : {}, head))),
      ),
      make(
        "tbody",
        {},
        ...lanes[0].states.map((s) =>
          row(
            s.label,
            s.key,
            lanes.map((lane) => lane.cycles[s.key]),
          ),
        ),
        row(
          "all",
          null,
          DATA.traces.map((trace) => trace.cycles),
        ),
      ),
    ),
  ];
}

function drawLegend() {
  const keys = [
    ["array", "array computes"],
    ["vector", "vector computes"],
    ["operands", "waiting for operands"],
    ["link", "waiting for link, credit"],
    ["dispatching", "dispatch, DRAM reads"],
    ["writing", "DRAM writes"],
    ["both", "both"],
    ["transit", "in transit, units at work"],
    ["idle", "idle, host"],
  ];
  at("legend").replaceChildren(
    ...keys.map(([key, label]) =>
      make("span", { class: "key" }, make("i", { style: `background:${colour(key)}` }), label),
    ),
  );
}

function quiet(trace) {
  const names = units(trace)
    .filter((lane) => lane.quiet)
    .map((lane) => lane.name);
  return names.length ? [make("p", { class: "hint" }, `Idle throughout: ${names.join(", ")}.`)] : [];
}

function drawBreakdown() {
  const groups = DATA.traces.flatMap((trace) => [
    make("div", { class: "group" }, `${trace.title}, ${count(trace.cycles)} cycles`),
    ...units(trace)
      .filter((lane) => !lane.quiet)
      .map((lane) =>
        make(
          "div",
          { class: "stack", "data-lane": lane.name },
          make("span", { class: "name" }, lane.name),
          make(
            "span",
            { class: "row", style: `width:${(100 * trace.cycles) / longest}%` },
            ...lane.states.map((s) =>
              make("i", {
                style: `width:${(100 * lane.cycles[s.key]) / trace.cycles}%;background:${colour(laneKey(lane, s))}`,
                title: `${s.label}: ${count(lane.cycles[s.key])} cycles`,
                "data-key": s.key,
                "data-cycles": lane.cycles[s.key],
              }),
            ),
          ),
          make("small", {}, lane.states.map((s) => `${count(lane.cycles[s.key])} ${s.label}`).join(", ")),
        ),
      ),
    ...quiet(trace),
  ]);
  at("breakdown").replaceChildren(
    ...groups,
    make("p", { class: "hint" }, "Bars are as long as the run; idle is what is left."),
  );
}

// One roof for each machine that is shown, one point for each trace.
function drawRoofline() {
  const points = DATA.traces.filter((trace) => trace.roofline.intensity && trace.roofline.reached);
  if (!points.length) {
    at("roofline").replaceChildren(
      make("p", { class: "hint" }, "No matrix product ran, or no byte moved: there is no point to draw."),
    );
    return;
  }
  const roofs = points
    .map((trace) => trace.roofline)
    .filter((roof, index, all) => {
      const same = (other) => other.compute === roof.compute && other.bandwidth === roof.bandwidth;
      return all.findIndex(same) === index;
    });
  const [width, height, left, bottom] = [560, 250, 48, 34];
  const ridges = roofs.map((roof) => roof.compute / roof.bandwidth);
  const low = Math.min(...ridges.map((ridge) => ridge / 8), ...points.map((trace) => trace.roofline.intensity / 2));
  const high = Math.max(...ridges.map((ridge) => ridge * 8), ...points.map((trace) => trace.roofline.intensity * 3));
  const base = Math.min(
    ...roofs.map((roof) => low * roof.bandwidth),
    ...points.map((trace) => trace.roofline.reached / 2),
  );
  const top = 2 * Math.max(...roofs.map((roof) => roof.compute));
  const x = (value) =>
    left + ((Math.log(value) - Math.log(low)) / (Math.log(high) - Math.log(low))) * (width - left - 12);
  const y = (value) =>
    height - bottom - ((Math.log(value) - Math.log(base)) / (Math.log(top) - Math.log(base))) * (height - bottom - 8);
  const svg = make("svg:svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "roofline" });
  for (let power = Math.ceil(Math.log2(low)); power <= Math.log2(high); power += 2) {
    svg.append(
      make("svg:line", { class: "grid", x1: x(2 ** power), x2: x(2 ** power), y1: 8, y2: height - bottom }),
      make(
        "svg:text",
        { x: x(2 ** power), y: height - bottom + 14, "text-anchor": "middle" },
        count(2 ** power) === "0" ? `1/${2 ** -power}` : count(2 ** power),
      ),
    );
  }
  for (let power = Math.ceil(Math.log2(base)); power <= Math.log2(top); power += 2) {
    svg.append(
      make("svg:line", { class: "grid", x1: left, x2: width - 12, y1: y(2 ** power), y2: y(2 ** power) }),
      make(
        "svg:text",
        { x: left - 6, y: y(2 ** power) + 4, "text-anchor": "end" },
        2 ** power < 1 ? `1/${2 ** -power}` : count(2 ** power),
      ),
    );
  }
  svg.append(
    make(
      "svg:text",
      { x: (left + width) / 2, y: height - 4, "text-anchor": "middle" },
      "operations a byte of DRAM (busier direction)",
    ),
    make("svg:text", { x: left + 6, y: 18 }, "operations a cycle"),
  );
  roofs.forEach((roof, index) => {
    const ridge = ridges[index];
    const corners = [
      [low, low * roof.bandwidth],
      [ridge, roof.compute],
      [high, roof.compute],
    ];
    const words = `arrays ${count(roof.compute)}`;
    svg.append(
      make("svg:polyline", { class: "roof", points: corners.map(([a, b]) => `${x(a)},${y(b)}`).join(" ") }),
      make("svg:text", { x: width - 14, y: y(roof.compute) - 6, "text-anchor": "end" }, words),
      make(
        "svg:text",
        { x: x(ridge) - 8, y: y(roof.compute) + 4, "text-anchor": "end" },
        `DRAM ${roof.bandwidth} bytes a cycle`,
      ),
    );
  });
  points.forEach((trace, index) => {
    const { intensity, reached, bound } = trace.roofline;
    const px = x(intensity),
      py = y(reached);
    svg.append(
      make("svg:line", { x1: px, x2: px, y1: py, y2: y(bound), stroke: theme("soft"), "stroke-dasharray": "2 3" }),
      make("svg:circle", {
        cx: px,
        cy: py,
        r: 5.5,
        fill: theme("accent"),
        "fill-opacity": index ? 0.45 : 1,
        "data-point": trace.title,
      }),
      make(
        "svg:text",
        { class: "point-name", x: px + 10, y: py + (index ? 15 : -2) },
        `${trace.title}: ${percent(reached / bound)} of the roof`,
      ),
    );
  });
  at("roofline").replaceChildren(svg);
}

function drawStages() {
  at("stages").replaceChildren(
    make(
      "div",
      { class: "stages" },
      ...DATA.traces.map((trace) => {
        const head = make(
          "tr",
          {},
          ...["from", "cycles", "what", "DRAM", "hops"].map((text, column) =>
            make("th", column === 2 ? {} : { class: "number" }, text),
          ),
        );
        const rows = trace.stages.map((stage) =>
          make(
            "tr",
            { title: stage.limit },
            make("td", { class: "number" }, count(stage.start)),
            make("td", { class: "number" }, count(stage.end - stage.start)),
            make("td", {}, stage.title),
            make("td", { class: "number" }, count(stage.dram)),
            make("td", { class: "number" }, count(stage.hops)),
          ),
        );
        return make(
          "div",
          {},
          make("div", { class: "group" }, trace.title),
          make("div", { class: "scroll" }, make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows))),
          make("p", { class: "limit" }, make("b", {}, "Limiter: "), trace.limit),
        );
      }),
    ),
  );
}
