"""The page of a report: its contents, and that it is complete in itself whatever is missing."""

import base64
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fakes import lin
from omegaconf import OmegaConf
from PIL import Image
from reports import NAMES, Page, counted, folder_of_a_run, record, row  # noqa: F401  (a fixture)

from augment.data.dataset import Dataset, Split
from trainer.callbacks.recorder import METRICS_FILE
from trainer.figures.images import SIDE
from trainer.loop.checkpoint import BEST, BestModel, load, save
from trainer.optim.schedule import one_cycle
from trainer.report import page
from trainer.report.charts import charts
from trainer.report.images import mistakes
from trainer.report.page import render, write_record
from trainer.report.record import REPORT_FILE, read_record
from trainer.run.config import CONFIG_FILE, PLAN_FILE
from trainer.run.environment import ENVIRONMENT_FILE
from trainer.run.folder import owned
from trainer.run.summary import SUMMARY_FILE, reserve_summary
from trainer.tasks.metrics.classification import wilson_interval


def test_repeated_images_are_counted_once() -> None:
    train, val = Split((Path("a"), Path("b"), Path("b")), (0, 1, 1), repeated=1), Split((Path("c"),), (0,))
    shown = record([], classes=("ant", "bee"), dataset=Dataset(("ant", "bee"), train, val))
    assert page._sizes(shown) == "2 (repeated to 3) + 1 images, 2 classes"


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


def test_light_dark_print_and_phone_have_styles(run: Path) -> None:
    text = render(read_record(run))
    for part in ("prefers-color-scheme: dark", "@media print", "max-width: 720px", 'name="viewport"', "charset"):
        assert part in text
    assert all("alt=" in tag for tag in re.findall(r"<img [^>]*>", text))


@pytest.mark.parametrize(("classes", "table", "listed", "figures"), [(12, True, False, 0), (13, False, True, 1)])
def test_the_confusion_matrix_by_the_number_of_classes(
    classes: int, table: bool, listed: bool, figures: int, tmp_path: Path
) -> None:
    counts = np.eye(classes, dtype=np.int64) * 5 + np.eye(classes, k=1, dtype=np.int64)
    names = tuple(f"class {i}" for i in range(classes))
    text = render(record([row(0, 1, 1)], tmp_path, samples=counted(counts.tolist()), classes=names))
    assert ('<table class="matrix">' in text) is table
    assert ("most confused pairs" in text) is listed
    assert text.count("Confusion matrix of 13 classes") == figures
    if table:
        assert len(re.findall(r' title="class \d+ predicted as class \d+: ', text)) == classes * classes
        assert "class 0 predicted as class 1: 1 of 6" in text


def test_many_classes_are_folded_away(tmp_path: Path) -> None:
    names = tuple(f"class {i}" for i in range(45))
    text = render(record([row(0, 1, 1)], tmp_path, samples=counted(np.eye(45, dtype=int).tolist()), classes=names))
    assert "15 more, which are better" in text


@pytest.mark.parametrize(
    "missing", [BEST, CONFIG_FILE, PLAN_FILE, ENVIRONMENT_FILE, METRICS_FILE, SUMMARY_FILE, "batch.png", ".hydra"]
)
def test_every_file_may_be_missing(run: Path, missing: str) -> None:
    if missing == ".hydra":
        (run / ".hydra" / "overrides.yaml").unlink()
    else:
        (run / missing).unlink()
    text = Page(render(read_record(run))).text
    assert "nan" not in text.lower()
    assert ("best.pt has no" in text) is (missing == BEST)
    assert ("not ended" in text) is (missing == SUMMARY_FILE)


@pytest.mark.parametrize("broken", [BEST, CONFIG_FILE, ENVIRONMENT_FILE, METRICS_FILE, SUMMARY_FILE, "batch.png"])
def test_every_file_may_be_broken(run: Path, broken: str) -> None:
    (run / broken).write_bytes(b"[what is this")
    assert "Run it again" in Page(render(read_record(run))).text


def test_a_run_in_progress_is_told_from_a_killed_one(run: Path) -> None:
    (run / SUMMARY_FILE).unlink()
    reserve_summary(run)
    killed = Page(render(read_record(run))).text
    with owned(run, resumed=str(run)):
        page = Page(render(read_record(run)))
    running = page.text
    assert page.sections == ["curves", "classes", "mistakes", "fed", "again"]  # those of the best epoch so far
    assert ("The run was killed" in killed, "running" in killed.split()) == (True, False)
    assert ("The run was killed" in running, "running" in running.split()) == (False, True)
    assert not np.isfinite(read_record(run).ending.seconds)  # of which the summary says nothing yet


def test_an_empty_folder_has_a_page(tmp_path: Path) -> None:
    text = Page(render(read_record(tmp_path))).text
    assert "no epoch was scored" in text
    assert "not ended" in text


# --- curves ---


def test_curves_show_the_data(run: Path) -> None:
    made = {chart.title: chart for chart in charts(read_record(run))}
    assert list(made) == ["Loss", "Accuracy", "Learning rate", "Training images per second"]
    course = "2 in the first epoch, 1.25 in the last."
    assert made["Loss"].alt == f"Training loss: {course} Validation loss: {course}"
    assert "From 0.0008 via 0.02 to 0." in made["Learning rate"].caption
    assert "median 100" in made["Training images per second"].alt
    assert all(b"<metadata" not in base64.b64decode(chart.uri.split(",")[1]) for chart in made.values())


def test_what_was_not_reached_is_dotted(run: Path) -> None:
    half = read_record(run)
    half.rows = half.rows[:2]
    assert "Dotted" in next(chart.caption for chart in charts(half) if chart.title == "Learning rate")


def test_batches_of_stages_are_counted(run: Path) -> None:
    read = read_record(run)
    assert read.batches_before is not None
    assert read.batches_before.tolist() == [0, 3, 6, 9, 12]  # six images in batches of two
    config = OmegaConf.load(run / CONFIG_FILE)
    stages = {"small": {"epochs": 1, "size": 64, "batch_size": 4}, "large": {}}
    OmegaConf.save(OmegaConf.merge(config, {"fit": {"stages": stages, "drop_last": True}}), run / CONFIG_FILE)
    read = read_record(run)
    assert read.batches_before is not None
    assert read.batches_before.tolist() == [0, 1, 4, 7, 10]


def test_every_schedule_has_a_curve(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = read_record(run)
    assert read.config is not None
    both = {"lr": lin(1, 0), "momentum": lin(0.95, 0.85)}
    monkeypatch.setattr(type(read.config.fit), "schedules", lambda self: both)
    captions = {chart.title: chart.caption for chart in charts(read)}
    assert captions["Momentum"].endswith("From 0.95 to 0.85.")
    both["momentum"] = one_cycle(0.85, start=0.95, end=0.95)
    captions = {chart.title: chart.caption for chart in charts(read)}
    assert captions["Momentum"].endswith("From 0.95 via 0.85 to 0.95.")


def test_steps_make_finer_curves(run: Path) -> None:
    lines = [{"seconds": i, "step": i, "loss": 1.0, "images_per_second": 50.0 + i} for i in range(3000)]
    cut = json.dumps(lines[-1])[:9]
    (run / "steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + cut)
    read = read_record(run)
    assert len(read.steps) == 3000
    made = {chart.title: chart for chart in charts(read)}
    assert "51 to 3,048" in made["Training images per second"].alt  # means of three each
    assert len(made["Loss"].uri) < 150_000


# --- the worst mistakes ---


def test_the_most_confident_mistakes_come_first(run: Path) -> None:
    wrong, _ = mistakes(read_record(run), 2)
    found = [(round(mistake.sample.confidence or 0, 2), mistake.file.name) for mistake in wrong]
    assert found == [(0.8, "1.jpg"), (0.7, "0.jpg")]
    assert wrong[0].sample.true == NAMES[1]
    assert wrong[0].sample.predicted.startswith("<script>")
    (run / "thumbnail.jpg").write_bytes(base64.b64decode(wrong[0].uri.split(",")[1]))
    with Image.open(run / "thumbnail.jpg") as image:
        assert image.size == (SIDE, round(SIDE * 2 / 3))
    assert Page(render(read_record(run))).text.count("true: bee") == 2  # callbacks.report.mistakes=2


def test_a_deleted_image_is_reported(run: Path) -> None:
    read = read_record(run)
    mistakes(read, 1)[0][0].file.unlink()
    assert "cannot be read" in Page(render(read)).text


def test_other_images_than_those_of_the_run_are_not_shown(run: Path) -> None:
    best = load(run / BEST, BestModel)
    best.samples["target"][0] = 1
    save(best, run / BEST)
    assert mistakes(read_record(run), 2) == ([], "The validation images are no longer those of this run.")
    best.samples["index"][0] = -1
    save(best, run / BEST)
    why = "The run did not keep which prediction belongs to which image."
    assert mistakes(read_record(run), 2) == ([], why)
    save(replace(best, samples=None), run / BEST)
    assert "best.pt has no predictions of single images" in Page(render(read_record(run))).text
