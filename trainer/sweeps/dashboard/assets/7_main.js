// Draw the page, and draw it again after changes.

const charts = { curves: echarts.init($("curves")), parallel: echarts.init($("parallel")), history: echarts.init($("history")), scatter: echarts.init($("scatter")) };
const current = { scope: [], runs: [], selected: new Set(), axes: [] };

/** Draw everything that depends on the state. While the user brushes, the parallel coordinates stay unchanged. */
function update({ brushed = false } = {}) {
  const focused = document.activeElement?.dataset?.key;
  current.selected = new Set(state.selected);
  current.scope = scopedRuns();
  const filtered = filterRuns(current.scope);
  current.runs = sortRuns(filtered.filter(withinBrushes));
  const colors = showCurves(current.runs);
  showTiles(current.runs);
  showBrushes();
  showTable(current.runs, colors);
  if (!brushed) showParallel(filtered, colors);
  showHistory(filtered);
  showScatter(current.runs);
  showVerdicts(filtered);
  showImportance(filtered);
  showDifferences(current.runs);
  showPreviews(current.runs);
  showProblems(filtered);
  writeHash();
  // Give the focus back to an element that was created again.
  if (focused) document.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
}

/** Show new data. The state does not change. */
function take(next) {
  data = next;
  prepare();
  showControls();
  $("made").textContent = data.made + (data.omitted ? `, without the first ${amount(data.omitted, "run")}` : "");
  update();
}

function listen() {
  let waiting;
  $("text").addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => { state.text = $("text").value; update(); }, 120);
  });
  for (const id of ["sweep", "status", "metric", "mode", "band", "scale", "axis", "smooth", "ranked", "across", "up", "hue", "searched", "image"]) {
    $(id).addEventListener("change", () => { state[id] = $(id).value; update(); });
  }
  $("clear").addEventListener("click", () => { state.selected = []; update(); });
  $("save").addEventListener("click", saveTable);
  $("reset").addEventListener("click", () => { Object.assign(state, structuredClone(DEFAULTS)); showControls(); update(); });
  // A click on a row selects it, unless the click is on a link or a control.
  $("rows").addEventListener("click", (event) => {
    const row = event.target.closest("tr[data-path]");
    if (row && !event.target.closest("a, label, input") && !getSelection().toString()) select([row.dataset.path], !current.selected.has(row.dataset.path));
  });
  charts.scatter.on("click", ({ data: point }) => select([point.path], !current.selected.has(point.path)));
  charts.parallel.on("axisareaselected", onBrush);
  charts.parallel.on("rendered", paintBrushes);
  dark.addEventListener("change", () => update());
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return; // a phone only showed or hid its toolbars
    width = innerWidth;
    for (const chart of Object.values(charts)) chart.resize();
    update();
  });
}

/** Poll the server for new data. */
async function poll() {
  let version = document.body.dataset.version;
  for (;;) {
    await new Promise((done) => setTimeout(done, 2000));
    if (document.hidden) continue;
    try {
      const answer = await fetch("data.json", { headers: { "If-None-Match": version }, cache: "no-store" });
      if (answer.status === 200) {
        version = answer.headers.get("ETag");
        take(await answer.json());
      }
      $("live").textContent = "live";
    } catch {
      $("live").textContent = "the server does not respond";
    }
  }
}

listen();
take(data);
if (document.body.dataset.version) poll();
