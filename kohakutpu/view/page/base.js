// Data, small helpers and the state that every part of the page draws from.
const DATA = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";
const at = (id) => document.getElementById(id);
const count = (value) => Math.round(value).toLocaleString("en-US");
const percent = (value) => (100 * value).toFixed(value > 0 && value < 0.1 ? 1 : 0) + "%";
const theme = (name) =>
  getComputedStyle(document.documentElement)
    .getPropertyValue("--" + name)
    .trim();

function make(tag, attributes = {}, ...children) {
  const node = tag.startsWith("svg:") ? document.createElementNS(SVG, tag.slice(4)) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function numbers(text) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  return new Uint32Array(bytes.buffer);
}

// Rows of counts by bin, as sums of all bins before: what any span of cycles holds is then a difference.
class Bins {
  constructor(text, rows, trace) {
    const flat = numbers(text),
      bins = flat.length / rows;
    this.trace = trace;
    this.sums = Array.from({ length: rows }, (_, row) => {
      const sums = new Float64Array(bins + 1);
      for (let bin = 0; bin < bins; bin++) sums[bin + 1] = sums[bin] + flat[row * bins + bin];
      return sums;
    });
  }
  before(row, cycle) {
    const { width, cycles } = this.trace,
      sums = this.sums[row];
    if (cycle <= 0) return 0;
    if (cycle >= cycles) return sums[sums.length - 1];
    const bin = Math.floor(cycle / width),
      low = bin * width,
      high = Math.min(low + width, cycles);
    return sums[bin] + ((sums[bin + 1] - sums[bin]) * (cycle - low)) / (high - low);
  }
  between(row, from, to) {
    return this.before(row, to) - this.before(row, from);
  }
}

for (const trace of DATA.traces) {
  trace.cycles = trace.end - trace.start;
  trace.heat = new Bins(trace.heat, trace.wires.length, trace);
  for (const lane of trace.lanes) {
    lane.bins = new Bins(lane.bins, lane.states.length, trace);
    lane.quiet = lane.cycles.idle === trace.cycles;
  }
}

// `now` is in cycles from the start of each trace; heat covers the `span` cycles before it, or all if span is 0.
const longest = Math.max(...DATA.traces.map((trace) => trace.cycles));
const state = { now: longest, span: 0, view: [0, longest], playing: false, chosen: null };

function heatWindow(trace) {
  if (!state.span) return [0, trace.cycles];
  const to = Math.max(Math.min(state.now, trace.cycles), 1);
  return [Math.max(0, to - state.span), to];
}

function use(trace, wire) {
  const [from, to] = heatWindow(trace);
  return trace.heat.between(wire, from, to) / (to - from);
}

// Colour goes with the square root of the share, so that quiet links can be told apart too.
const STOPS = [
  [0, null],
  [0.1, [250, 218, 130]],
  [0.35, [245, 160, 66]],
  [0.65, [222, 66, 60]],
  [1, [140, 14, 70]],
];
function heatColour(flits) {
  if (flits <= 0) return theme("wire");
  const share = Math.sqrt(flits);
  for (let stop = 2; stop < STOPS.length; stop++) {
    const [high, to] = STOPS[stop],
      [low, from] = STOPS[stop - 1];
    if (share <= high || stop === STOPS.length - 1) {
      const part = Math.min(1, Math.max(0, (share - low) / (high - low)));
      return `rgb(${from.map((value, channel) => Math.round(value + (to[channel] - value) * part)).join(" ")})`;
    }
  }
}

const COLOURS = {
  computing: "computing",
  array: "computing",
  vector: "vector",
  operands: "operands",
  link: "link",
  idle: "idle",
  dispatching: "busy",
  credit: "link",
  units: "transit",
  transit: "transit",
  reading: "busy",
  writing: "writing",
  both: "both",
};
const colour = (key) => theme(COLOURS[key]);
// A vector core that computes has the colour that the machine's lane gives vector cores.
const laneKey = (lane, s) => (lane.kind === "vector" && s.key === "computing" ? "vector" : s.key);

function tip(event, text) {
  const box = at("tip");
  box.hidden = !text;
  if (!text) return;
  box.textContent = text;
  const room = innerWidth - box.offsetWidth - 12;
  box.style.left = Math.min(event.clientX + 14, room) + "px";
  box.style.top = event.clientY + 16 + "px";
}
