"""The page of a report: its contents, and that it is complete in itself whatever is missing."""

import base64
import json
import re
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf
from PIL import Image
from reports import NAMES, Page, counted, folder_of_a_run, record, row  # noqa: F401  (a fixture)

from augment.support.files import json_line
from trainer.callbacks.recorder import METRICS_FILE
from trainer.figures.images import SIDE, read_png
from trainer.loop.checkpoint import BEST, BestModel, load, save
from trainer.report import page
from trainer.report.charts import charts
from trainer.report.command import main
from trainer.report.page import render, write_record
from trainer.report.run_content import MISTAKES_FILE, REPORT_FILE, RunRecord, read_record, write_best
from trainer.run.config.schema import CONFIG_FILE, PLAN_FILE
from trainer.run.folder.facts import FACTS_FILE
from trainer.run.folder.locks import owned
from trainer.run.folder.summary import SUMMARY_FILE, Summary
from trainer.tasks.classify import wilson_interval
from trainer.tasks.registry import task_named


def test_repeated_images_are_counted_once() -> None:
    shown = record([], classes=("ant", "bee"), images=(2, 3, 1))
    assert "2 (repeated to 3) + 1 images, 2 classes" in render(shown)


# --- the page ---


def test_all_sections_appear_in_order(run: Path) -> None:
    file = write_record(read_record(run))
    assert file == run / REPORT_FILE
    text = Page(file.read_text())
    assert text.sections == ["curves", "classes", "mistakes", "fed", "again"]
    for part in (
        "50.0%",
        "{:.1f}% to {:.1f}%".format(*(100 * v for v in wilson_interval(3, 6))),
        "n = 6 images",
        "4 of 4",
        "1 min 15 s",
        "100 img/s",
        "6 + 6 images, 2 classes",
        "finished",
        "abc123, with uncommitted changes",
        "python -m trainer data=folder 'data.root=/a b' fit.epochs=4",
        "torch2.15.0",
        "train: 128 x 128 px <b>",
        "batch_size: 2",
        "12 training batches",
    ):
        assert part in text.text.replace("\n", ""), part
    assert file.stat().st_size < 500_000


def test_a_page_loads_and_runs_nothing(run: Path) -> None:
    text = render(read_record(run))
    parsed = Page(text)
    assert parsed.references
    assert all(reference.startswith("data:image/") for reference in parsed.references)
    assert not {"script", "link", "iframe", "object", "embed", "base", "form"} & set(parsed.tags)
    assert not re.search(r"url\(|@import|https?://", text)
    assert "default-src 'none'" in text


def test_names_of_classes_are_escaped(run: Path) -> None:
    text = render(read_record(run))
    assert "<script" not in text
    assert "&lt;script&gt;alert(1)&lt;_script&gt;" in text
    assert NAMES[1] in Page(text).text
    for uri in re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', text):
        assert b"script" not in base64.b64decode(uri)


@pytest.mark.parametrize(("classes", "table", "figures"), [(12, "matrix", 0), (13, "matrix many", 0), (151, "", 1)])
def test_the_confusion_matrix_by_the_number_of_classes(classes: int, table: str, figures: int, tmp_path: Path) -> None:
    counts = np.eye(classes, dtype=np.int64) * 5 + np.eye(classes, k=1, dtype=np.int64)
    names = tuple(f"class {i}" for i in range(classes))
    Image.new("RGB", (64, 64)).save(tmp_path / "confusion.png")
    text = render(record([row(0, 1, 1)], tmp_path, samples=counted(counts.tolist()), classes=names))
    assert re.findall(r'<table class="(matrix.*?)">', text) == ([table] if table else [])
    assert ("most confused pairs" in text) is (classes > 12)
    assert text.count("Confusion matrix of 151 classes") == figures
    # Cells without images are empty in a large matrix.
    cells = {12: 144, 13: 25, 151: 0}
    assert len(re.findall(r' title="class \d+ predicted as class \d+: ', text)) == cells[classes]
    if table:
        assert "class 0 predicted as class 1: 1 of 6" in text
        matrix = text.partition('<table class="matrix')[2].partition("</table>")[0]
        assert [matrix.count(tag) for tag in ('scope="row"', 'scope="col"', "<td")] == [classes, classes, classes**2]
        assert ('<div class="scroll tall">' in text) is (classes > 12)


def test_long_names_of_many_classes_are_shortened_above_the_matrix(tmp_path: Path) -> None:
    names = tuple(f"{'long ' * 9}{i}" for i in range(13))
    text = render(record([row(0, 1, 1)], tmp_path, samples=counted(np.eye(13, dtype=int).tolist()), classes=names))
    assert f'<th scope="col" title="{names[0]}">long long long long long …</th>' in text
    assert f'<th scope="row" title="{names[0]}">{names[0]}</th>' in text


@pytest.mark.parametrize("missing", [BEST, FACTS_FILE, METRICS_FILE, SUMMARY_FILE, PLAN_FILE, ".hydra"])
def test_every_file_may_be_missing(run: Path, missing: str) -> None:
    if missing == ".hydra":
        (run / ".hydra" / "overrides.yaml").unlink()
    else:
        (run / missing).unlink()
    text = Page(render(read_record(run))).text
    assert "nan" not in text.lower()
    assert ("best.pt has no" in text) is (missing == BEST)
    assert ("was killed" in text) is (missing == SUMMARY_FILE)
    assert ("run.json is missing, so the schedules" in text) is (missing == FACTS_FILE)


@pytest.mark.parametrize("broken", [(BEST, SUMMARY_FILE), (FACTS_FILE, MISTAKES_FILE), (METRICS_FILE, CONFIG_FILE)])
def test_every_file_may_be_broken(run: Path, broken: tuple[str, str]) -> None:
    for name in (*broken, "batch.png"):
        (run / name).write_bytes(b"[what is this")
    assert "Reproduce this run" in Page(render(read_record(run))).text


def test_a_resumed_run_shows_the_first_batch_after_resuming(run: Path) -> None:
    assert "The first training batch, with" in Page(render(read_record(run))).text
    config = OmegaConf.load(run / CONFIG_FILE)
    OmegaConf.update(config, "fit.resume", str(run))
    OmegaConf.save(config, run / CONFIG_FILE)
    assert "The first training batch after resuming, with" in Page(render(read_record(run))).text


def test_a_run_in_progress_is_told_from_a_killed_one(run: Path) -> None:
    (run / SUMMARY_FILE).unlink()
    Summary("running", run).write()
    killed = Page(render(read_record(run))).text
    with owned(run, resumed=str(run)):
        page = Page(render(read_record(run)))
    running = page.text
    assert page.sections == ["curves", "classes", "mistakes", "fed", "again"]  # those of the best epoch so far
    assert ("The run was killed" in killed, "running" in killed.split()) == (True, False)
    assert ("The run was killed" in running, "running" in running.split()) == (False, True)
    assert not np.isfinite(read_record(run).run.summary.seconds)  # of which the summary says nothing yet


def test_an_empty_folder_has_a_page(tmp_path: Path) -> None:
    text = Page(render(read_record(tmp_path))).text
    assert "no epoch has a score" in text
    assert "planned" in text


# --- curves ---


def test_curves_show_the_data(run: Path) -> None:
    made = {chart.title: chart for chart in charts(read_record(run))}
    assert list(made) == ["Loss", "Accuracy", "Learning rate"]  # it kept no steps, of which the speed is drawn
    course = "2 in the first epoch, 1.25 in the last."
    assert made["Loss"].alt == f"Training loss: {course} Validation loss: {course}"
    assert "From 0.0008 to 0, between 0 and 0.02." in made["Learning rate"].caption
    assert all(b"<metadata" not in base64.b64decode(chart.uri.split(",")[1]) for chart in made.values())


def test_every_schedule_has_a_curve_and_on_a_plateau_the_rate_is_that_of_the_epochs(run: Path) -> None:
    read, schedules = read_record(run), {"lr": (1, 1), "momentum": (0.9, 0.8, 0.9)}
    read.run.facts = replace(read.run.facts, schedules=schedules)
    read.run.config = {"fit": {"schedule": "plateau"}}
    for epoch, metrics in enumerate(read.run.rows):
        metrics["lr"] = 0.5**epoch
    captions = {chart.title: chart.caption for chart in charts(read)}
    assert f"From 1 to {read.run.rows[-1]['lr']:.3g}" in captions["Learning rate"]
    assert "0.9 to 0.9, " in captions["Momentum"]


def test_steps_make_finer_curves(run: Path) -> None:
    lines = [{"seconds": i, "step": i, "loss": 1.0, "images_per_second": 50.0 + i} for i in range(3000)]
    cut = json.dumps(lines[-1])[:9]
    (run / "steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + cut)
    read = read_record(run)
    assert len(read.run.steps) == 3000
    made = {chart.title: chart for chart in charts(read)}
    assert len(made["Loss"].uri) < 150_000


# --- the worst mistakes ---


def files(run: Path) -> list[Path]:
    return sorted((run.parents[1] / "data" / "val").glob("*/*.jpg"))


def with_mistakes(run: Path, files: list[Path], most: int) -> RunRecord:
    """The record of a run as its callback makes it at the end."""
    made = read_record(run)
    made.add_best(partial(load, run / BEST, BestModel), files, most)
    return made


def test_the_most_confident_mistakes_come_first(run: Path) -> None:
    read = with_mistakes(run, files(run), 2)
    assert read.best_pass
    wrong = read.best_pass.images
    assert wrong
    found = [(round(mistake.confidence or 0, 2), Path(mistake.name).name) for mistake in wrong]
    assert found == [(0.8, "1.jpg"), (0.7, "0.jpg")]
    assert wrong[0].true == NAMES[1]
    assert wrong[0].predicted.startswith("<script>")
    (run / "thumbnail.jpg").write_bytes(base64.b64decode(wrong[0].uri.split(",")[1]))
    with Image.open(run / "thumbnail.jpg") as image:
        assert image.size == (SIDE, round(SIDE * 2 / 3))
    write_best(read)
    (run / BEST).unlink()  # a page needs no more than what the run has written
    page = Page(render(read_record(run)))
    assert page.text.count("true: bee") == 2
    assert page.text == Page(render(read)).text


def test_a_deleted_image_is_reported(run: Path) -> None:
    listed = files(run)
    listed[4].unlink()
    assert "cannot be read" in Page(render(with_mistakes(run, listed, 1))).text


def test_without_images_or_predictions_no_mistakes_are_shown(run: Path) -> None:
    assert "This run has not saved its worst predictions" in Page(render(read_record(run))).text
    others = with_mistakes(run, files(run)[:5], 2).best_pass
    assert others
    assert others.images is None  # other images than those of the run
    read = with_mistakes(run, files(run), 2)
    assert read.best_pass
    read.best_pass = replace(read.best_pass, epoch=2.0)  # the best epoch is another one now
    write_best(read)
    assert "This run has not saved its worst predictions" in Page(render(read_record(run))).text
    save(replace(load(run / BEST, BestModel), samples=None), run / BEST)
    assert "best.pt has no predictions of single images" in Page(render(read_record(run))).text


@pytest.mark.parametrize("uri", ["http://127.0.0.1/spy.png", "javascript:alert(1)", 1])
def test_images_from_elsewhere_are_not_shown(run: Path, uri: object) -> None:
    image = {"name": "a", "true": "b", "predicted": "c", "confidence": 0.5, "uri": uri}
    (run / MISTAKES_FILE).write_text(json.dumps({"epoch": 3, "images": [image]}))
    read = read_record(run)
    assert read.best_pass
    assert read.best_pass.images is None
    assert MISTAKES_FILE in read.run.notes


@pytest.mark.parametrize(
    "block",
    [
        *({"kind": "Bars"}, {"kind": "Table", "title": "", "head": [1], "rows": 3, "left": "a"}, {}),
        {"kind": "Bars", "title": "", "head": ["", ""], "rows": [["a", ["red}", None], []]], "note": ""},
    ],
)
def test_blocks_of_a_stranger_are_an_error_of_one_line(
    run: Path, block: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    (run / MISTAKES_FILE).write_text(json.dumps({"epoch": 3, "blocks": [block]}))
    with pytest.raises(SystemExit):
        main([str(run)])
    error = capsys.readouterr().err
    assert "its files do not match each other" in error
    assert error.count("\n") == 1


def test_numbers_of_a_stranger_are_an_error_of_one_line(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labels = {"estimates": [], "classes": [], "several": False, "pairs": [["a", "b", 0]]}
    suspect = {"path": "a", "given": "a", "suggested": "b", "score": 0, "probability": None}
    (run / "labels.json").write_text(json.dumps(labels | {"suspects": [suspect]}))
    with pytest.raises(SystemExit):
        main([str(run)])
    assert "its files do not match each other (ZeroDivisionError" in capsys.readouterr().err


def test_thousands_of_classes_take_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.tasks.classify._MATRIX", 3)
    monkeypatch.setattr("trainer.tasks.classify.confusion", None)
    counts = [[4, 1, 0, 0], [0, 5, 0, 0], [0, 0, 5, 0], [0, 0, 0, 5]]
    text = Page(render(record([row(0, 1, 1)], tmp_path, samples=counted(counts), classes=tuple("abcd")))).text
    assert "Worst class: a at 80% (4 of 5), most often mistaken for b (once)." in text
    assert "predicted" not in text.partition("Accuracy of each class")[2].partition("Mistakes")[0]


def test_a_stranger_cannot_ask_for_many_curves(run: Path) -> None:
    read = read_record(run)
    read.run.facts = replace(read.run.facts, schedules={str(number): (0.1, 0.2) for number in range(20)})
    assert len(charts(read)) == 12


def test_a_figure_of_a_stranger_is_small(run: Path) -> None:
    Image.new("RGB", (64, 64)).save(file := run / "batch.png")
    assert read_png(file, 64**2, (64, 64))
    with file.open("ab") as stream:
        stream.truncate(2**23 + 1)  # Pillow ignores what follows the image
    assert read_png(file, 64**2, (64, 64)) is None


def test_the_name_of_a_folder_controls_no_terminal(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    named = run.rename(run.with_name("\033]0;a"))
    assert main([str(named)]) == 0
    assert "?]0;a" in capsys.readouterr().out


def test_formats_of_a_stranger_make_no_long_numbers(run: Path) -> None:
    facts, display = json.loads((run / FACTS_FILE).read_text()), task_named("classify").display(NAMES)
    columns = [column._replace(line="{:99}", page="") for column in display.columns]
    display = replace(display, columns=tuple(columns), figure_file="../secret.png")
    (run / FACTS_FILE).write_text(json_line(facts | {"display": asdict(display)}))
    (run / BEST).unlink()
    read = read_record(run)
    assert read.display.figure_file == "../secret.png"  # of which the name alone counts
    assert "  0.5" not in Page(render(read)).text


# --- values on hover, one epoch, dark mode ---


@pytest.mark.parametrize("value", [1e308, -1e308])
def test_scores_that_matplotlib_cannot_draw(run: Path, value: float) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write(f'{{"epoch": -5, "train_loss": {value}, "val_accuracy": {value}}}\n')
    assert len(charts(read_record(run))) > 1


def test_pointing_at_a_curve_shows_the_values_of_the_epoch(run: Path) -> None:
    shown = read_record(run)
    loss = next(chart for chart in charts(shown) if chart.title == "Loss")
    assert [text.splitlines()[0] for *_, text in loss.spots] == [f"epoch {i + 1}" for i in range(len(shown.run.rows))]
    assert f"val {shown.run.rows[0]['val_loss']:.3g}" in loss.spots[0][2]
    ends = [left + width for left, width, _ in loss.spots]
    assert 5 < loss.spots[0][0] < ends[0] < ends[-1] <= 100
    assert [left for left, *_ in loss.spots[1:]] == pytest.approx(ends[:-1], abs=0.02)
    assert 'data-text="epoch 1\n' in render(shown)


def test_a_table_of_many_epochs_has_the_last_ones(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = read_record(run)
    columns = page._table(record)["head"]
    monkeypatch.setattr(page, "_MAX_CELLS", 3 * len(columns) - 1)
    shown = render(record)
    assert "The last 2 epochs as a table" in shown
    assert shown.partition('class="epochs"')[2].partition("</table>")[0].count('<th scope="row">') == 2
