// The table of runs, the controls above it, and the tiles at the top.

const ROWS = 200; // until the user asks for all

/** Show the tiles: the number of runs by status, and the best score. */
function showTiles(runs) {
  const tile = (label, value, note) => el("div", {}, el("dt", {}, label), el("dd", {}, value, note && el("span", {}, note)));
  const counts = STATUSES.map((status) => [status, runs.filter((run) => run.status === status).length]);
  // Scores on different data, for example, cannot be compared. The best one is chosen among the largest set of
  // comparable runs.
  const kinds = new Map();
  for (const run of runs.filter((one) => one.last[one.monitor] != null)) {
    kinds.set(run.comparable, [...kinds.get(run.comparable) ?? [], run]);
  }
  const most = [...kinds.values()].sort((a, b) => b.length - a.length)[0] ?? [];
  const best = [...most].sort(compareScores)[0];
  const among = kinds.size > 1 ? `, best of ${amount(most.length, "comparable run")} on ${best.data || "the same data"}` : "";
  fill("tiles",
    tile("runs", runs.length.toLocaleString("en"), runs.length < data.runs.length ? `of ${data.runs.length.toLocaleString("en")}` : ""),
    counts.filter(([status, count]) => count || status === "finished").map(([status, count]) => tile(status, count.toLocaleString("en"))),
    best ? tile(`best last ${data.metrics[best.monitor].key}`, showScore(best.last[best.monitor]), best.name + among) : tile("best score", "none"));
}

/** Fill the controls with the sweeps, statuses and metrics in the data. */
function showControls() {
  const option = (value, text) => el("option", { value }, text);
  fill("sweep", option("", "All sweeps and runs"), data.sweeps.map((sweep) => option(sweep.path, sweep.name)),
    data.runs.some((run) => run.sweep < 0) && option("-", "Single runs"));
  fill("status", option("", "Any status"), STATUSES.filter((s) => data.runs.some((run) => run.status === s)).map((s) => option(s, s)));
  fill("metric", data.metrics.map((metric) => option(metric.key, metric.key)));
  if (document.activeElement !== $("text")) $("text").value = state.text; // unless the user is typing
  for (const id of ["sweep", "status", "mode", "band", "scale", "axis", "smooth", "image"]) {
    $(id).value = state[id];
    if ($(id).selectedIndex < 0) $(id).value = state[id] = DEFAULTS[id];
  }
}

/** Show each brush as a button that removes it, also for users without a mouse. */
function showBrushes() {
  const chips = Object.entries(state.brushes).filter(([, intervals]) => intervals.length).map(([key, intervals]) => {
    const column = columns.find((c) => c.key === key);
    if (!column) return null;
    const ends = intervals.map(([low, high]) => column.number ? `${show(+low.toPrecision(3))} to ${show(+high.toPrecision(3))}`
      : column.categories.filter((_, i) => low <= i && i <= high).map((text) => text || "unset").join(", ") || "nothing");
    const remove = () => { delete state.brushes[key]; update({ axes: true }); };
    return el("button", { type: "button", class: "chip", onclick: remove, "aria-label": `Remove the filter ${column.label}: ${ends}` },
      `${column.label}: ${ends.join(" or ")} ×`);
  });
  fill("chips", chips);
}

/** Show the list of columns to choose from. */
function showChooser(shown) {
  const box = (column) => el("label", { title: column.title },
    el("input", {
      type: "checkbox", checked: shown.includes(column), disabled: column.key === "run", "data-key": `column ${column.key}`,
      onchange: (event) => {
        const keys = shown.map((c) => c.key);
        state.columns = event.target.checked ? [...keys, column.key] : keys.filter((key) => key !== column.key);
        update();
      },
    }), column.label);
  const back = el("button", { type: "button", onclick: () => { state.columns = null; update(); } }, "Show columns that vary");
  fill("columns", columns.map(box), back);
}

/** Return the least important column, which a table that is too wide can hide. */
function leastColumn(shown) {
  const spare = [(c) => c.key === "tags", (c) => c.which === "best", (c) => c.key === "sweep", (c) => c.key === "epochs", (c) => c.param, (c) => c.key === "seconds"];
  return spare.map((test) => shown.findLast(test)).find(Boolean);
}

/** Show the table of runs. Columns that do not fit are hidden, unless the user chose columns or uses a phone. */
function showTable(runs, colors) {
  const wanted = shownColumns(current.scope), box = $("head").closest(".window");
  let shown = wanted, least;
  drawTable(runs, colors, shown);
  while (!state.columns && innerWidth > 720 && box.scrollWidth > box.clientWidth && (least = leastColumn(shown))) {
    shown = shown.filter((column) => column !== least);
    drawTable(runs, colors, shown);
  }
  showChooser(shown);
  $("spared").textContent = shown.length < wanted.length ? `Columns (${wanted.length - shown.length} more vary)` : "Columns";
}

/** Draw the table of runs in the order of the sorted column. */
function drawTable(runs, colors, shown) {
  const sort = (column) => () => {
    const first = column.number && !column.smaller;
    state.down = state.sort === column.key ? !state.down : first;
    state.sort = column.key;
    update();
  };
  const all = runs.length > 0 && runs.every((run) => current.selected.has(run.path));
  const selectAll = el("input", {
    type: "checkbox", "aria-label": "Select all runs of the table", checked: all, "data-key": "all",
    onchange: (event) => select(runs.map((run) => run.path), event.target.checked),
  });
  const head = shown.map((column) => {
    const sorted = state.sort === column.key;
    return el("th", { scope: "col", class: column.number ? "number" : "", "aria-sort": sorted ? (state.down ? "descending" : "ascending") : "none" },
      el("button", { type: "button", title: column.title, onclick: sort(column), "data-key": `sort ${column.key}` },
        column.label, el("span", { "aria-hidden": "true" }, sorted ? (state.down ? " ▼" : " ▲") : "")));
  });
  const few = state.all ? runs : runs.slice(0, ROWS);
  const rows = few.map((run) => {
    const chosen = current.selected.has(run.path);
    const mark = colors.get(run.path);
    return el("tr", { class: chosen ? "chosen" : "", "data-path": run.path },
      el("td", { class: "pick" }, el("label", {},
        el("input", { type: "checkbox", checked: chosen, "aria-label": `Select ${run.name}`, "data-key": run.path, onchange: (event) => select([run.path], event.target.checked) }),
        swatch(mark))),
      shown.map((column) => cell(column, run)));
  });
  fill("head", el("tr", {}, el("th", { class: "pick" }, selectAll), head));
  fill("rows", rows.length ? rows : el("tr", {}, el("td", { colspan: shown.length + 1, class: "soft" }, data.runs.length ? "No run matches the filters." : "No runs yet.")));
  fill("more", runs.length > few.length
    && el("button", { type: "button", onclick: () => { state.all = true; update(); } }, `Show all ${amount(runs.length, "run")}`));
  $("count").textContent = `${amount(runs.length, "run")}${runs.length < data.runs.length ? ` of ${data.runs.length.toLocaleString("en")}` : ""}, ${current.selected.size} selected`;
}

function cell(column, run) {
  const value = column.get(run);
  if (column.key === "run") return el("th", { scope: "row", title: `${run.name}\n${run.path}` }, link(run.report, run.name));
  if (column.key === "status") return el("td", {}, el("span", { class: `status ${run.status}`, title: run.error || run.stopped }, run.status));
  if (column.number) return el("td", { class: "number" }, column.metric !== undefined ? showScore(value) : (column.format ?? show)(value));
  return el("td", { title: show(value) }, show(value));
}

// Where a spreadsheet would run a cell as a formula, as in augment/support/formatting.py. An apostrophe prevents this.
const FORMULA = /(?:^|(?<=[;,|\t\r\n]))(?=[\s"']{0,9}[=+\-@\uff1d\uff0b\uff0d\uff20]|[\t\r])/g;

/** Save all runs of the table as CSV, in its order. */
function saveTable() {
  const shown = shownColumns(current.scope);
  const cell = (value) => {
    if (typeof value === "number") return String(value);
    return `"${show(value).replace(FORMULA, "'").replaceAll('"', '""')}"`;
  };
  const rows = [["path", ...shown.map((column) => column.key)], ...current.runs.map((run) => [run.path, ...shown.map((column) => column.get(run))])];
  const file = new Blob([rows.map((row) => row.map(cell).join(",") + "\r\n").join("")], { type: "text/csv" });
  el("a", { href: URL.createObjectURL(file), download: `${data.title}.csv` }).click();
}

/** Return a dash with the color and pattern of a run's curve. */
function swatch(i) {
  const style = i === undefined ? "" : `border-top-color:${series(i)};border-top-style:${dash(i)}`;
  return el("i", { class: "swatch", style, "aria-hidden": "true" });
}

/** Select or deselect runs. */
function select(paths, chosen) {
  const selected = new Set(state.selected);
  for (const path of paths) chosen ? selected.add(path) : selected.delete(path);
  state.selected = [...selected];
  update();
}
