"""The report of a run: what is in it, what it makes of the data, and that it stands alone whatever is missing."""

import base64
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes import CLASSES, make_learner, on, raises
from omegaconf import OmegaConf
from PIL import Image

from augment.dataset import Dataset, Split
from trainer.callback import Callback, CancelFit
from trainer.callbacks import Checkpoint, Interrupt, ParamScheduler
from trainer.checkpoint import BEST, LAST, load, save
from trainer.config import parse_config
from trainer.metrics import wilson_interval
from trainer.outputs import Outputs
from trainer.recorder import METRICS_FILE, Recorder, Row
from trainer.report import REPORT_FILE, Ending, Report, page
from trainer.report.__main__ import main
from trainer.report.charts import charts
from trainer.report.classes import class_scores, most_confused
from trainer.report.findings import findings, percent
from trainer.report.images import SIDE, UnfitError, mistakes
from trainer.report.page import render, write_report
from trainer.report.record import Record, read_record
from trainer.run import CONFIG_FILE, ENVIRONMENT_FILE, PLAN_FILE
from trainer.schedule import lin, one_cycle
from trainer.summary import SUMMARY_FILE

NAMES = ("<script>alert(1)</script>", 'bee "&" co')
DONE = Ending("finished", 75.0)


class Page(HTMLParser):
    """The tags, what they refer to, and the text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.references: list[str] = []
        self.sections: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.append(tag)
        self.sections += [values["id"] or ""] if tag == "section" and "id" in values else []
        self.references += [values[key] or "" for key in ("src", "href", "srcset", "data", "action") if key in values]

    def handle_data(self, data: str) -> None:
        self.text += data


def row(epoch: int, train: float, val: float, accuracy: float = 0.5, **more: float) -> Row:
    rest = {"train_accuracy": 0.5, "lr": 0.1, "seconds": 1.0, "images_per_second": 100.0}
    return {"epoch": epoch, "train_loss": train, "val_loss": val, "val_accuracy": accuracy, **rest} | more


def samples(index: list[int], target: list[int], prediction: list[int], confidence: list[float]) -> dict[str, Any]:
    return {
        "index": torch.tensor(index),
        "target": torch.tensor(target),
        "prediction": torch.tensor(prediction),
        "confidence": torch.tensor(confidence),
    }


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run's folder as a fit leaves it, with pictures; of six, class 0 has one wrong, class 1 two."""
    monkeypatch.chdir(tmp_path)  # below which the check of the pictures is kept
    for split in ("train", "val"):
        for label, name in enumerate(NAMES):
            folder = tmp_path / "data" / split / name.replace("/", "_")
            folder.mkdir(parents=True)
            for i in range(3):
                Image.new("RGB", (300, 200), (80 * label, 60 * i, 90)).save(folder / f"{i}.jpg")
    folder = tmp_path / "runs" / "one"
    (folder / ".hydra").mkdir(parents=True)
    config = parse_config(
        {"data": {"source": "folder", "root": str(tmp_path / "data")}, "model": {"kind": "cnn"}}
        | {"fit": {"epochs": 4, "batch_size": 2}, "callbacks": {"checkpoint": {}, "report": {"mistakes": 2}}}
    )
    (folder / CONFIG_FILE).write_text(OmegaConf.to_yaml(dict(config.resolved)))
    (folder / PLAN_FILE).write_text("train: 128 x 128 px <b>\n")
    environment = {"git": {"revision": "abc123", "modified": True}, "python": "3.11.7"}
    packages = {"packages": {"torch": "2.15.0", "wandb": None}, "gpus": []}
    (folder / ENVIRONMENT_FILE).write_text(json.dumps(environment | packages))
    rows = [row(i, 2.0 - i / 4, 2.0 - i / 4, 0.3 + i / 20) for i in range(4)]
    (folder / METRICS_FILE).write_text("".join(json.dumps(r) + "\n" for r in rows))
    ended = {"status": "finished", "seconds": 75.0, "best": rows[3], "error": "", "epochs": 4, "folder": str(folder)}
    (folder / SUMMARY_FILE).write_text(json.dumps(ended))
    (folder / ".hydra" / "overrides.yaml").write_text("- data=folder\n- ++data.root=/a b\n- ++fit.epochs=4\n")
    Image.new("RGB", (64, 64)).save(folder / "batch.png")
    # As files are sorted, "<script..." comes before "bee"; "_" for the slash of its name.
    state = {"model": {}, "row": rows[3], "classes": [NAMES[0].replace("/", "_"), NAMES[1]]}
    single = samples([0, 1, 2, 3, 4, 5], [0, 0, 0, 1, 1, 1], [0, 1, 0, 0, 0, 1], [0.9, 0.6, 0.5, 0.7, 0.8, 0.99])
    save(state | {"confusion": torch.tensor([[2, 1], [2, 1]]), "samples": single}, folder / BEST)
    return folder


def record(rows: list[Row], folder: Path = Path("x"), ending: Ending = DONE, **more: Any) -> Record:
    best = max(rows, key=lambda r: r["val_accuracy"], default={})
    return Record(folder, ending, rows=rows, best=best, **more)


def said(record: Record) -> str:
    return " | ".join(("! " if finding.warning else "") + finding.text for finding in findings(record))


def test_repeated_pictures_are_counted_once() -> None:
    train, val = Split((Path("a"), Path("b"), Path("b")), (0, 1, 1), repeated=1), Split((Path("c"),), (0,))
    shown = record([], classes=("ant", "bee"), dataset=Dataset(("ant", "bee"), train, val))
    assert page._sizes(shown) == "2 (repeated to 3) + 1 pictures, 2 classes"


# --- the page ---


def test_all_sections_are_there_in_order(run: Path) -> None:
    file = write_report(run)
    assert file == run / REPORT_FILE
    text = Page(file.read_text())
    assert text.sections == ["curves", "classes", "mistakes", "fed", "again"]
    for part in (
        "50.0 %",
        "{:.1f} % to {:.1f} %".format(*(100 * v for v in wilson_interval(3, 6))),
        "n = 6 pictures",
        "4 of 4",
        "1 min 15 s",
        "100 img/s",
        "6 + 6 pictures, 2 classes",
        "finished",
        "abc123, with changes",
        "python -m trainer data=folder 'data.root=/a b' fit.epochs=4",
        "torch2.15.0",
        "train: 128 x 128 px <b>",
        "batch_size: 2",
        "12 training batches",
    ):
        assert part in text.text.replace("\n", ""), part
    assert file.stat().st_size < 500_000


def test_a_page_refers_to_nothing_outside_and_runs_nothing(run: Path) -> None:
    text = render(read_record(run))
    parsed = Page(text)
    assert parsed.references
    assert all(reference.startswith("data:image/") for reference in parsed.references)
    assert not {"script", "link", "iframe", "object", "embed", "base", "form"} & set(parsed.tags)
    assert not re.search(r"url\(|@import|https?://", text)
    assert "default-src 'none'" in text


def test_names_of_classes_are_text(run: Path) -> None:
    text = render(read_record(run))
    assert "<script" not in text
    assert "&lt;script&gt;alert(1)&lt;_script&gt;" in text
    assert NAMES[1] in Page(text).text
    for uri in re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', text):
        assert b"script" not in base64.b64decode(uri)


def test_light_dark_paper_and_phone_are_thought_of(run: Path) -> None:
    text = render(read_record(run))
    for part in ("prefers-color-scheme: dark", "@media print", "max-width: 720px", 'name="viewport"', "charset"):
        assert part in text
    assert all("alt=" in tag for tag in re.findall(r"<img [^>]*>", text))


@pytest.mark.parametrize(
    ("classes", "table", "listed", "pictures"), [(3, True, False, 0), (20, True, True, 0), (21, False, True, 1)]
)
def test_the_confusion_matrix_by_the_number_of_classes(
    classes: int, table: bool, listed: bool, pictures: int, tmp_path: Path
) -> None:
    counts = np.eye(classes, dtype=np.int64) * 5 + np.eye(classes, k=1, dtype=np.int64)
    names = tuple(f"class {i}" for i in range(classes))
    text = render(record([row(0, 1, 1)], tmp_path, confusion=counts, classes=names))
    assert ('<table class="matrix">' in text) is table
    assert ("most confused pairs" in text) is listed
    assert text.count("Confusion matrix of 21 classes") == pictures
    if table:
        assert len(re.findall(r' title="class \d+ taken for class \d+: ', text)) == classes * classes
        assert "class 0 taken for class 1: 1 of 6" in text


def test_many_classes_are_folded_away(tmp_path: Path) -> None:
    names = tuple(f"class {i}" for i in range(45))
    text = render(record([row(0, 1, 1)], tmp_path, confusion=np.eye(45, dtype=np.int64), classes=names))
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


def test_an_empty_folder_still_makes_a_page(tmp_path: Path) -> None:
    text = Page(render(read_record(tmp_path))).text
    assert "no epoch was scored" in text
    assert "not ended" in text


# --- what is made of the data ---


def test_scores_of_classes_by_hand() -> None:
    counts = np.array([[8, 2, 0], [0, 10, 0], [0, 0, 0]])
    worst, best = class_scores(counts, ["a", "b", "c"])  # c has no pictures
    assert (worst.name, worst.right, worst.total, worst.taken_for, worst.times) == ("a", 8, 10, "b", 2)
    assert (worst.low, worst.high) == pytest.approx((0.490, 0.943), abs=1e-3)
    assert (best.name, best.accuracy, best.taken_for) == ("b", 1.0, "")
    (pair,) = most_confused(counts, ["a", "b", "c"], 20)
    assert (pair.true, pair.predicted, pair.times, pair.share) == ("a", "b", 2, 0.2)


def test_nothing_counted_says_nothing() -> None:
    assert wilson_interval(0, 0) == (0.0, 1.0)
    assert wilson_interval(0, 20)[0] == 0.0


@pytest.mark.parametrize(("share", "text"), [(1.0, "100.0 %"), (0.9999, "99.9 %"), (0.816, "81.6 %"), (0.0, "0.0 %")])
def test_only_all_is_hundred_percent(share: float, text: str) -> None:
    assert percent(share, 1) == text


OVER = [row(i, 2.0 - i / 10, 1.0 + 0.1 * abs(i - 3), accuracy=0.6 - 0.01 * abs(i - 3)) for i in range(9)]


def test_overfitting_is_said_with_its_epoch() -> None:
    text = said(record(OVER))
    assert "! Training loss still falls and validation loss has risen since epoch 4 (1 to 1.5): overfitting" in text


@pytest.mark.parametrize(
    "rows",
    [
        [row(i, 2.0 - i / 10, 2.0 - i / 10) for i in range(9)],  # both fall
        OVER[:5],  # one epoch is chance
        [r | {"train_loss": 1.0} for r in OVER],  # training does not fall
        [r | {"val_loss": 1.0 + 0.002 * i} for i, r in enumerate(OVER)],  # too little
        [],
    ],
)
def test_overfitting_is_not_said_without_reason(rows: list[Row]) -> None:
    assert "overfitting" not in said(record(rows))


def test_still_improving() -> None:
    rows = [row(i, 1.0, 1.0, accuracy=0.5 + i / 10) for i in range(4)]
    assert "more epochs may bring more" in said(record(rows))
    assert "more epochs" not in said(record([*rows, row(4, 1, 1, accuracy=0.8)]))
    assert "more epochs" not in said(record(rows, ending=Ending("interrupted", 1)))


def unscored(rows: list[Row], which: list[int]) -> list[Row]:
    """Rows of which some are those of epochs without validation."""
    return [{k: v for k, v in r.items() if i not in which or not k.startswith("val_")} for i, r in enumerate(rows)]


def test_epochs_without_validation_are_passed_over() -> None:
    rare = unscored([*OVER, row(9, 0.5, 9.9)], [0, 2, 9])
    text = said(Record(Path("x"), Ending("interrupted", 1), rows=rare, best=rare[3]))
    assert "has risen since epoch 4 (1 to 1.5): overfitting" in text
    rising = [row(i, 1.0, 1.0, accuracy=0.5 + i / 20) for i in range(9)]
    rare = unscored(rising, [0, 1, 3, 4, 6, 7])
    assert "more epochs may bring more" in said(Record(Path("x"), DONE, rows=rare, best=rare[-1]))
    assert charts(Record(Path("x"), DONE, rows=rare, best=rare[-1]))


def test_a_gap_between_training_and_validation() -> None:
    assert "25 points higher in training" in said(record([row(0, 1, 1, accuracy=0.5, train_accuracy=0.75)]))
    assert "points" not in said(record([row(0, 1, 1, accuracy=0.5, train_accuracy=0.55)]))


def test_waiting_for_data() -> None:
    rows = [row(0, 1, 1, waiting=0.9), row(1, 1, 1, waiting=0.3), row(2, 1, 1, waiting=0.3)]
    assert "! The model waited 30 % of the training time for data" in said(record(rows))
    assert "! The GPU waited 30 %" in said(record(rows, environment={"gpus": ["H200"]}))
    few = said(record([r | {"waiting": 0.02} for r in rows]))
    assert "The model waited 2 %" in few
    assert "! The model" not in few
    assert "waited" not in said(record([row(0, 1, 1)]))


def test_a_slow_epoch() -> None:
    rows = [row(i, 1, 1, images_per_second=rate) for i, rate in enumerate((10, 100, 110, 40, 100))]
    assert "Epoch 4 ran at 40 img/s, where 100 are usual" in said(record(rows))
    assert "ran at" not in said(record(rows[:3]))


def test_the_worst_class() -> None:
    counts = np.array([[20, 0, 0], [5, 10, 5], [1, 0, 19]])
    text = said(record([row(0, 1, 1)], confusion=counts, classes=("a", "b", "c")))
    assert "Worst class: b at 50 % (10 of 20), most often taken for a (5 times)." in text
    assert "Every validation picture is right" in said(
        record([row(0, 1, 1)], confusion=np.eye(3, dtype=np.int64) * 9, classes=("a", "b", "c"))
    )


def test_guessing() -> None:
    unequal = np.array([[90, 0], [10, 0]])  # always the larger class
    assert "! The best accuracy cannot be told from" in said(
        record([row(0, 1, 1)], confusion=unequal, classes=("a", "b"))
    )
    assert "cannot be told" not in said(record([row(0, 1, 1)], confusion=np.eye(2, dtype=int) * 9, classes=("a", "b")))


@pytest.mark.parametrize(("batches", "said_so"), [(None, False), (10, True), (43, True), (44, False)])
def test_few_batches(batches: int | None, said_so: bool) -> None:
    text = said(record([row(0, 1, 1)], normed=batches))
    assert ("running statistics of batch norm" in text) == said_so
    if batches == 10:
        assert "! The best epoch comes after 10 training batches" in text
        assert "still 35 % of what they began as" in text


def test_the_batches_of_the_best_epoch_are_read(run: Path) -> None:
    assert read_record(run).normed is None
    best = load(run / BEST)
    norm = "stem.1.num_batches_tracked"
    save(best | {"model": {norm: torch.tensor(12), "head.1.num_batches_tracked": torch.tensor(9)}}, run / BEST)
    assert read_record(run).normed == 9


def test_naming_the_mean() -> None:
    targets = torch.tensor([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]])
    told = Outputs(torch.arange(3), targets, targets * torch.tensor([1.1, 0.0]))
    text = said(record([], classes=("age", "height"), task="regress", outputs=told))
    assert text == "! height is told no better than by naming its mean for every picture (R² -6.00)."


@pytest.mark.parametrize(
    ("ending", "text"),
    [
        (Ending("failed", 1, "RuntimeError: <b>"), "! The run failed after 1 epoch: RuntimeError: <b>"),
        (Ending("interrupted", 1), "! The run was interrupted after 1 epoch; fit.resume goes on"),
        (Ending("not ended", None), "! The run has not said how it ended: 1 epoch"),
    ],
)
def test_other_ends(ending: Ending, text: str) -> None:
    assert text in said(record([row(0, 1, 1)], ending=ending))


def test_an_early_end_says_why(run: Path) -> None:
    read = read_record(run, Ending("finished", 1, stopped="no better val_loss in 2 epochs"))
    read.rows = read.rows[:3]
    assert "The run ended early, after 3 of 4 epochs: no better val_loss in 2 epochs." in said(read)
    assert "by val_accuracy; last epoch: 40.0 %" in Page(render(read)).text


def test_a_loss_that_is_no_number() -> None:
    rows = [row(0, 1, 1), row(1, float("nan"), 1)]
    assert "! The training loss is no number in epoch 2." in said(record(rows))
    assert charts(record(rows))


# --- curves ---


def test_curves_are_those_of_the_data(run: Path) -> None:
    made = {chart.title: chart for chart in charts(read_record(run))}
    assert list(made) == ["Loss", "Accuracy", "Learning rate", "Training pictures a second"]
    assert made["Loss"].alt == "Training loss: 2 at first, 1.25 at last. Validation loss: 2 at first, 1.25 at last."
    assert "From 0.0008 over 0.02 to 0." in made["Learning rate"].caption
    assert "median 100" in made["Training pictures a second"].alt
    assert all(b"<metadata" not in base64.b64decode(chart.uri.split(",")[1]) for chart in made.values())


def test_what_was_not_reached_is_dotted(run: Path) -> None:
    half = read_record(run)
    half.rows = half.rows[:2]
    assert "Dotted" in next(chart.caption for chart in charts(half) if chart.title == "Learning rate")


def test_batches_of_stages_are_counted(run: Path) -> None:
    read = read_record(run)
    assert read.batches_before is not None
    assert read.batches_before.tolist() == [0, 3, 6, 9, 12]  # six pictures in batches of two
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
    assert captions["Momentum"].endswith("From 0.95 over 0.85 to 0.95.")


def test_steps_make_finer_curves(run: Path) -> None:
    lines = [{"seconds": i, "step": i, "loss": 1.0, "images_per_second": 50.0 + i} for i in range(3000)]
    cut = json.dumps(lines[-1])[:9]
    (run / "steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + cut)
    read = read_record(run)
    assert len(read.steps) == 3000
    made = {chart.title: chart for chart in charts(read)}
    assert "51 to 3,048" in made["Training pictures a second"].alt  # means of three each
    assert len(made["Loss"].uri) < 150_000


# --- the worst mistakes ---


def test_the_most_confident_mistakes_come_first(run: Path) -> None:
    wrong = mistakes(read_record(run), 2)
    assert [(round(m.confidence, 2), m.file.name) for m in wrong] == [(0.8, "1.jpg"), (0.7, "0.jpg")]
    assert wrong[0].true == NAMES[1]
    assert wrong[0].predicted.startswith("<script>")
    (run / "thumbnail.jpg").write_bytes(base64.b64decode(wrong[0].uri.split(",")[1]))
    with Image.open(run / "thumbnail.jpg") as image:
        assert image.size == (SIDE, round(SIDE * 2 / 3))
    assert Page(render(read_record(run))).text.count("true: bee") == 2  # callbacks.report.mistakes=2


def test_a_file_that_is_gone_leaves_its_place(run: Path) -> None:
    read = read_record(run)
    mistakes(read, 1)[0].file.unlink()
    assert "cannot be read" in Page(render(read)).text


def test_other_pictures_than_those_of_the_run_are_not_shown(run: Path) -> None:
    best = load(run / BEST)
    best["samples"]["target"][0] = 1
    save(best, run / BEST)
    with pytest.raises(UnfitError, match="not those of this run any more"):
        mistakes(read_record(run), 2)
    best["samples"]["index"][0] = -1
    save(best, run / BEST)
    with pytest.raises(UnfitError, match="which prediction is of which picture"):
        mistakes(read_record(run), 2)
    del best["samples"]
    save(best, run / BEST)
    assert "best.pt has no predictions of single pictures" in Page(render(read_record(run))).text


# --- the callback ---


def fit(folder: Path, *callbacks: Callback) -> str:
    learner = make_learner(Recorder(), Checkpoint(), Report(), *callbacks, folder=folder)
    learner.fit()
    return Page((folder / REPORT_FILE).read_text()).text


def test_the_callback_writes_it(tmp_path: Path) -> None:
    text = fit(tmp_path)
    assert "finished" in text
    assert "n = 3 pictures" in text
    assert CLASSES[0] in text


def test_an_interrupted_fit_has_a_report(tmp_path: Path) -> None:
    interrupt = Interrupt()

    def press(learner: object) -> None:
        interrupt.pressed = True

    text = fit(tmp_path, interrupt, on("before_validate", press))
    assert "interrupted after 0 epochs" in text
    assert f"fit.resume={tmp_path}" in text
    assert (tmp_path / LAST).is_file()


def test_a_failed_fit_has_a_report(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="out of memory"):
        fit(tmp_path, on("after_epoch", raises(RuntimeError("out of memory"), 1)))
    text = Page((tmp_path / REPORT_FILE).read_text()).text
    assert "The run failed after" in text
    assert "RuntimeError: out of memory" in text


def test_a_second_ctrl_c_leaves_it_out(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path, on("after_epoch", raises(KeyboardInterrupt)))
    assert not (tmp_path / REPORT_FILE).exists()


def test_an_early_end_is_no_interruption(tmp_path: Path) -> None:
    assert "interrupted" not in fit(tmp_path, Interrupt(), on("after_epoch", raises(CancelFit)))


def test_a_report_that_cannot_be_written_costs_no_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(page, "write_whole", full)
    make_learner(Recorder(), Report(), ParamScheduler({"lr": lin(1, 0)}), folder=tmp_path).fit()
    assert "no report.html: no space left" in caplog.text


# --- the command line ---


def test_the_command_makes_it_anew(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / REPORT_FILE).write_text("old")
    assert main([str(run)]) == 0
    assert capsys.readouterr().out == f"{run / REPORT_FILE}\n"
    assert "Run it again" in (run / REPORT_FILE).read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (lambda run: [str(run / "none")], "none: no such folder. Allowed: the folder of a run."),
        (lambda run: [str(run.parent)], "no config.yaml in it. Allowed: the folder of a run."),
        (lambda run: [str(run), "fit.epochs=3"], "fit.epochs=3: not allowed here. Allowed: the folders of runs."),
        (lambda run: ["--open", str(run)], "--open: not allowed here."),
    ],
)
def test_mistakes_cost_one_line_and_exit_code_2(
    run: Path, arguments: Callable[[Path], list[str]], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments(run))
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (run / REPORT_FILE).exists()


def test_a_page_that_cannot_be_written_is_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / REPORT_FILE).mkdir()
    with pytest.raises(SystemExit, match="2"):
        main([str(run)])
    assert f"error: {run / REPORT_FILE}: cannot be written: " in capsys.readouterr().err


def test_without_arguments_it_says_how(capsys: pytest.CaptureFixture[str]) -> None:
    assert (main([]), main(["--help"])) == (2, 0)
    assert "python -m trainer.report RUN_FOLDER" in capsys.readouterr().out


def test_a_configuration_that_is_not_allowed_any_more_is_noted(run: Path) -> None:
    text = (run / CONFIG_FILE).read_text().replace("epochs: 4", "epochs: -4")
    (run / CONFIG_FILE).write_text(text)
    read = read_record(run)
    assert read.notes[CONFIG_FILE].startswith("fit.epochs: -4 is not allowed.")
    assert "What could not be read for this page" in Page(render(read)).text
