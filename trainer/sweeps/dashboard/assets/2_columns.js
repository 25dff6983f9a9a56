// Columns of the table, and which runs the filters keep.

const STATUSES = ["finished", "running", "planned", "pruned", "interrupted", "killed", "failed"];
const MOST_COLUMNS = 8; // of settings, unless chosen

/** Return every column: key, label, title, whether it is a number, and the value of a run. */
function makeColumns() {
  const names = [
    { key: "run", label: "run", title: "name of the run, or of its folder", get: (run) => run.name },
    { key: "status", label: "status", title: "how it ended", get: (run) => run.status },
  ];
  const groups = [
    { key: "sweep", label: "sweep", title: "sweep of the run", get: (run) => data.sweeps[run.sweep]?.name ?? "" },
    { key: "tags", label: "tags", title: "run.tags", get: (run) => run.tags.join(" ") },
  ];
  const scores = data.metrics.flatMap((metric, i) =>
    ["last", "best"].map((which) => ({
      key: `${which}.${metric.key}`, label: `${which} ${metric.key}`, metric: i, which, smaller: metric.smaller, number: true,
      title: which === "last" ? `${metric.key} of the last epoch` : `${metric.key} of the best epoch, which was chosen by a score: optimistic`,
      get: (run) => run[which][i] ?? undefined,
    })));
  const ends = [
    { key: "epochs", label: "epochs", title: "finished epochs", number: true, get: (run) => run.epochs },
    { key: "seconds", label: "time", title: "duration; of a resumed run, since it was resumed", number: true, format: duration, get: (run) => run.seconds ?? undefined },
    { key: "started", label: "started", title: "when it began", get: (run) => run.started },
  ];
  const short = shortNames(data.params.map((param) => param.key), [...names, ...groups, ...ends].map((column) => column.label));
  const params = data.params.map((param, i) => ({
    key: param.key, label: short[i], title: param.key, param: true, given: param.given, number: isNumeric(param.values),
    get: (run) => param.values[param.codes[run.index]],
  }));
  return [...names, ...scores, ...groups, ...params, ...ends];
}

/** Return whether values are numbers; some may be null. */
function isNumeric(values) {
  return values.some((value) => value !== null) && values.every((value) => value === null || typeof value === "number");
}

/** Return keys without their sections, as names of runs have them, unless two are then alike or a label is taken. */
function shortNames(keys, taken) {
  const count = new Map(taken.map((label) => [label, 1]));
  for (const key of keys) count.set(shortKey(key), (count.get(shortKey(key)) ?? 0) + 1);
  return keys.map((key) => (count.get(shortKey(key)) === 1 ? shortKey(key) : key));
}

const shortKey = (key) => key.split(".").slice(1).slice(-2).join(".") || key;

/** Return a text in which whole keys are as short as in the table: lr=0.1 for fit.lr=0.1; rotate.p=0 stays as it is. */
function shortText(text) {
  return text.replace(/(?<![\w.])(?:aug|callbacks|data|fit|hydra|model|run)(?:\.\w+)+(?==)/g, (key) => labels.get(key) ?? shortKey(key));
}

/** Return whether a column has different values among runs. */
function varies(column, runs) {
  const first = runs.length ? column.get(runs[0]) : undefined;
  return runs.some((run) => column.get(run) !== first);
}

/** Return the columns to show for some runs: the chosen ones, or what varies and the monitored scores. */
function shownColumns(runs) {
  if (state.columns) return columns.filter((column) => column.key === "run" || state.columns.includes(column.key));
  const monitored = new Set(runs.map((run) => run.monitor));
  return columns.filter((column) => {
    if (column.key === "run" || column.key === "status" || column.key === "seconds") return true;
    if (column.metric !== undefined) return monitored.has(column.metric);
    if (column.param) return varyingParams(runs).includes(column);
    return column.key !== "started" && varies(column, runs);
  });
}

/** Return the settings that differ among runs: those that were given on command lines, or all if none of them differs. */
function varyingParams(runs) {
  const found = columns.filter((column) => column.param && varies(column, runs));
  const given = found.filter((column) => column.given);
  return (given.length ? given : found).slice(0, MOST_COLUMNS);
}

const COMPARISON = /^([\w.\-]+)(<=|>=|!=|=|<|>)(.*)$/;

/** Return a test of a run for a word of the text filter: `key<value` and the like, or text that is in one of its cells. */
function wordTest(word) {
  const [, key, sign, text] = word.match(COMPARISON) ?? [];
  const column = key && (columns.find((c) => c.key === key || c.label === key)
    ?? columns.find((c) => c.param && c.key.endsWith("." + key)) ?? columns.find((c) => c.key.endsWith("." + key)));
  if (!column) return (run) => run.haystack.includes(word.toLowerCase());
  const number = text.trim() === "" ? NaN : Number(text);
  return (run) => {
    const value = column.get(run);
    const order = typeof value === "number" && !Number.isNaN(number) ? Math.sign(value - number) : show(value).toLowerCase() === text.toLowerCase() ? 0 : NaN;
    return { "=": order === 0, "!=": order !== 0, "<": order < 0, ">": order > 0, "<=": order <= 0, ">=": order >= 0 }[sign];
  };
}

/** Return whether a run is within the brushes of the parallel coordinates. */
function withinBrushes(run) {
  return Object.entries(state.brushes).every(([key, intervals]) => {
    const column = columns.find((c) => c.key === key);
    if (!column || !intervals.length) return true;
    const value = axisValue(column, run);
    return value !== null && intervals.some(([low, high]) => low <= value && value <= high);
  });
}

/** Return the runs of the chosen sweep. Columns and axes are those that differ among them, so that filters do not move them. */
function scopedRuns() {
  return data.runs.filter((run) => !state.sweep || (data.sweeps[run.sweep]?.path ?? "-") === state.sweep);
}

/** Return the runs that all filters but the brushes keep. */
function filterRuns(scope) {
  const tests = state.text.split(/\s+/).filter(Boolean).map(wordTest);
  return scope.filter((run) => (!state.status || run.status === state.status) && tests.every((test) => test(run)));
}

/** Compare values of a column: numbers by size, texts as `compareTexts` does, and nothing last, in both directions. */
function compare(a, b, down) {
  const empty = (value) => value === undefined || value === "" || value === null;
  if (empty(a) || empty(b)) return empty(a) - empty(b);
  const order = typeof a === "number" && typeof b === "number" ? a - b : compareTexts(String(a), String(b));
  return down ? -order : order;
}

/** Compare texts by their characters, but numbers in them by size: lr=0.02 is before lr=0.1. */
function compareTexts(a, b) {
  const [one, two] = [a, b].map((text) => text.split(/(\d+(?:\.\d+)?(?:e-\d+)?)/));
  for (let i = 0; i < Math.min(one.length, two.length); i++) {
    const order = i % 2 ? one[i] - two[i] : one[i].localeCompare(two[i], "en");
    if (order) return order;
  }
  return one.length - two.length;
}

/** Return runs in the order of the table: by the chosen column, or the best monitored score first. */
function sortRuns(runs) {
  const column = columns.find((c) => c.key === state.sort);
  if (column) return [...runs].sort((a, b) => compare(column.get(a), column.get(b), state.down));
  return [...runs].sort((a, b) => compare(a.monitor, b.monitor, false) || compareScores(a, b));
}

/** Compare the monitored scores of two runs, the better one first. */
function compareScores(a, b) {
  return compare(a.last[a.monitor], b.last[b.monitor], !data.metrics[a.monitor]?.smaller);
}

let columns, labels;

/** Derive what the data of the page imply; call it whenever they change. */
function prepare() {
  data.runs.forEach((run, index) => {
    run.index = index;
    for (const kind of ["curves", "axes"]) run[kind] = run[kind].map((curve) => curve && [data.epochs[curve[0]], curve[1]]);
  });
  columns = makeColumns();
  labels = new Map(columns.filter((column) => column.param).map((column) => [column.key, column.label]));
  data.groups = data.groups.map(shortText);
  const searched = columns.filter((column) => column.metric === undefined && column.key !== "seconds");
  for (const run of data.runs) {
    run.haystack = [run.path, run.error, ...searched.map((column) => show(column.get(run)))].join("\n").toLowerCase();
  }
  for (const column of columns) {
    // Positions of texts on an axis.
    column.categories = column.number ? null : [...new Set(data.runs.map((run) => show(column.get(run))))].sort((a, b) => compare(a, b, false));
  }
}

/** Return the position of a run on the axis of a column; null if it has none. */
function axisValue(column, run) {
  const value = column.get(run);
  if (column.number) return typeof value === "number" ? value : null;
  return column.categories.indexOf(show(value));
}
