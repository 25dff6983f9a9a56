// The other panels: verdicts, importance, differences, previews and problems.

const MOST_COMPARED = 8;

/** Show the verdicts of the sweeps in the table. */
function showVerdicts(runs) {
  const sweeps = shownSweeps(runs).filter((sweep) => sweep.verdict);
  fill("verdicts", sweeps.map(({ name, verdict }) => el("div", { class: "card long" }, el("h3", {}, name),
    el("p", {}, shortText(verdict.lines[0])),
    el("ul", { class: "findings plain" }, verdict.lines.slice(1).map((text) => el("li", {}, shortText(text)))),
    verdict.rows.length > 0 && el("details", {}, el("summary", {}, `Means: ${verdict.title}`), el("div", { class: "scroll" }, table(verdict.head, verdict.rows.map((row) => row.map(shortText)), 1))))));
  $("verdicts-section").hidden = !sweeps.length;
}

/** Return the sweeps that runs belong to. */
function shownSweeps(runs) {
  const indices = new Set(runs.map((run) => run.sweep));
  return data.sweeps.filter((_, i) => indices.has(i));
}

/** Return a table of texts. After the first `left` columns, all texts are numbers. */
function table(head, rows, left) {
  const kind = (i) => (i < left ? "" : "number");
  return el("table", { class: "pairs" },
    el("thead", {}, el("tr", {}, head.map((text, i) => el("th", { scope: "col", class: kind(i) }, text)))),
    el("tbody", {}, rows.map((row) => el("tr", {}, row.map((text, i) => el("td", { class: kind(i) }, text))))));
}

/** Show the importance of each setting in one sweep. */
function showImportance(runs) {
  const sweeps = shownSweeps(runs).filter((sweep) => sweep.importance);
  $("importance-section").hidden = !sweeps.length;
  if (!sweeps.length) return;
  const sweep = sweeps.find(({ path }) => path === state.ranked) ?? sweeps[0];
  fill("ranked", sweeps.map(({ path, name }) => el("option", { value: path }, name)));
  $("ranked").value = sweep.path;
  const { rows, note } = sweep.importance;
  fill("importance", el("table", { class: "bars" },
    el("colgroup", {}, el("col", { class: "name" }), el("col"), el("col", { class: "share" })),
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "setting"), el("th", { scope: "col", colspan: 2 }, "importance"))),
    el("tbody", {}, rows.map(([key, share]) => el("tr", {}, el("th", { scope: "row", title: key }, labels.get(key) ?? key),
      el("td", { class: "bar" }, el("span", { class: "track" }, el("i", { style: `width:${100 * share}%` }))),
      el("td", { class: "share" }, share.toFixed(2)))))), el("p", { class: "soft small" }, note));
}

/** Show the differences between the selected runs: settings, then git revision and versions. */
function showDifferences(runs) {
  const chosen = data.runs.filter((run) => current.selected.has(run.path));
  const few = (chosen.length ? chosen : runs.length > 1 ? runs.slice(0, 2) : []).slice(0, MOST_COMPARED);
  const environment = (run) => data.environments[run.environment] ?? {};
  const facts = [...new Set(few.flatMap((run) => Object.keys(environment(run))))];
  const lines = [
    ...data.params.map((param) => [param.key, few.map((run) => show(param.values[param.codes[run.index]]))]),
    ...facts.map((name) => [name, few.map((run) => environment(run)[name] ?? "")]),
  ].filter(([, values]) => new Set(values).size > 1);
  $("differences-note").textContent = few.length < 2 ? "Select two or more runs in the table."
    : (chosen.length ? (chosen.length > few.length ? `The first ${few.length} of ${chosen.length} selected runs.` : "The selected runs.") : "The first two runs in the table. To compare others, select them.")
      + (lines.length ? "" : " They have the same configuration, git revision and versions.");
  fill("differences", few.length > 1 && lines.length > 0 && el("table", { class: "pairs differences" },
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "key"), few.map((run) => el("th", { scope: "col", title: run.path }, link(run.report, run.name))))),
    el("tbody", {}, lines.map(([key, values]) => el("tr", {}, el("th", { scope: "row" }, key), values.map((value) => el("td", {}, value || el("span", { class: "soft" }, "unset"))))))));
}

const IMAGES = ["First training batch", "Figure of the best epoch", "Most confident mistakes"];

/** Show the first training batch of each recipe, or other images, of the selected runs or the first runs in the table. */
function showPreviews(runs) {
  const chosen = data.runs.filter((run) => current.selected.has(run.path)), kind = +state.image;
  const recipes = new Map();
  for (const run of chosen.length ? chosen : runs) {
    const index = run.images[kind];
    if (index >= 0) recipes.set(index, [...(recipes.get(index) ?? []), run]);
  }
  const shown = [...recipes].slice(0, chosen.length ? 12 : 4);
  fill("previews", shown.map(([i, users]) => {
    const { source, file } = data.images[i];
    const names = (kind ? users[0].name : data.groups[users[0].group]) + (users.length > 1 ? ` and ${users.length - 1} more` : "");
    return el("figure", { class: "card" },
      source.startsWith("data:image/webp;base64,") ? el("img", { class: "photo", src: source, width: data.images[i].width, height: data.images[i].height, loading: "lazy", alt: `${IMAGES[kind]} of ${users[0].name}` }) : el("p", { class: "soft" }, "Not embedded: the page has too many images, or this file is too large or damaged."),
      el("figcaption", {}, names, " ", link(file, kind === 2 ? "all in the report" : "full size")));
  }));
  $("previews-note").textContent = !shown.length ? "No run in the table has such an image."
    : `${shown.length < recipes.size ? `${shown.length} of ${recipes.size} ${kind ? "runs" : "different recipes"}. To choose, select runs. ` : ""}${kind ? "" : "The augmented images that the model received. Runs with the same recipe share an image."}`;
}

/** Show the runs that did not finish, grouped by the reason. */
function showProblems(runs) {
  const order = ["failed", "killed", "interrupted", "pruned"], kinds = new Map();
  for (const run of runs) {
    if (!order.includes(run.status) && !run.notes) continue;
    const why = [run.error || run.stopped, run.notes].filter(Boolean).join("\n");
    const key = JSON.stringify([run.status, why]);
    kinds.set(key, [...(kinds.get(key) ?? []), run]);
  }
  const sorted = [...kinds].map(([key, members]) => [...JSON.parse(key), members])
    .sort((a, b) => (order.indexOf(a[0]) + 5) % 5 - (order.indexOf(b[0]) + 5) % 5 || b[2].length - a[2].length);
  const rows = sorted.slice(0, ROWS).map(([status, why, members]) => el("li", { class: status },
    el("span", { class: `status ${status}` }, status), ` ${amount(members.length, "run")}: `,
    members.slice(0, 20).flatMap((run, i) => [i ? ", " : "", el("span", { title: run.path }, link(run.report, run.name)),
      el("span", { class: "soft" }, run.planned ? ` (${run.epochs} of ${amount(run.planned, "epoch")})` : "")]),
    members.length > 20 && ` and ${(members.length - 20).toLocaleString("en")} more`,
    why && el("pre", {}, why)));
  fill("problems", rows.length ? rows : el("li", {}, "None."));
  $("problems-note").textContent = sorted.length > ROWS ? `The first ${ROWS} of ${sorted.length.toLocaleString("en")} reasons.` : "";
}
