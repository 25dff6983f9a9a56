// The data of the page, the state of its controls, and helpers. Text from run folders only becomes text nodes, never
// markup.

let data = JSON.parse(document.getElementById("data").textContent);

const DEFAULTS = {
  text: "", status: "", sweep: "", sort: "", down: true, brushes: {}, selected: [], columns: null,
  metric: "", mode: "groups", band: "range", scale: "value", axis: "0", smooth: "0", ranked: "", all: false,
  across: "", up: "", hue: "", searched: "", image: "0",
};
const state = { ...DEFAULTS, ...readHash() };

/** Read the state in the page's address. Ignore invalid values. */
function readHash() {
  try {
    const given = JSON.parse(decodeURIComponent(location.hash.slice(1)));
    return Object.fromEntries(
      Object.entries(given).filter(([key, value]) =>
        key === "columns" ? Array.isArray(value)
        : key === "brushes" ? Object.values(value).every((all) => all.every((pair) => pair.every(Number.isFinite)))
        : Object.hasOwn(DEFAULTS, key) && typeof value === typeof DEFAULTS[key] && Array.isArray(value) === Array.isArray(DEFAULTS[key])));
  } catch {
    return {};
  }
}

/** Write the state to the address, so that it survives reloads and can be linked. */
function writeHash() {
  const changed = Object.entries(state).filter(([key, value]) => JSON.stringify(value) !== JSON.stringify(DEFAULTS[key]));
  const hash = changed.length ? "#" + encodeURIComponent(JSON.stringify(Object.fromEntries(changed))) : "";
  try {
    if (hash !== location.hash) history.replaceState(null, "", hash || location.pathname + location.search);
  } catch {
    // Some browsers limit the number of changes per minute.
  }
}

const $ = (id) => document.getElementById(id);

/** Create an element. Attributes that start with "on" are event handlers. Children are nodes or text. */
function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child != null && child !== false));
  return node;
}

/** Create a link with a relative address. Other addresses become text. */
function link(href, text) {
  return /^\.\.?\//.test(href) ? el("a", { href }, text) : text;
}

function fill(id, ...children) {
  $(id).replaceChildren(...children.flat().filter((child) => child != null && child !== false));
}

const amount = (count, one, several = one + "s") => `${count.toLocaleString("en")} ${count === 1 ? one : several}`;
const sum = (values) => values.reduce((total, value) => total + value, 0);
const mean = (values) => sum(values) / values.length;
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** Return the mean value of each replicate. Several runs of a seed count once, as in verdicts. Missing values do not count. */
function perReplicate(runs, valueOf) {
  const found = new Map();
  for (const run of runs) {
    const value = valueOf(run);
    if (value != null) found.set(run.replicate, [...(found.get(run.replicate) ?? []), value]);
  }
  return [...found.values()].map(mean);
}

/** Format a value as in a configuration. Numbers that are not whole have at most four significant digits. */
function show(value) {
  if (value === undefined || value === "") return "";
  if (value === null) return "null";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value)) return String(value);
  const size = Math.abs(value);
  return size < 1e-3 || size >= 1e6 ? value.toExponential(2).replace(/\.?0+e/, "e").replace("e+", "e") : String(+value.toPrecision(4));
}

function showScore(value) {
  if (value == null) return "";
  return Math.abs(value) < 1000 && Math.abs(value) >= 1e-3 || value === 0 ? value.toFixed(4) : value.toExponential(3);
}

/** Format a time as "2 h 5 min", "5 min 3 s" or "3 s". */
function duration(seconds) {
  if (seconds == null) return "";
  const whole = Math.round(seconds), hours = Math.floor(whole / 3600), minutes = Math.floor((whole % 3600) / 60);
  return hours ? `${hours} h ${minutes} min` : minutes ? `${minutes} min ${whole % 60} s` : `${whole} s`;
}

const LIGHT = ["#1f5a96", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#5b6572"];
const DARK = ["#62a4e8", "#f07a58", "#35c79a", "#e39ac5", "#f0b93a", "#c4e2f7", "#98a3b1"];
const DASHES = ["solid", "dashed", "dotted"];
const MOST = LIGHT.length * DASHES.length; // curves that look different
const dark = matchMedia("(prefers-color-scheme: dark)");
const series = (i) => (dark.matches ? DARK : LIGHT)[i % LIGHT.length];
const RAMP = [["#c3ccd8", "#4aa3dc", "#6a1b9a"], ["#66748a", "#4a90d9", "#ffd166"]]; // the best stands out

/** Return the color of a share in [0, 1], or gray for an unknown value. */
function ramp(share) {
  if (share == null || Number.isNaN(share)) return color("--line");
  const stops = RAMP[+dark.matches], i = Math.min(1, Math.floor(2 * share));
  return echarts.color.lerp(2 * share - i, stops.slice(i, i + 2));
}

/** Return a function that maps values to shares in [0, 1], and a legend of the colors. The lowest tenth maps to 0. */
function colorScale(values, label, { smaller = false, log = false, format = show } = {}) {
  const sorted = [...values].sort((a, b) => (smaller ? b - a : a - b)), at = log ? Math.log : (value) => value;
  const low = sorted[Math.floor(sorted.length / 10)], high = sorted.at(-1);
  const share = (value) => (typeof value !== "number" ? null : high === low ? 1 : Math.max(0, (at(value) - at(low)) / (at(high) - at(low))));
  const bar = el("i", { class: "ramp", style: `background:linear-gradient(90deg,${RAMP[+dark.matches].join(",")})`, "aria-hidden": "true" });
  const beyond = sorted[0] === low ? "" : smaller ? "≥ " : "≤ ";
  const range = low === high ? [format(low)] : [beyond, format(low), " ", bar, " ", format(high)];
  return [share, sorted.length ? el("span", { class: "soft small" }, `${label}: `, el("span", { style: "white-space:nowrap" }, range)) : null];
}

const dash = (i) => DASHES[Math.floor(i / LIGHT.length) % DASHES.length];
