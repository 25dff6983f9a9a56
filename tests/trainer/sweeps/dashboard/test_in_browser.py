"""The dashboard in headless Chromium: sorting, filtering, brushing and overlaying by clicking; names are only text."""

import json
import math
import re
from pathlib import Path
from threading import Thread

import pytest
from browser import dump, found, run_script, with_script
from many_runs import HOSTILE, config_of, write_few, write_run
from PIL import Image

from trainer.figures.images import data_uri
from trainer.run.folder.reader import find_runs
from trainer.sweeps.dashboard.command import Watched, make_server, render
from trainer.sweeps.dashboard.content import collect


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    """A few runs."""
    write_few(tmp_path / "outputs")
    return tmp_path / "outputs"


SCRIPT = """
  const column = (title) => texts("#head th").findIndex((text) => text.startsWith(title));
  const cells = (title) => all("#rows tr[data-path]").map((row) => row.children[column(title)].textContent);
  const head = () => all("#head th")[column("lr")];
  const filter = document.getElementById("text"), status = document.getElementById("status");
  const seen = {
    head: texts("#head th"), legend: texts("#legend li"), problems: texts("#problems li"), names: texts("#rows th"),
    bars: all("#importance tbody tr").map((row) => [row.querySelector("i").style.width, row.lastChild.textContent]),
    images: all("img").length, scripts: all("script").length, bold: all("main b").length,
  };
  await click(head().querySelector("button"));
  seen.down = [cells("lr"), head().getAttribute("aria-sort")];
  await click(head().querySelector("button"));
  seen.up = [cells("lr"), head().getAttribute("aria-sort")];
  await type(filter, "lr>=0.02 rotate.p=0 status=finished");
  seen.filtered = cells("lr");
  await type(filter, "ONERROR");
  seen.searched = cells("run").length;
  await type(filter, "");
  await choose(status, "failed");
  seen.failed = cells("run");
  await choose(status, "");
  const boxes = () => all("#rows input");
  await click(boxes()[0]);
  await click(boxes()[3]);
  seen.selected = [texts("#count")[0], texts("#legend li"), texts("#differences tbody th")];
  seen.focused = document.activeElement === boxes()[3];
  await choose(document.getElementById("mode"), "runs");
  seen.runs = texts("#legend li");
  await click(document.getElementById("clear"));
  // Along the first axis, lr, which ends at 0.08, from above 0.06 to below 0.04.
  await drag(all("#parallel canvas").at(-1), [72, 60], [72, 230]);
  seen.brushed = [texts("#chips button").length, cells("lr"), location.hash.includes("brushes")];
  await click(all("#chips button")[0]);
  seen.unbrushed = [texts("#chips button").length, cells("lr").length];
  seen.title = document.title;
  return seen;
"""


def test_sorting_filtering_overlaying_and_brushing(outputs: Path, tmp_path: Path) -> None:
    page = render(collect(find_runs([outputs]), outputs, outputs))
    seen = run_script(page, SCRIPT, tmp_path)
    assert {"run", "status", "last val_accuracy", "lr", "rotate.p", "seed"} <= set(seen["head"])
    assert len(seen["names"]) == 14
    # The best first; both seeds are one group.
    assert seen["legend"][0] == "lr=0.04 rotate.p=0.2 n = 2"
    assert seen["problems"][0].startswith("failed 1 run: 0000000003 (5 of 5 epochs)ValueError: </script>")
    assert seen["problems"][1].startswith("pruned 1 run: 0000000004")
    assert seen["bars"]
    assert all(float(width.rstrip("%")) == pytest.approx(100 * float(share), abs=0.6) for width, share in seen["bars"])
    order = ["0.08", *["0.04"] * 4, *["0.02"] * 5, *["0.01"] * 4]
    assert seen["down"] == [order, "descending"]
    assert seen["up"] == [order[::-1], "ascending"]
    assert sorted(seen["filtered"]) == ["0.02", "0.04", "0.04"]
    assert seen["searched"] == 2
    assert seen["failed"] == ["0000000003"]
    assert seen["selected"][0] == "14 runs, 2 selected"
    assert seen["selected"][1:] == [
        ["lr=0.01 rotate.p=0.2 n = 2", "lr=0.01 rotate.p=0.0 n = 2"],
        ["aug.train.rotate.p", "seed"],
    ]
    assert seen["focused"]
    assert sorted(seen["runs"]) == ["0000000000", "0000000003"]
    assert seen["brushed"] == [1, ["0.04"] * 4, True]
    assert seen["unbrushed"] == [0, 14]
    # Names are text: neither an element nor a script of theirs is there.
    assert HOSTILE.replace("\u2028", "") in [name.replace("\u2028", "") for name in seen["names"]]
    assert (seen["images"], seen["bold"], seen["scripts"], seen["title"]) == (0, 1, 4, "outputs: dashboard")


CHARTS = """
  const option = (id) => echarts.getInstanceByDom(document.getElementById(id)).getOption();
  const all_of = (id, name) => option(id).series.filter((one) => one.name === name).flatMap((one) => one.data);
  const points = (id, name) => all_of(id, name).map((point) => point.value ?? point);
  const ends = () => option("curves").series.filter((one) => one.type === "line").map((one) => one.data.at(-1)[0]);
  const seen = { colors: option("parallel").series[0].data.map((row) => row.lineStyle.color) };
  const parts = ["best trial so far", "trials", "pruned", "finalists", "confirmations"];
  seen.legend = texts("#parallel-scale");
  seen.history = parts.map((name) => points("history", name));
  seen.scatter = points("scatter", undefined).length;
  await choose(document.getElementById("across"), "best.val_accuracy");
  await choose(document.getElementById("hue"), "status");
  seen.chosen = [option("scatter").xAxis[0].name, texts("#scatter-scale span")];
  for (const axis of ["1", "2", "3", "0"]) {
    await choose(document.getElementById("axis"), axis);
    seen[`axis ${axis}`] = ends()[0];
  }
  const first = () => option("curves").series.find((one) => one.type === "line").data.map((p) => p[1]);
  await choose(document.getElementById("scale"), "log");
  const { yAxis, series } = option("curves");
  const begins = series.filter((one) => one.type === "line").map((one) => one.data[0][1]);
  seen.log = [yAxis[0].type, yAxis[0].min, yAxis[0].max, begins, location.hash.includes("scale")];
  await choose(document.getElementById("scale"), "value");
  const raw = first();
  await choose(document.getElementById("smooth"), "0.6");
  seen.smooth = [raw, first()];
  await choose(document.getElementById("image"), "1");
  seen.images = [all("#previews figure").length, all("#previews img").length];
  await choose(document.getElementById("image"), "2");
  seen.images.push(all("#previews img").map((image) => [image.width > 0, image.alt])[0]);
  const box = document.getElementById("head").closest(".window");
  seen.cut = box.scrollWidth > box.clientWidth;
  seen.spared = texts("#spared")[0];
  return seen;
"""


def test_the_charts_of_a_search_and_the_images_of_its_runs(tmp_path: Path) -> None:
    parts = [("trial", 0.5), ("trial", 0.7), ("trial", 0.3), ("trial", 0.6), ("finalist", 0.65), ("", 0.8)]
    many = {f"option_{name}_of_the_model": 0 for name in ("first", "second", "third", "fourth", "fifth", "sixth")}
    for i, (part, score) in enumerate(parts):
        job = tmp_path / "runs" / "search" / f"{i:010x}"
        config = config_of(0.01 * (i + 1), 0.0, 0, model=dict.fromkeys(many, i))
        given = [f"fit.lr={0.01 * (i + 1)}", *(f"model.{name}={i}" for name in many)]
        stopped = "pruned" if score == 0.3 else ""
        begin = 0.0 if stopped else 0.1  # a logarithmic scale has no place for it
        write_run(job, config, given, [begin, score, score], planned=3, order=i, part=part, stopped=stopped)
        facts = {
            "task": "classify",
            "classes": ["a"],
            "images": [40, 40, 9],
            "source": "",
            "model": "",
            "parameters": 1,
        }
        facts |= {"device": "CPU", "batches": [5, 5, 5], "schedules": {}, "warnings": []}
        (job / "run.json").write_text(json.dumps(facts))
        Image.new("RGB", (60, 40), (9 * i, 0, 0)).save(job / "confusion.png")
        uri = data_uri(Image.new("RGB", (30, 20), (0, 9 * i, 0)), "JPEG", 80)
        mistake = {"name": "x", "true": "a", "predicted": "b", "confidence": 0.9, "uri": uri}
        (job / "mistakes.json").write_text(json.dumps({"epoch": 1, "images": [mistake]}))
    seen = run_script(render(collect(find_runs([tmp_path / "runs"]), tmp_path, tmp_path)), CHARTS, tmp_path)
    assert len(set(seen["colors"])) == 6  # one for each score
    assert seen["legend"][0].startswith("last val_accuracy: 0.3000")
    best, trials, pruned, finalists, confirmations = seen["history"]
    assert best == [[1, 0.5], [2, 0.7], [4, 0.7]]
    assert (trials, pruned) == ([[1, 0.5], [2, 0.7], [4, 0.6]], [[3, 0.3]])
    assert (finalists, confirmations) == ([[5, 0.65]], [[6, 0.8]])
    assert seen["scatter"] == 6
    assert seen["chosen"] == ["best val_accuracy", ["finished", "pruned"]]
    assert [seen[f"axis {axis}"] for axis in range(4)] == [3, 15, 4.5, 120]
    kind, low, high, begins, kept = seen["log"]
    assert (kind, low, high, sorted(map(str, begins)), kept) == ("log", 0.1, 0.8, ["0.1"] * 5 + ["None"], True)
    raw, smooth = seen["smooth"]
    assert raw == [0.1, 0.8, 0.8]
    assert smooth == pytest.approx([0.1, (0.6 * 0.4 * 0.1 + 0.4 * 0.8) / (1 - 0.36), smooth[2]])
    assert smooth[1] < smooth[2] < 0.8
    assert seen["images"][:2] == [4, 4]
    assert seen["images"][2][1].startswith("Most confident mistakes of ")
    assert not seen["cut"]
    assert "more vary" in seen["spared"]


def test_the_filtered_table_is_saved(outputs: Path, tmp_path: Path) -> None:
    """As CSV, in which texts stay texts; verdicts name settings as the table does."""
    file = outputs / "sweep" / "0000000003" / "job.json"
    job = json.loads(file.read_text())
    file.write_text(json.dumps(job | {"varied": job["overrides"]}))
    named = config_of(0.02, 0.2, 0, run={"name": '=1+"x"; =2', "tags": ["a", "b"]})
    write_run(outputs / "10-00-00-abcdef", named, ["fit.lr=0.02"], [0.1, 0.25], planned=2, status="interrupted")
    script = """
      const verdicts = texts("#verdicts li");
      let saved;
      URL.createObjectURL = (file) => { saved = file; return "#"; };
      await type(document.getElementById("text"), "status=interrupted abcdef");
      await click(document.getElementById("save"));
      return [...(await saved.text()).split("\\r\\n"), verdicts];
    """
    page = render(collect(find_runs([outputs]), outputs, outputs))
    head, row, end, verdicts = run_script(page, script, tmp_path)
    assert head.startswith('"path","run","status","last.val_accuracy","best.val_accuracy"')
    assert row.startswith('"10-00-00-abcdef","\'=1+""x"";\' =2","interrupted",0.25,0.25,')
    assert end == ""
    assert any(text.startswith("lr=0.04 rotate.p=0.2: ") for text in verdicts)
    assert any(re.search(r"failed \(.*lr=0.01 .*rotate.p=0.2 seed=1\)", text) for text in verdicts)


def test_a_served_page_takes_new_runs_and_keeps_its_filters(outputs: Path, tmp_path: Path) -> None:
    added = outputs / "sweep" / "00000000aa"

    class Growing(Watched):
        """A run appears when the page has been read."""

        def latest(self) -> tuple[str, str, str]:
            latest = super().latest()
            if self.asked == 1:
                write_run(added, config_of(0.03, 0.0, 5), ["fit.lr=0.03"], [0.2, 0.3], planned=2, order=50)
            self.asked, self._next = self.asked + 1, -math.inf
            return latest[0], with_script(latest[1], script), latest[2]

        asked = 0

    script = """
      await type(document.getElementById("text"), "lr=0.03");
      const seen = [texts("#rows th")];
      for (let i = 0; i < 50 && !seen[0].length && !texts("#rows th").length; i++) await wait(200);
      return [...seen, texts("#rows th"), document.getElementById("text").value, texts("#live")[0]];
    """
    with make_server(Growing(outputs), 0) as server:
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        document = dump(f"http://127.0.0.1:{server.server_port}/", tmp_path / "profile", 8000)
        server.shutdown()
    assert found(document) == [[], ["00000000aa"], "lr=0.03", "live"]


def test_a_phone_and_runs_that_ended_early(tmp_path: Path) -> None:
    """The score is seen without scrolling; a mean is over the runs that reached an epoch, thinned or not."""
    for seed, (epochs, status) in enumerate([(10, "finished"), (10, "finished"), (4, "interrupted")]):
        given = [f"seed={seed}"]
        curve = [0.1 + 0.01 * i for i in range(epochs)]
        write_run(
            tmp_path / "runs" / f"10-00-0{seed}-abcdef",
            config_of(0.1, 0.0, seed),
            given,
            curve,
            planned=10,
            status=status,
        )
    data = collect(find_runs([tmp_path / "runs"]), tmp_path, tmp_path)
    key = next(i for i, metric in enumerate(data["metrics"]) if metric["key"] == "val_accuracy")
    data["epochs"].append([1, 4, 10])  # as of a run with too many points
    data["runs"][0]["curves"][key] = [len(data["epochs"]) - 1, [0.1, 0.13, 0.19]]
    for run, seconds in zip(data["runs"], (59.7, 150, 7190), strict=True):
        run["seconds"] = seconds
    script = """
      document.body.style.width = "400px";
      await wait(100);
      const right = (node) => node.getBoundingClientRect().right;
      const column = texts("#head th").findIndex((text) => text.startsWith("last"));
      const scores = all("#rows tr[data-path]").map((row) => row.children[column]);
      return [
        scores.map((cell) => right(cell) <= right(document.querySelector(".window"))), texts("#legend li"),
        echarts.getInstanceByDom(document.getElementById("curves")).getOption().series.at(-1).data,
        texts("#rows tr[data-path] td:last-child").sort(),
      ];
    """
    seen, legend, line, times = run_script(render(data), script, tmp_path, size="500,1000")
    assert seen == [True] * 3
    assert times == ["1 h 59 min", "1 min 0 s", "2 min 30 s"]
    assert [text.rpartition(" n = ")[2] for text in legend] == ["2 to 3"]
    assert line == [[epoch, pytest.approx(0.09 + 0.01 * epoch)] for epoch in range(1, 11)]


def test_runs_of_one_seed_count_once(tmp_path: Path) -> None:
    """As in verdicts: a replicate is a seed, or a fold if there are several, and finished runs replace others."""
    for i, (seed, end) in enumerate([(0, 0.3), (0, 0.5), (1, 0.6), (1, 0.1)]):
        status = "finished" if i < 3 else "interrupted"
        write_run(tmp_path / "seeds" / f"{i}", config_of(0.1, 0.0, seed), [], [0.1, end], planned=2, status=status)
        data = {"source": "folder", "root": "x", "folds": 2, "fold": 1 - seed}
        config = config_of(0.1, 0.0, i) | {"data": data}
        write_run(tmp_path / "folds" / f"{i}", config, [], [0.1, end], planned=2, status=status)
    script = """
      const { series } = echarts.getInstanceByDom(document.getElementById("curves")).getOption();
      return [texts("#legend li"), series.at(-1).data, texts("#curves-note")[0]];
    """
    for kind in ("seeds", "folds"):
        page = render(collect(find_runs([tmp_path / kind]), tmp_path, tmp_path))
        legend, line, note = run_script(page, script, tmp_path)
        assert [text.rpartition(" n = ")[2] for text in legend] == ["2"]
        assert line == [[1, 0.1], [2, pytest.approx((0.4 + 0.6) / 2)]]
        assert note.endswith("Each seed or fold counts once, with the mean of its finished runs.")


def test_axes_have_all_labels_and_legends_a_range(tmp_path: Path) -> None:
    """On a phone, too. A constant has no range, so it has no gradient."""
    for i, name in enumerate(["resnet18", "xresnet50_deep_and_wide", "vit"]):
        config = config_of(0.1, 0.0, 0, model={"name": name})
        write_run(tmp_path / "runs" / name, config, [f"model.name={name}"], [0.1 * i], planned=1)
    script = """
      document.body.style.width = "400px";
      dispatchEvent(new Event("resize"));
      await wait(100);
      const labels = (id) => echarts.getInstanceByDom(document.getElementById(id)).getZr().storage.getDisplayList(true)
        .map((shape) => shape.style.text).filter(Boolean);
      const seen = [labels("parallel"), labels("scatter"), document.getElementById("hue").value];
      await type(document.getElementById("text"), "vit");
      return [...seen, texts("#scatter-scale"), all("#scatter-scale .ramp").length];
    """
    page = render(collect(find_runs([tmp_path / "runs"]), tmp_path, tmp_path))
    *charts, hue, legend, ramps = run_script(page, script, tmp_path, size="500,1000")
    for labels in charts:
        assert {"resnet18", "vit", "xresnet…p_and_wide", "last val_accuracy"} <= {*labels}
    assert hue == "last.val_accuracy"  # the time, the usual color, is the same for all runs
    assert (legend, ramps) == (["last val_accuracy: 0.2"], 0)


def test_the_best_score_is_among_runs_that_can_be_compared(tmp_path: Path) -> None:
    for name, root, score in (("a", "x", 0.5), ("b", "x", 0.6), ("c", "y", 0.9)):
        write_run(tmp_path / "outputs" / name, {"data": {"source": "folder", "root": root}}, [], [score], planned=1)
    page = render(collect(find_runs([tmp_path / "outputs"]), tmp_path, tmp_path))
    script = """
      const note = all("#tiles dd span").at(-1);
      const column = texts("#head th").indexOf("dataset");
      const datasets = all("#rows tr[data-path]").map((row) => row.children[column].textContent);
      return [texts("#tiles dd").at(-1), note.scrollWidth <= note.clientWidth, datasets];
    """
    best = "0.6000b, best of 2 comparable runs on x"
    assert run_script(page, script, tmp_path) == [best, True, ["y", "x", "x"]]


def test_axes_have_at_least_two_runs(tmp_path: Path) -> None:
    for name, lr, score in (("a", 0.1, 0.5), ("b", 0.2, 0.6), ("c", 0.3, 0.9)):
        write_run(tmp_path / "outputs" / name, config_of(lr, 0.0, 0), [f"fit.lr={lr}"], [score], planned=1)
    for file in ("summary.json", "metrics.jsonl"):  # the score of another task
        path = tmp_path / "outputs" / "c" / file
        path.write_text(path.read_text().replace("val_accuracy", "val_map"))
    page = render(collect(find_runs([tmp_path / "outputs"]), tmp_path, tmp_path))
    script = """
      const chart = echarts.getInstanceByDom(document.getElementById("parallel"));
      return chart.getOption().parallelAxis.map((axis) => axis.name);
    """
    assert run_script(page, script, tmp_path) == ["lr", "last val_accuracy"]
