// Parallel coordinates: each run is a line through its settings and its score. Dragging along an axis filters the table.

const MOST_AXES = 9;
const BRUSH_Z = 10000; // of ECharts

/** Return the columns of the axes: the settings in which runs differ, and their scores. */
function axisColumns(runs) {
  const monitored = [...new Set(runs.map((run) => run.monitor))].filter((i) => i >= 0);
  const scores = columns.filter((column) => column.which === "last" && monitored.includes(column.metric));
  // Seeds and folds have no meaningful order.
  const params = varyingParams(runs).filter((column) => !["seed", "data.fold"].includes(column.key));
  const axes = [...params.slice(0, MOST_AXES - scores.length), ...scores.slice(0, 3)];
  return axes.filter((column) => runs.filter((run) => axisValue(column, run) !== null).length > 1);
}

/** Draw the parallel coordinates. */
function showParallel(runs, colors) {
  const axes = axisColumns(current.scope);
  const usable = axes.length > 1;
  $("parallel-card").classList.toggle("none", !usable);
  $("parallel-note").textContent = usable
    ? "Drag along an axis to filter runs, and click the axis to remove the filter. Or type a filter such as " + example(axes) + " above the table."
    : "Too few axes: the runs differ only in seed and fold, or no metric scores two of them.";
  if (!usable) {
    fill("parallel-scale");
    charts.parallel.clear();
    return;
  }
  const upright = $("parallel").clientWidth >= 640;
  $("parallel").style.height = upright ? "" : `${64 + 84 * (axes.length - 1)}px`; // on a phone, each axis has a row
  charts.parallel.resize();
  const ink = color("--ink"), soft = color("--soft"), line = color("--line");
  const first = data.metrics[runs.find((run) => run.monitor >= 0)?.monitor ?? 0];
  const chosen = current.selected.size > 0;
  const scored = (run) => run.last[run.monitor] ?? null, sameScore = (run) => data.metrics[run.monitor] === first;
  const [share, legend] = colorScale(runs.filter(sameScore).map(scored).filter((value) => value !== null), `last ${first?.key}`, { smaller: first?.smaller, format: showScore });
  fill("parallel-scale", legend);
  const rows = runs.filter((run) => axes.some((column) => axisValue(column, run) !== null && column.number)).map((run) => {
    const marked = chosen && current.selected.has(run.path) && colors.get(run.path) !== undefined;
    return {
      name: run.path, value: axes.map((column) => (column.number ? axisValue(column, run) : show(column.get(run))) ?? "-"),
      lineStyle: marked ? { color: series(colors.get(run.path)), width: 3, opacity: 1 } : { color: ramp(sameScore(run) ? share(scored(run)) : null), width: 1.2, opacity: Math.max(0.35, Math.min(0.8, 20 / runs.length)) },
      order: marked ? 2 : sameScore(run) ? share(scored(run)) ?? -1 : -1,
    };
  }).sort((a, b) => a.order - b.order);
  current.axes = axes;
  charts.parallel.setOption({
    animation: false, textStyle: { color: ink, fontFamily: getComputedStyle(document.body).fontFamily },
    parallel: upright ? { left: 72, right: 72, top: 40, bottom: 22, layout: "horizontal" } : { left: 20, right: 24, top: 34, bottom: 30, layout: "vertical" },
    parallelAxis: axes.map((column, dim) => ({
      id: column.key, dim, name: column.label, nameLocation: upright ? "end" : "start", nameGap: upright ? 14 : 8, ...axisScale(column, current.scope),
      nameTextStyle: { color: ink, textBorderColor: color("--card"), textBorderWidth: 3, fontSize: 12, align: upright ? "center" : "left", verticalAlign: "bottom", padding: upright ? 0 : [0, 0, 10, 8] },
      nameTruncate: { maxWidth: upright ? Math.max(60, Math.min(dim % (axes.length - 1) ? Infinity : 140, $("parallel").clientWidth / axes.length - 14)) : 320 }, realtime: false,
      axisLine: { lineStyle: { color: soft } }, axisTick: { show: false }, axisLabel: { color: soft, fontSize: 11, hideOverlap: true, interval: 0, backgroundColor: color("--card"), padding: [1, 3], borderRadius: 3, ...(column.number ? { formatter: (v) => show(+(+v).toPrecision(4)) } : { formatter: (text) => shorten(text) || "unset" }) },
      areaSelectStyle: { width: 18, borderWidth: 1, borderColor: color("--brush"), color: color("--brush"), opacity: 0.3 },
    })),
    series: [{ type: "parallel", smooth: false, inactiveOpacity: 0.04, activeOpacity: 0.9, progressive: 0, silent: true, data: rows }],
  }, { notMerge: true });
  for (const [key, intervals] of Object.entries(state.brushes)) {
    const action = { type: "axisAreaSelect", parallelAxisId: key, intervals };
    if (axes.some((column) => column.key === key)) charts.parallel.dispatchAction(action, { silent: true });
  }
  if (Object.keys(state.brushes).length) charts.parallel.setOption({}); // draws the brushes
  $("parallel").setAttribute("aria-label", `Parallel coordinates of ${amount(runs.length, "run")} over ${axes.map((column) => column.label).join(", ")}. The table has the same values. Score: ${first?.key ?? ""}`);
}

/** Cut out the middle of a long name, because related names usually differ at the end. */
function shorten(text) {
  return text.length > 18 ? text.slice(0, 7) + "…" + text.slice(-10) : text;
}

function example(axes) {
  const column = axes.find((c) => c.number && c.param) ?? axes.find((c) => c.number);
  const values = column ? data.runs.map((run) => column.get(run)).filter((value) => typeof value === "number") : [];
  return column ? `${column.metric !== undefined ? data.metrics[column.metric].key : column.label}>${show(+mean(values).toPrecision(2))}` : "status=finished";
}

/** Return the type and range of an axis. It is logarithmic for positive numbers that span more than a factor of 50. */
function axisScale(column, runs) {
  if (!column.number) {
    return { type: "category", data: column.categories };
  }
  const values = runs.map((run) => axisValue(column, run)).filter((value) => value !== null);
  const low = Math.min(...values), high = Math.max(...values);
  // A search on a logarithmic scale has mostly small values.
  const middle = [...values].sort((a, b) => a - b)[values.length >> 1];
  if (column.param && low > 0 && high / low > 50 && middle < high / 4) {
    // By default, ECharts rounds a range of many decades to multiples of ten decades.
    return { type: "log", min: 10 ** Math.floor(Math.log10(low)), max: 10 ** Math.ceil(Math.log10(high)), splitNumber: 4 };
  }
  // With four intervals up to 1, ECharts would choose steps of 0.3 and end at 1.2.
  return { type: "value", scale: true, splitNumber: high === 1 ? 5 : 4, minInterval: values.every(Number.isInteger) ? 1 : 0 };
}

/** Color the restored brushes like the dragged ones, because ECharts does not. */
function paintBrushes() {
  for (const shape of charts.parallel.getZr().storage.getDisplayList(true)) {
    if (shape.type !== "rect" || shape.z !== BRUSH_Z || shape.style.fill === color("--brush") || !shape.style.fill) continue;
    shape.setStyle({ fill: color("--brush"), stroke: color("--brush"), lineWidth: 1, opacity: 0.3 });
  }
}

/** Update the state with the brushes of the chart. */
function onBrush() {
  const brushes = {};
  for (const axis of charts.parallel.getModel().queryComponents({ mainType: "parallelAxis" })) {
    const intervals = axis.activeIntervals.map((pair) => [...pair].sort((a, b) => a - b));
    if (intervals.length) brushes[axis.option.id] = intervals;
  }
  // Keep the brushes of axes that other filters hide.
  const hidden = Object.entries(state.brushes).filter(([key]) => !current.axes.some((column) => column.key === key));
  const next = { ...Object.fromEntries(hidden), ...brushes };
  if (JSON.stringify(next) === JSON.stringify(state.brushes)) return;
  state.brushes = next;
  update({ brushed: true });
}
