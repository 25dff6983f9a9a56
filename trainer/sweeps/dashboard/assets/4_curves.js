// Curves of the selected runs or groups, with bands over replicates.

/** Return the runs or groups to draw: the selected ones, or the best ones if none is selected. */
function curveItems(runs) {
  const drawn = (run) => run.curves[metricIndex()];
  const chosen = data.runs.filter((run) => current.selected.has(run.path));
  const from = sortRuns((chosen.length ? chosen : runs).filter(drawn));
  let items = from.map((run) => ({ key: run.path, name: run.name, runs: [run] }));
  if (state.mode === "groups") {
    const groups = new Map(from.map((run) => [run.group, null]));
    items = [...groups.keys()].map((group) => {
      const members = (chosen.length ? data.runs : runs).filter((run) => run.group === group && drawn(run));
      const finished = new Set(members.filter((run) => run.status === "finished").map((run) => run.replicate));
      const counted = members.filter((run) => run.status === "finished" || !finished.has(run.replicate));
      const joined = members.length > new Set(members.map((run) => run.replicate)).size;
      return { key: String(group), name: data.groups[group], runs: counted, joined };
    });
    items.sort(compareMeans);
  }
  return { items: items.slice(0, chosen.length ? MOST : 6), total: items.length, chosen: chosen.length > 0 };
}

function compareMeans(a, b) {
  const score = (item) => {
    const values = perReplicate(item.runs, (run) => run.last[run.monitor]);
    return values.length ? mean(values) : null;
  };
  return compare(score(a), score(b), !data.metrics[a.runs[0].monitor]?.smaller);
}

function metricIndex() {
  const i = data.metrics.findIndex((metric) => metric.key === state.metric);
  return i >= 0 ? i : Math.max(0, data.runs.find((run) => run.monitor >= 0)?.monitor ?? 0);
}

// Two-sided 95% quantiles of Student's t for 1, 2, ... degrees of freedom.
const T = [12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.16, 2.145, 2.131, 2.12, 2.11, 2.101, 2.093, 2.086];

/** Return the value of a curve at an epoch, interpolated between its points. Null before the first and after the last. */
function valueAt([epochs, values], epoch) {
  const next = epochs.findIndex((other) => other >= epoch);
  if (next < 0 || (next === 0 && epochs[0] > epoch)) return null;
  if (epochs[next] === epoch) return values[next];
  const share = (epoch - epochs[next - 1]) / (epochs[next] - epochs[next - 1]);
  return values[next - 1] + share * (values[next] - values[next - 1]);
}

const AXES = ["epoch", "step", "training time", "images"];

/** Return the points of `pointsOf`, smoothed, each with its position on the x axis. */
function points(item) {
  const axis = +state.axis - 1, weight = +state.smooth, sums = [0, 0, 0];
  return pointsOf(item).map(([epoch, ...values]) => {
    const at = axis < 0 ? [epoch] : item.runs.map((run) => run.axes[axis] && valueAt(run.axes[axis], epoch)).filter((value) => value !== null);
    return [epoch, ...values, at.length ? mean(at) : null];
  }).filter((p) => p[5] !== null).map((p, n) => {
    // An exponential moving average, with the bias toward 0 at its start removed.
    for (let i = 0; i < 3; i++) p[i + 1] = (sums[i] = weight * sums[i] + (1 - weight) * p[i + 1]) / (1 - weight ** (n + 1));
    return p;
  });
}

/** Return the points of an item: epoch, mean, both ends of the band, and the number of replicates that reached the epoch. */
function pointsOf(item) {
  const metric = metricIndex();
  const epochs = [...new Set(item.runs.flatMap((run) => run.curves[metric][0]))].sort((a, b) => a - b);
  return epochs.map((epoch) => {
    const values = perReplicate(item.runs, (run) => valueAt(run.curves[metric], epoch));
    const center = mean(values), n = values.length;
    if (state.band === "range") return [epoch, center, Math.min(...values), Math.max(...values), n];
    const spread = Math.sqrt(sum(values.map((value) => (value - center) ** 2)) / Math.max(1, n - 1));
    const half = n > 1 ? ((T[n - 2] ?? 1.96) * spread) / Math.sqrt(n) : 0;
    const inside = data.metrics[metric].share ? (value) => Math.min(1, Math.max(0, value)) : (value) => value;
    return [epoch, center, inside(center - half), inside(center + half), n];
  });
}

/** Draw the curves. Return the index of the color of each drawn run. */
function showCurves(runs) {
  const { items, total, chosen } = curveItems(runs);
  const metric = data.metrics[metricIndex()];
  $("metric").value = metric?.key ?? "";
  const lines = items.map((item, i) => ({ item, i, data: points(item) }));
  const ink = color("--ink"), soft = color("--soft"), line = color("--line");
  const ends = lines.flatMap(({ data: all }) => all.flatMap((p) => [p[2], p[3]]));
  const positive = ends.filter((value) => value > 0);
  const log = state.scale === "log" && positive.length > 0;
  const least = log ? Math.min(...positive) : -Infinity, most = Math.max(...positive);
  const scale = log ? { type: "log", logBase: most / least < 100 ? 2 : 10, min: least, max: most } : { type: "value", scale: true, min: extent(ends)[0], max: extent(ends)[1] };
  const band = ({ item, i, data: all }) => ({
    type: "custom", name: item.name, silent: true, z: 1, data: all.length ? [[all[0][5], 0]] : [], clip: true,
    renderItem: (_, api) => ({
      type: "polygon", style: { fill: series(i), opacity: 0.16 },
      shape: { points: [...all.map((p) => api.coord([p[5], Math.max(p[3], least)])), ...all.toReversed().map((p) => api.coord([p[5], Math.max(p[2], least)]))] },
    }),
    encode: { x: 0, y: [] },
  });
  charts.curves.setOption({
    animation: false, textStyle: { color: ink, fontFamily: getComputedStyle(document.body).fontFamily },
    grid: { left: 8, right: 16, top: 12, bottom: 34, containLabel: true },
    xAxis: { type: "value", name: AXES[state.axis], nameLocation: "middle", nameGap: 26, min: ({ min, max }) => (min === max ? min - 1 : min), max: ({ min, max }) => (min === max ? max + 1 : max), minInterval: 1,
      nameTextStyle: { color: soft }, axisLabel: { color: soft, hideOverlap: true, showMinLabel: true, formatter: showAxis }, axisLine: { lineStyle: { color: line } }, splitLine: { show: false } },
    yAxis: { ...scale, axisLabel: { color: soft, formatter: (v) => show(+v.toPrecision(6)) }, splitLine: { lineStyle: { color: line } } },
    tooltip: { trigger: "axis", confine: true, backgroundColor: color("--card"), borderColor: line, textStyle: { color: ink }, formatter: (all) => curveTip(all, lines) },
    series: [
      ...lines.filter(({ item }) => item.runs.length > 1).map(band),
      ...lines.map(({ item, i, data: all }) => ({
        type: "line", name: item.name, z: 2, data: all.map((p) => [p[5], log && p[1] <= 0 ? null : p[1]]), showSymbol: all.length < 2, symbolSize: 7, symbol: "circle",
        lineStyle: { color: series(i), type: dash(i), width: 2 }, itemStyle: { color: series(i) }, emphasis: { disabled: true },
      })),
    ],
  }, { notMerge: true });
  const counted = (all) => { // a run that ended early counts only in its own epochs
    const counts = all.map((p) => p[4]), least = Math.min(...counts), most = Math.max(...counts);
    return least < most ? `${least} to ${most}` : most;
  };
  fill("legend", lines.map(({ item, i, data: all }) => el("li", { title: item.runs.map((run) => run.path).join("\n") }, swatch(i),
    el("span", {}, item.name, item.runs.length > 1 && el("span", { class: "soft" }, ` n = ${counted(all)}`)))));
  const kind = state.mode === "groups" ? ["group", "groups"] : ["run", "runs"];
  const best = items.length < total ? `The best ${items.length} of ${amount(total, ...kind)}. To choose others, select runs in the table.` : `All ${kind[1]} in the table.`;
  const what = state.mode === "runs" ? "" : state.band === "range" ? " Bands: minimum to maximum over replicates." : " Bands: 95% interval of the mean over replicates (Student's t).";
  const drawn = lines.some(({ data: all }) => all.length);
  $("curves-note").textContent = !total ? "No run in the table has finished an epoch." : !drawn ? `These runs did not record their ${AXES[state.axis]}.`
    : (chosen ? (total > items.length ? `The first ${items.length} of ${total} selected ${kind[1]}.` : "The selected runs.") : best) + what + (items.some((item) => item.joined) ? " Each seed or fold counts once, with the mean of its finished runs." : "");
  $("curves").setAttribute("aria-label", `${metric?.key ?? ""} over ${AXES[state.axis]}: ${lines.map(({ item, data: all }) => `${item.name} ends at ${showScore(all.at(-1)?.[1])}`).join("; ")}`);
  return new Map(lines.flatMap(({ item, i }) => item.runs.map((run) => [run.path, i])));
}

/** Format a position on the x axis. */
function showAxis(value) {
  return state.axis === "2" ? (value < 60 ? `${+value.toPrecision(3)} s` : duration(value)) : Math.round(value).toLocaleString("en");
}

/** Return a range of round numbers that contains the values. Two nulls without values. */
function extent(values) {
  if (!values.length) return [null, null];
  const low = Math.min(...values), high = Math.max(...values);
  const rough = (high - low) / 5 || Math.abs(high) / 5 || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= rough) * power;
  return [Math.floor(low / step) * step, Math.ceil(high / step) * step];
}

/** Return the tooltip as nodes, in which names are only text. */
function curveTip(all, lines) {
  const x = all[0]?.axisValue;
  const rows = lines.map(({ item, i, data: line }) => ({ item, i, at: +state.axis ? line.findLast((p) => p[5] <= x) : line.find((p) => p[0] === x) })).filter((row) => row.at)
    .sort((a, b) => compare(a.at[1], b.at[1], true));
  return el("div", { class: "tip" }, el("b", {}, `${AXES[state.axis]} ${showAxis(x)}`), rows.map(({ item, i, at }) =>
    el("div", {}, swatch(i), el("span", { class: "name" }, item.name), el("span", {}, showScore(at[1]) + (item.runs.length > 1 ? ` (${showScore(at[2])} to ${showScore(at[3])})` : "")))));
}
