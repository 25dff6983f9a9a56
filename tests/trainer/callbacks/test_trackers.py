"""Experiment trackers: one run and its continuation, sent to all of them and read back from their own files."""

import json
import os
import re
import shutil
import struct
import warnings
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from fakes import lin, make_learner
from PIL import Image

from trainer.callbacks import tracker as trackers
from trainer.callbacks.checkpoint import Checkpoint
from trainer.callbacks.mlflow import Mlflow
from trainer.callbacks.optimizer_steps import ParamScheduler
from trainer.callbacks.plots import Plots
from trainer.callbacks.recorder import Recorder
from trainer.callbacks.tensorboard import Tensorboard
from trainer.callbacks.wandb import Wandb
from trainer.loop.callback import RunDescription
from trainer.loop.checkpoint import BEST
from trainer.loop.learner import Learner

NAME, TAGS = "rotate.p=1 </td><script>alert(1)</script>/../../up", ("first | **try**", "<b>two</b>")
KEYS = ("train_loss", "val_loss", "val_accuracy")
STEPS, EPOCHS = [1, 2, 3, 4, 5, 6, 7, 8, 9], [0, 1, 2]  # two epochs of three batches, and one after it was resumed


@dataclass
class Tracked:
    """Where the stores are, what the learners recorded, and what the trackers' packages printed."""

    folder: Path
    first: Learner
    second: Learner
    printed: str

    @property
    def rows(self) -> list[dict[str, float]]:
        return self.second.find(Recorder).rows


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tracked]:
    """A run of two epochs with all trackers, and one that resumes it for a third, in another folder."""
    folder = tmp_path_factory.mktemp("tracked")
    files = tuple(folder / f"{i}.png" for i in range(3))
    for i, file in enumerate(files):
        Image.new("RGB", (20, 10), (80 * i, 0, 0)).save(file)
    config = {
        "callbacks": {"report": {}},
        "fit": {"lr": 0.1},
        "data": {"token": "***"},
        "run": {"name": None, "tags": list(TAGS)},
    }
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the trackers' packages
        patch.chdir(folder)
        for name in [name for name in os.environ if name.startswith(("WANDB_", "MLFLOW_"))]:
            patch.delenv(name)
        for name in ("WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "HOME"):
            patch.setenv(name, str(folder / name.lower()))
        for name, value in (("WANDB_ERROR_REPORTING", "false"), ("WANDB_SILENT", "true")):
            patch.setenv(name, value)

        def learner(epochs: int, name: str, group: str) -> Learner:
            (folder / group).mkdir()
            (folder / group / "environment.json").write_text('{"git": {"revision": "0123abc"}}')
            chosen = (Wandb(checkpoint=True), Tensorboard(), Mlflow(checkpoint=True))
            callbacks = (Recorder(interval=0), ParamScheduler({"lr": lin(0.1, 0.0)}), Checkpoint(), Plots(), *chosen)
            run = RunDescription(config, "sweep", name, TAGS, files)
            return make_learner(*callbacks, epochs=epochs, folder=folder / group, run=run)

        with redirect_stdout(StringIO()) as printed, redirect_stderr(printed):
            first = learner(2, NAME, "first")
            first.fit()
            second = learner(3, "named by its folder", "second")
            shutil.copy(folder / "first" / BEST, folder / "second" / BEST)  # as resuming does
            second.fit(second.restore(first.state()))
        yield Tracked(folder, first, second, printed.getvalue())


def test_they_print_nothing_into_the_table_of_epochs(tracked: Tracked) -> None:
    assert "mlflow" not in tracked.printed.lower()


# --- Weights & Biases ---


def records(file: Path) -> Iterator[Any]:
    """Yield the records of an offline run: its blocks of 32 KiB hold parts of them, as in LevelDB's log."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, block, header, whole = file.read_bytes(), 2**15, 7, b""
    at = header  # of the file
    while at + header <= len(data):
        length, kind = struct.unpack_from("<HB", data, at + 4)  # after the checksum
        if block - at % block < header or not kind:
            at += block - at % block
            continue
        whole += data[at + header : at + header + length]
        at += header + length
        if kind in (1, 4):  # whole, or the last part
            record = Record()
            record.ParseFromString(whole)
            yield record
            whole = b""


@pytest.fixture(scope="module")
def sent(tracked: Tracked) -> list[list[Any]]:
    """The records of both runs."""
    files = (next((tracked.folder / name).glob("wandb/offline-run-*/*.wandb")) for name in ("first", "second"))
    return [list(records(file)) for file in files]


def values(items: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def test_wandb_has_the_run(sent: list[list[Any]]) -> None:
    first, second = (next(r.run for r in run if r.HasField("run")) for run in sent)
    assert (first.project, first.display_name, first.run_group) == ("dali-trainer", NAME, "sweep")
    assert tuple(first.tags) == TAGS
    assert values(first.config.update)["fit"] == {"lr": 0.1}
    assert values(first.config.update)["data"] == {"token": "***"}
    assert (second.run_id, second.display_name) == (first.run_id, "")  # which keeps the first one's name


def test_wandb_has_curves_by_step_and_by_epoch(tracked: Tracked, sent: list[list[Any]]) -> None:
    rows = [values(r.history.item) for r in chain(*sent) if r.HasField("history")]
    running = {row["_step"]: row for row in rows if "step/loss" in row}
    assert list(running) == STEPS
    assert [running[step]["step/lr"] for step in (1, 6)] == pytest.approx([0.1, 0.1 / 6], abs=1e-3)
    epochs = [row for row in rows if "val/accuracy" in row]
    assert [(row["epoch"], row["_step"]) for row in epochs] == [(1, 3), (2, 6), (3, 9)]  # counted from 1
    for row, recorded in zip(epochs, tracked.rows, strict=True):
        grouped = {name: re.sub("^(train|val)_", r"\1/", name) for name in recorded}
        expected = recorded | {"epoch": recorded["epoch"] + 1}
        assert {name: row[group] for name, group in grouped.items()} == pytest.approx(expected)


def test_wandb_sums_up_the_best_value_of_each_metric(sent: list[list[Any]]) -> None:
    over = {r.metric.name: r.metric for r in sent[0] if r.HasField("metric") and r.metric.step_metric == "epoch"}
    summed = {name: (over[name].summary.min, over[name].summary.max, over[name].summary.last) for name in over}
    assert (summed["train/loss"], summed["val/accuracy"]) == ((True, False, True), (False, True, True))
    assert summed["lr"] == (False, False, False)


def test_all_have_the_best_and_the_last_epoch_and_the_report(tracked: Tracked, sent: list[list[Any]]) -> None:
    from mlflow import MlflowClient
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    rows = tracked.rows
    best = max(rows, key=lambda row: row["val_accuracy"])
    wanted = {f"{when}/{key}": row[key] for when, row in (("best", best), ("last", rows[-1])) for key in KEYS}
    report = str(tracked.folder / "second" / "report.html")

    summary: dict[str, Any] = {}
    for record in sent[1]:
        summary |= values(record.summary.update) if record.HasField("summary") else {}
    assert {key: summary[key] for key in wanted} == pytest.approx(wanted)
    assert summary["report"] == report

    client = MlflowClient(f"sqlite:///{tracked.folder}/outputs/mlflow.db")
    (run,) = client.search_runs([client.get_experiment_by_name("dali-trainer").experiment_id])
    assert {key: run.data.metrics[key] for key in wanted} == pytest.approx(wanted)
    assert [metric.step for metric in client.get_metric_history(run.info.run_id, "best/val_accuracy")] == [1, 2, 3]
    assert run.data.tags["report"] == report
    assert run.data.tags["mlflow.source.git.commit"] == "0123abc"

    events = EventAccumulator(str(tracked.folder / "second" / "tensorboard"))
    events.Reload()
    assert {key: events.Scalars(key)[-1].value for key in wanted} == pytest.approx(wanted)
    assert [event.step for event in events.Scalars("best/val_accuracy")] == [1, 2, 3]
    data = HParamsPluginData.FromString(events.PluginTagToContent("hparams")["_hparams_/session_start_info"])
    assert data.session_start_info.hparams["fit.lr"].number_value == 0.1


def test_wandb_has_images_a_table_and_the_model(sent: list[list[Any]]) -> None:
    logged = {name.split("/")[0] for r in sent[0] if r.HasField("history") for name in values(r.history.item)}
    assert logged >= {"batch", "confusion", "wrong_predictions"}
    artifacts = [r.artifact for r in sent[0] if r.HasField("artifact")]
    assert [set(a.aliases) for a in artifacts if a.type == "model"] == [{"best", "latest"}]


# --- the others ---


def test_tensorboard_has_all_of_the_run_in_the_folder_that_it_ended_in(tracked: Tracked) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tracked.folder / "second" / "tensorboard"))
    events.Reload()
    for name in ("step/loss", "step/lr"):
        assert [event.step for event in events.Scalars(name)] == STEPS
    for name in ("val_accuracy", "train_loss"):
        found = [(event.step, event.value) for event in events.Scalars(f"epoch/{name}")]
        assert found == [(row["epoch"] + 1, pytest.approx(row[name])) for row in tracked.rows]
    assert {"batch", "confusion"} <= set(events.Tags()["images"])
    texts = {name: events.Tensors(f"{name}/text_summary")[0].tensor_proto.string_val[0] for name in ("run", "config")}
    assert b"<" not in texts["run"]
    assert b"    fit:\n      lr: 0.1\n" in texts["config"]


def test_mlflow_has_the_run(tracked: Tracked) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{tracked.folder}/outputs/mlflow.db")
    (run,) = client.search_runs([client.get_experiment_by_name("dali-trainer").experiment_id])
    assert (run.info.run_name, run.info.status) == (NAME, "FINISHED")
    assert (run.data.tags["group"], run.data.tags["tags"]) == ("sweep", ", ".join(TAGS))
    assert run.data.params["fit.lr"] == "0.1"
    history = {name: client.get_metric_history(run.info.run_id, name) for name in ("step/loss", "val_loss")}
    assert [metric.step for metric in history["step/loss"]] == STEPS
    assert [(m.step, m.value) for m in history["val_loss"]] == [(r["epoch"] + 1, r["val_loss"]) for r in tracked.rows]
    assert {a.path for a in client.list_artifacts(run.info.run_id)} >= {"batch.png", "confusion.png", "model"}
    mlflow = tracked.second.find(Mlflow)
    again = trackers.TrackedRun(id=str(mlflow._id), resumed=True, named=False, folder=None)
    assert mlflow.start(again) == EPOCHS[-1] + 1
