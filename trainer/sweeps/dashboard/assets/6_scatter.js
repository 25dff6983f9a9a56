// The history of a search, and a scatter plot of any two columns, colored by a third.

const PARTS = { trial: ["trials", "circle"], pruned: ["pruned", "emptyCircle"], finalist: ["finalists", "diamond"], job: ["confirmations", "triangle"] };

const TOP = () => ({ nameLocation: "end", nameGap: 12, nameTextStyle: { color: color("--soft"), align: "left", padding: [0, 0, 0, -20] } });

/** Return the common look of the charts on this page that show points. */
function plain() {
  const axis = (name) => ({ name, nameLocation: "middle", nameTextStyle: { color: color("--soft") }, axisLabel: { color: color("--soft") }, axisLine: { lineStyle: { color: color("--line") } }, splitLine: { lineStyle: { color: color("--line") } } });
  return [axis, {
    animation: false, textStyle: { color: color("--ink"), fontFamily: getComputedStyle(document.body).fontFamily },
    grid: { left: 8, right: 20, top: 34, bottom: 34, containLabel: true },
    tooltip: { trigger: "item", confine: true, backgroundColor: color("--card"), borderColor: color("--line"), textStyle: { color: color("--ink") }, formatter: ({ data: point }) => point.tip && el("div", { class: "tip" }, ...point.tip()) },
  }];
}

/** Show the scores of a search in the order of its jobs, and the best trial so far. */
function showHistory(runs) {
  const searches = data.sweeps.filter((sweep, i) => runs.some((run) => run.sweep === i && run.part === "trial"));
  $("history-section").hidden = !searches.length;
  if (!searches.length) return;
  const sweep = searches.find(({ path }) => path === state.searched) ?? searches[0];
  fill("searched", searches.map(({ path, name }) => el("option", { value: path }, name)));
  $("searched").value = sweep.path;
  const jobs = runs.filter((run) => data.sweeps[run.sweep] === sweep).sort((a, b) => a.order - b.order);
  const monitor = jobs.find((run) => run.monitor >= 0)?.monitor ?? 0, metric = data.metrics[monitor];
  const points = jobs.map((run, i) => ({
    part: run.part === "trial" && run.status === "pruned" ? "pruned" : run.part, value: [i + 1, run.last[monitor]],
    tip: () => [el("b", {}, run.name), el("div", {}, `${metric.key} ${showScore(run.last[monitor])}, ${run.status}`)],
  })).filter((point) => point.value[1] != null);
  let best = null;
  const line = points.filter(({ part }) => part === "trial").map(({ value: [x, y] }) => [x, best = best === null ? y : metric.smaller ? Math.min(best, y) : Math.max(best, y)]);
  const [axis, look] = plain();
  const shown = Object.keys(PARTS).filter((part) => points.some((point) => point.part === part));
  charts.history.resize(); // it may have been hidden before
  charts.history.setOption({
    ...look, legend: { type: "scroll", bottom: 0, textStyle: { color: color("--soft") }, inactiveColor: color("--line") }, grid: { ...look.grid, bottom: 62 },
    xAxis: { type: "value", minInterval: 1, min: 0, nameGap: 26, ...axis("job of the search"), splitLine: { show: false } },
    yAxis: { type: "value", scale: true, ...axis(`last ${metric.key}`), ...TOP() },
    series: [
      { type: "line", name: "best trial so far", step: "end", data: line, showSymbol: false, silent: true, lineStyle: { color: series(0), width: 2 }, itemStyle: { color: series(0) } },
      ...shown.map((part, i) => ({ type: "scatter", name: PARTS[part][0], symbol: PARTS[part][1], symbolSize: part === "pruned" ? 6 : 9, itemStyle: { color: series([0, 6, 1, 2][Object.keys(PARTS).indexOf(part)]) }, data: points.filter((point) => point.part === part) })),
    ],
  }, { notMerge: true });
  $("history").setAttribute("aria-label", `${metric.key} of ${amount(points.length, "job")} in their order. The best trial reached ${showScore(line.at(-1)?.[1])}`);
}

/** Show a scatter plot of two columns, colored by a third. */
function showScatter(runs) {
  const usable = columns.filter((column) => column.key !== "run" && column.key !== "tags" && (column.number || column.categories.length <= 20) && (varies(column, current.scope) || column.metric !== undefined));
  const scores = axisColumns(current.scope).filter((column) => column.metric !== undefined), settings = varyingParams(current.scope);
  const pick = (id, otherwise) => {
    fill(id, usable.map((column) => el("option", { value: column.key }, column.label)));
    const found = usable.find((column) => column.key === state[id]) ?? otherwise ?? usable[0];
    if (found) $(id).value = found.key;
    return found;
  };
  const time = usable.find((column) => column.key === "seconds");
  const [x, y, hue] = [pick("across", settings[0] ?? time), pick("up", scores[0]), pick("hue", settings[1] ?? time)];
  $("scatter-card").classList.toggle("none", !(x && y && hue));
  if (!(x && y && hue)) return;
  const known = runs.filter((run) => [x, y].every((column) => (column.number ? axisValue(column, run) !== null : true)));
  const [share, legend] = colorScale(known.map((run) => hue.get(run)).filter((value) => typeof value === "number"), hue.label, { log: axisScale(hue, current.scope).type === "log", format: hue.format });
  const text = (column, run) => (column.number ? (column.format ?? show)(column.get(run)) : show(column.get(run)));
  const used = hue.number ? [] : hue.categories.filter((name) => known.some((run) => show(hue.get(run)) === name));
  fill("scatter-scale", hue.number ? legend : used.map((name, i) => el("span", { class: "soft small" }, el("i", { class: "dot", style: `background:${series(i)}` }), name || "unset")));
  const [axis, look] = plain();
  const side = (column, gap) => ({ ...axis(column.label), ...axisScale(column, current.scope), nameGap: gap, axisLabel: { color: color("--soft"), hideOverlap: true, interval: 0, formatter: (v) => (column.number ? (column.format ?? ((n) => show(+(+n).toPrecision(4))))(+v) : shorten(v) || "unset") } });
  charts.scatter.setOption({
    ...look, xAxis: { ...side(x, 26), splitLine: { show: false } }, yAxis: { ...side(y, 12), ...TOP() },
    series: [{ type: "scatter", symbolSize: known.length > 200 ? 7 : 10, data: known.map((run) => ({
      value: [x, y].map((column) => (column.number ? axisValue(column, run) : show(column.get(run)))), path: run.path,
      itemStyle: { color: hue.number ? ramp(share(hue.get(run))) : series(used.indexOf(show(hue.get(run)))), borderColor: color("--ink"), borderWidth: current.selected.has(run.path) ? 2 : 0.3 },
      tip: () => [el("b", {}, run.name), ...[x, y, hue].map((column) => el("div", {}, `${column.label} ${text(column, run)}`))],
    })) }],
  }, { notMerge: true });
  $("scatter").setAttribute("aria-label", `${y.label} over ${x.label} of ${amount(known.length, "run")}, colored by ${hue.label}`);
}
