// Time from left to right: stages, then one lane for each unit, port and the agent, all traces on one axis.
const LANE = 20,
  STAGE = 22,
  LABEL = 92,
  AXIS = 18;

function laneOrder(trace) {
  const rank = { run: 0, agent: 1, memory: 2, cluster: 3, vector: 4 };
  return trace.lanes.filter((lane) => !lane.quiet).sort((a, b) => rank[a.kind] - rank[b.kind]);
}

function drawLanes(trace, canvas) {
  const lanes = laneOrder(trace),
    width = canvas.clientWidth,
    height = STAGE + lanes.length * LANE + AXIS;
  canvas.style.height = height + "px";
  canvas.width = width * devicePixelRatio;
  canvas.height = height * devicePixelRatio;
  const pen = canvas.getContext("2d");
  pen.scale(devicePixelRatio, devicePixelRatio);
  pen.font = "12px " + getComputedStyle(document.body).fontFamily;
  pen.textBaseline = "middle";
  const [from, to] = state.view,
    scale = (width - LABEL) / (to - from);
  const x = (cycle) => LABEL + (cycle - from) * scale;
  const tones = Object.fromEntries(Object.keys(COLOURS).map((key) => [key, colour(key)]));
  pen.save();
  pen.beginPath();
  pen.rect(LABEL, 0, width - LABEL, height);
  pen.clip();
  for (const stage of trace.stages) {
    const left = x(stage.start),
      right = x(stage.end);
    pen.fillStyle = theme(stage.kinds.length ? "faint" : "panel");
    pen.fillRect(left, 1, right - left - 1, STAGE - 4);
    pen.fillStyle = theme(stage.kinds.length ? "ink" : "soft");
    const name = stage.kinds.length
      ? `${stage.kinds.join(" + ")} ${count(stage.end - stage.start)}`
      : `host ${count(stage.end - stage.start)}`;
    if (pen.measureText(name).width < right - left - 8) pen.fillText(name, Math.max(left, LABEL) + 5, STAGE / 2 - 1);
  }
  const last = x(trace.cycles);
  lanes.forEach((lane, index) => {
    const top = STAGE + index * LANE + 2,
      tall = LANE - 4;
    pen.fillStyle = tones.idle;
    pen.fillRect(x(0), top, last - x(0), tall);
    for (let pixel = Math.max(LABEL, Math.floor(x(0))); pixel < Math.min(width, last); pixel++) {
      const a = Math.max(0, from + (pixel - LABEL) / scale),
        b = Math.min(trace.cycles, a + 1 / scale);
      if (b <= a) continue;
      let y = top + tall;
      lane.states.forEach((s, row) => {
        if (s.key === "idle") return;
        const part = (tall * lane.bins.between(row, a, b)) / (b - a);
        if (part <= 0) return;
        pen.fillStyle = tones[laneKey(lane, s)];
        pen.fillRect(pixel, y - part, 1, part);
        y -= part;
      });
    }
  });
  const bottom = STAGE + lanes.length * LANE;
  pen.fillStyle = theme("soft");
  const step = tickStep(to - from, (width - LABEL) / 90);
  for (let cycle = Math.ceil(from / step) * step; cycle <= to; cycle += step) {
    pen.fillRect(x(cycle), bottom, 1, 4);
    const right = x(cycle) + 4,
      wide = pen.measureText(count(cycle)).width;
    pen.fillText(count(cycle), right + wide < width ? right : right - 8 - wide, bottom + 9);
  }
  pen.fillStyle = theme("line");
  pen.fillRect(last, 0, 1.5, bottom);
  if (state.span) {
    const [a, b] = heatWindow(trace);
    pen.fillStyle = theme("accent");
    pen.globalAlpha = 0.14;
    pen.fillRect(x(a), 0, Math.max(1, x(b) - x(a)), bottom);
    pen.globalAlpha = 1;
    pen.fillRect(x(state.now) - 0.75, 0, 1.5, bottom);
  }
  pen.restore();
  pen.fillStyle = theme("ink");
  lanes.forEach((lane, index) =>
    pen.fillText(lane.kind === "run" ? "machine" : lane.name, 0, STAGE + index * LANE + LANE / 2),
  );
  pen.fillStyle = theme("soft");
  pen.fillText("stage", 0, STAGE / 2 - 1);
  pen.fillText("cycle", 0, bottom + 9);
}

function tickStep(span, most) {
  const rough = span / most,
    power = 10 ** Math.floor(Math.log10(rough));
  return Math.max(
    1,
    [1, 2, 5, 10].map((unit) => unit * power).find((unit) => unit >= rough),
  );
}

function cycleAt(canvas, event) {
  const box = canvas.getBoundingClientRect(),
    [from, to] = state.view;
  return from + ((event.clientX - box.left - LABEL) / (box.width - LABEL)) * (to - from);
}

function watchLanes(trace, canvas, index) {
  let pressed = null;
  canvas.addEventListener("mousedown", (event) => {
    pressed = cycleAt(canvas, event);
  });
  canvas.addEventListener("mouseup", (event) => {
    if (pressed === null) return;
    const cycle = cycleAt(canvas, event),
      [from, to] = state.view;
    if (Math.abs(cycle - pressed) > (to - from) / 100) {
      zoom(Math.max(0, Math.min(cycle, pressed)), Math.min(longest, Math.max(cycle, pressed)));
    } else {
      seek(Math.round(cycle));
    }
    pressed = null;
  });
  canvas.addEventListener("dblclick", () => zoom(0, longest));
  canvas.addEventListener("mousemove", (event) => {
    const row = Math.floor((event.clientY - canvas.getBoundingClientRect().top - STAGE) / LANE),
      lane = laneOrder(trace)[row];
    const cycle = Math.floor(cycleAt(canvas, event));
    if (cycle < 0 || cycle >= trace.cycles) return tip(event, "");
    const stage = trace.stages.find((candidate) => cycle >= candidate.start && cycle < candidate.end);
    if (row < 0)
      return tip(event, stage ? `${stage.title}\n${count(stage.end - stage.start)} cycles\n${stage.limit}` : "");
    const pixel = (state.view[1] - state.view[0]) / (canvas.clientWidth - LABEL);
    const to = Math.min(trace.cycles, cycle + Math.max(1, pixel));
    tip(
      event,
      lane
        ? `cycle ${count(cycle + trace.start)} (${count(cycle)} from the start)\n` +
            laneTip(trace, lane.name, cycle, to)
        : "",
    );
  });
  canvas.addEventListener("mouseleave", (event) => tip(event, ""));
}
