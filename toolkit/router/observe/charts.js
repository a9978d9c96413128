"use strict";
// Elements, figures and numbers. Whatever comes from the router enters the page as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null));
  return made;
}

const h = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const s = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

const DASH = "–";
const PATHS = { "prefill": "prefill", "readback": "readback", "decode-local": "decode-local" };
// What the router's reasons for a path mean.
const WHY = {
  "forced": "a header or the configuration asked for it",
  "forced-unavailable": "a read was asked for, and nothing can be read",
  "not-transferable": "several choices or prompts, beam search, prompt log-probabilities",
  "new": "nothing is known of the conversation",
  "decode-away": "the engine that holds the history takes no traffic",
  "short-suffix": "decode holds the rest and computes the little that is new",
  "long-suffix": "too much is new for decode to compute beside its streams",
  "decode-busy": "decode already computes as much as it may",
  "no-handle": "decode may hold the history, but nobody can read it, or so little of it that another branch's turn keeps the handle",
  "unproven-history": "not sure that decode's blocks hold this prompt's tokens",
  "measured": "the other path was measured to be slower",
  "stored-response": "continues a response that one decode engine has stored",
  "prefill-away": "no prefill engine takes traffic",
  "probe": "measured to be slower, and measured again",
  "retry": "an engine failed on another path",
};

const pathClass = (path) => PATHS[path] ?? "other";
const pathTag = (path) => h("span", { class: `tag ${pathClass(path)}` }, path);

const whole = (value) => (value === null ? DASH : value.toLocaleString("en"));
const short = (value) => value < 10000 ? whole(value)
  : value.toLocaleString("en", { notation: "compact", maximumFractionDigits: 1 });
const percent = (part) => (part === null ? DASH : `${(part * 100).toFixed(part > 0 && part < 0.1 ? 1 : 0)}%`);
const plural = (count, one, many = `${one}s`) => `${whole(count)} ${count === 1 ? one : many}`;

function ms(value) {
  if (value === null) return DASH;
  if (value < 10) return `${value.toFixed(1)} ms`;
  if (value < 1000) return `${Math.round(value)} ms`;
  return `${(value / 1000).toFixed(value < 10000 ? 2 : 1)} s`;
}

function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit += 1; }
  return `${value.toFixed(unit && value < 100 ? 1 : 0)} ${units[unit]}`;
}

function duration(seconds) {
  const steps = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const first = Math.max(0, steps.findIndex(([size]) => seconds >= size));
  const parts = [];
  for (const [size, unit] of seconds < 1 ? [] : steps.slice(first, first + 2)) {
    const count = Math.floor(seconds / size);
    seconds -= count * size;
    if (count) parts.push(`${count} ${unit}`);
  }
  return parts.join(" ") || "0 s";
}

const clock = (unix) => new Date(unix * 1000).toLocaleTimeString("en-GB");

// Parts of a whole, as one bar. `parts` is [[class, share, label], ...]; the labels are for assistive technology,
// and every bar stands beside the same figures as text.
function stackedBar(parts) {
  const bar = h("div", { class: "stack", role: "img", "aria-label": parts.map(([, , label]) => label).join(", ") });
  for (const [name, share, label] of parts) {
    if (share <= 0) continue;
    const part = h("i", { class: name, title: label });
    part.style.flex = `${share} 0 0`;
    bar.append(part);
  }
  return bar;
}

function sparkline(values) {
  const top = Math.max(...values, 1e-9);
  const x = (i) => ((i / Math.max(values.length - 1, 1)) * 100).toFixed(1);
  const y = (value) => (36 - (value / top) * 32).toFixed(1);
  const line = values.map((value, i) => `${i ? "L" : "M"}${x(i)} ${y(value)}`).join("");
  return s("svg", { class: "spark", viewBox: "0 0 100 38", preserveAspectRatio: "none", "aria-hidden": "true" },
    s("path", { class: "area", d: `${line}L100 38L0 38Z` }), s("path", { d: line }));
}

// A bucket's bounds in ms; the first and the last, open ones get a drawable width.
function bounds(edges, index) {
  const low = index === 0 ? edges[0] / 2 : edges[index - 1];
  const high = index === edges.length ? edges[index - 1] * 2 : edges[index];
  return [low, high];
}

// The decades that hold every sample, so that all charts can be compared along one axis.
function logRange(spreads, edges) {
  const used = spreads.flatMap(({ counts }) => counts.flatMap((count, i) => (count ? bounds(edges, i) : [])));
  if (!used.length) return [1, 1000];
  const low = Math.max(Math.floor(Math.log10(Math.min(...used)) + 1e-9), Math.log10(edges[0] / 2));
  const high = Math.min(Math.ceil(Math.log10(Math.max(...used)) - 1e-9), Math.log10(edges.at(-1) * 2));
  return [10 ** low, 10 ** Math.max(high, low + 1)];
}

function bucketName(edges, index) {
  if (index === 0) return `up to ${ms(edges[0])}`;
  if (index === edges.length) return `above ${ms(edges[index - 1])}`;
  return `${ms(edges[index - 1])} to ${ms(edges[index])}`;
}

function histogram(path, spread, edges, [low, high]) {
  const at = (value) => (100 * Math.log(value / low)) / Math.log(high / low);
  const most = Math.max(...spread.counts, 1);
  const plot = s("svg", { viewBox: "0 0 100 58", preserveAspectRatio: "none", "aria-hidden": "true" });
  for (const tick of decades(low, high)) plot.append(s("line", { class: "grid", x1: at(tick), x2: at(tick), y1: 0, y2: 58 }));
  spread.counts.forEach((count, i) => {
    if (!count) return;
    const [from, to] = bounds(edges, i).map(at);
    const tall = Math.max((count / most) * 54, 1.5);
    plot.append(s("rect", { class: "bar", x: from + 0.15, width: Math.max(to - from - 0.3, 0.3), y: 58 - tall, height: tall },
      s("title", {}, `${bucketName(edges, i)}: ${plural(count, "request")}`)));
  });
  for (const name of ["p50", "p95"]) {
    const value = spread[`${name}_ms`];
    if (value === null) continue;
    const x = Math.min(Math.max(at(value), 0.2), 99.8);
    plot.append(s("line", { class: `mark ${name}`, x1: x, x2: x, y1: 0, y2: 58 }));
  }
  const p95 = spread.p95_ms === null ? "p95 needs more samples" : `p95 ${ms(spread.p95_ms)}`;
  const told = `${plural(spread.samples, "sample")}, p50 ${ms(spread.p50_ms)}, ${p95}`;
  return h("div", { class: `histogram ${pathClass(path)}`, role: "group", "aria-label": `${path}: ${told}` },
    h("div", { class: "top" }, pathTag(path), h("span", {},
      h("span", { class: "soft" }, `${plural(spread.samples, "sample")} · p50 `), h("b", {}, ms(spread.p50_ms)),
      h("span", { class: "soft" }, spread.p95_ms === null ? ` · ${p95}` : " · p95 "),
      spread.p95_ms === null ? null : h("b", {}, ms(spread.p95_ms)))),
    h("div", { class: "plot" }, plot));
}

function decades(low, high) {
  const ticks = [];
  for (let power = Math.ceil(Math.log10(low) - 1e-9); power <= Math.log10(high) + 1e-9; power += 1) ticks.push(10 ** power);
  return ticks;
}

const ORDER = Object.keys(PATHS);
const place = (path) => (ORDER.includes(path) ? ORDER.indexOf(path) : ORDER.length);

function latencyChart(byPath, edges, range) {
  const rows = Object.entries(byPath).filter(([, spread]) => spread.samples > 0).sort(([a], [b]) => place(a) - place(b));
  if (!rows.length) return [h("p", { class: "empty" }, "No sample yet.")];
  const axis = h("div", { class: "axis", "aria-hidden": "true" });
  for (const tick of decades(...range)) {
    const label = h("span", {}, tick < 1000 ? `${tick} ms` : `${tick / 1000} s`);
    label.style.left = `${(100 * Math.log(tick / range[0])) / Math.log(range[1] / range[0])}%`;
    axis.append(label);
  }
  return [...rows.map(([path, spread]) => histogram(path, spread, edges, range)), axis];
}
