// The columns of the table, and the filters.

const STATUSES = ["finished", "running", "planned", "pruned", "interrupted", "killed", "failed"];
const MOST_COLUMNS = 8; // of settings, unless the user chooses more

/** Return all columns. Each has a key, label and title, a function for a run's value, and whether it is a number. */
function makeColumns() {
  const names = [
    { key: "run", label: "run", title: "name of the run, or of its folder", get: (run) => run.name },
    { key: "status", label: "status", title: "whether the run has finished", get: (run) => run.status },
  ];
  const groups = [
    { key: "sweep", label: "sweep", title: "sweep of the run", get: (run) => data.sweeps[run.sweep]?.name ?? "" },
    { key: "dataset", label: "dataset", title: "dataset of the run. Scores on different datasets cannot be compared", get: (run) => run.data },
    { key: "tags", label: "tags", title: "run.tags", get: (run) => run.tags.join(" ") },
  ];
  const scores = data.metrics.flatMap((metric, i) =>
    ["last", "best"].map((which) => ({
      key: `${which}.${metric.key}`, label: `${which} ${metric.key}`, metric: i, which, smaller: metric.smaller, number: true,
      title: which === "last" ? `${metric.key} of the last epoch` : `${metric.key} of the best epoch. It is too optimistic, because the epoch was chosen by a score`,
      get: (run) => run[which][i] ?? undefined,
    })));
  const ends = [
    { key: "epochs", label: "epochs", title: "finished epochs", number: true, get: (run) => run.epochs },
    { key: "seconds", label: "time", title: "duration, counted since a run was last resumed", number: true, format: duration, get: (run) => run.seconds ?? undefined },
    { key: "started", label: "started", title: "start time", get: (run) => run.started },
  ];
  const short = shortNames(data.params.map((param) => param.key), [...names, ...groups, ...ends].map((column) => column.label));
  const params = data.params.map((param, i) => ({
    key: param.key, label: short[i], title: param.key, param: true, given: param.given, number: isNumeric(param.values),
    get: (run) => param.values[param.codes[run.index]],
  }));
  return [...names, ...scores, ...groups, ...params, ...ends];
}

/** Return whether values are numbers or null. */
function isNumeric(values) {
  return values.some((value) => value !== null) && values.every((value) => value === null || typeof value === "number");
}

/** Shorten keys as in the names of runs, unless two would become equal or a label is already used. */
function shortNames(keys, taken) {
  const count = new Map(taken.map((label) => [label, 1]));
  for (const key of keys) count.set(shortKey(key), (count.get(shortKey(key)) ?? 0) + 1);
  return keys.map((key) => (count.get(shortKey(key)) === 1 ? shortKey(key) : key));
}

const shortKey = (key) => key.split(".").slice(1).slice(-2).join(".") || key;

/** Shorten the full keys in a text as in the table: fit.lr=0.1 becomes lr=0.1. Short keys stay unchanged. */
function shortText(text) {
  return text.replace(/(?<![\w.])(?:aug|callbacks|data|fit|hydra|model|run)(?:\.\w+)+(?==)/g, (key) => labels.get(key) ?? shortKey(key));
}

/** Return whether runs differ in a column. */
function varies(column, runs) {
  const first = runs.length ? column.get(runs[0]) : undefined;
  return runs.some((run) => column.get(run) !== first);
}

/** Return the columns to show for some runs: the chosen ones, or those that vary and the monitored scores. */
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

/** Return the settings in which runs differ, only those of command lines if there are any. */
function varyingParams(runs) {
  const found = columns.filter((column) => column.param && varies(column, runs));
  const given = found.filter((column) => column.given);
  return (given.length ? given : found).slice(0, MOST_COLUMNS);
}

const COMPARISON = /^([\w.\-]+)(<=|>=|!=|=|<|>)(.*)$/;

/** Return a test of a run for a word of the text filter: a comparison such as `key<value`, or a text in any cell. */
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

/** Return whether the brushes of the parallel coordinates contain a run. */
function withinBrushes(run) {
  return Object.entries(state.brushes).every(([key, intervals]) => {
    const column = columns.find((c) => c.key === key);
    if (!column || !intervals.length) return true;
    const value = axisValue(column, run);
    return value !== null && intervals.some(([low, high]) => low <= value && value <= high);
  });
}

/** Return the runs of the chosen sweep. They determine the columns and axes, so that filters do not change those. */
function scopedRuns() {
  return data.runs.filter((run) => !state.sweep || (data.sweeps[run.sweep]?.path ?? "-") === state.sweep);
}

/** Return the runs that match all filters except the brushes. */
function filterRuns(scope) {
  const tests = state.text.split(/\s+/).filter(Boolean).map(wordTest);
  return scope.filter((run) => (!state.status || run.status === state.status) && tests.every((test) => test(run)));
}

/** Compare values of a column: numbers by size, texts with `compareTexts`. Missing values are last in both directions. */
function compare(a, b, down) {
  const empty = (value) => value === undefined || value === "" || value === null;
  if (empty(a) || empty(b)) return empty(a) - empty(b);
  const order = typeof a === "number" && typeof b === "number" ? a - b : compareTexts(String(a), String(b));
  return down ? -order : order;
}

/** Compare texts by their characters, but the numbers in them by size: lr=0.02 comes before lr=0.1. */
function compareTexts(a, b) {
  const [one, two] = [a, b].map((text) => text.split(/(\d+(?:\.\d+)?(?:e-\d+)?)/));
  for (let i = 0; i < Math.min(one.length, two.length); i++) {
    const order = i % 2 ? one[i] - two[i] : one[i].localeCompare(two[i], "en");
    if (order) return order;
  }
  return one.length - two.length;
}

/** Sort runs as in the table: by the chosen column, or with the best monitored score first. */
function sortRuns(runs) {
  const column = columns.find((c) => c.key === state.sort);
  if (column) return [...runs].sort((a, b) => compare(column.get(a), column.get(b), state.down));
  return [...runs].sort((a, b) => compare(a.monitor, b.monitor, false) || compareScores(a, b));
}

/** Compare the monitored scores of two runs. The better one comes first. */
function compareScores(a, b) {
  return compare(a.last[a.monitor], b.last[b.monitor], !data.metrics[a.monitor]?.smaller);
}

let columns, labels;

/** Derive the columns, labels and search texts from the data of the page. Call this whenever the data changes. */
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
    // The positions of texts on an axis.
    column.categories = column.number ? null : [...new Set(data.runs.map((run) => show(column.get(run))))].sort((a, b) => compare(a, b, false));
  }
}

/** Return the position of a run on the axis of a column. Null if it has no value. */
function axisValue(column, run) {
  const value = column.get(run);
  if (column.number) return typeof value === "number" ? value : null;
  return column.categories.indexOf(show(value));
}
