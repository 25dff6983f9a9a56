"""Names and tags of runs: where they come from, and what may be in them."""

import json
from pathlib import Path

import pytest

from trainer.run.config.schema import RunLabels, run_name, varied_name
from trainer.run.folder.reader import RunFolder
from trainer.run.folder.summary import Summary


@pytest.mark.parametrize(
    ("varied", "name"),
    [
        ([], ""),
        (["aug.train.rotate.p=0.075", "seed=1"], "aug.train.rotate.p=0.075 seed=1"),
        (["++fit.lr=0.1", "+aug=imagenette", "data.fold=3"], "fit.lr=0.1 aug=imagenette data.fold=3"),
        (["aug.train.rotate.p=1", "aug.val.rotate.p=0"], "aug.train.rotate.p=1 aug.val.rotate.p=0"),
        (["data.token=abc", "data.root='a=b'"], "data.token=*** data.root='a=b'"),
        (["fit.stages=" + 200 * "x"], "fit.stages=" + 108 * "x" + "\u2026"),
    ],
)
def test_a_job_of_a_sweep_is_called_by_what_it_varies(varied: list[str], name: str) -> None:
    assert varied_name(varied) == name


def test_a_configured_name_comes_first_and_that_of_the_folder_last(tmp_path: Path) -> None:
    assert run_name(RunLabels(name="<b>mine</b>"), tmp_path, ["seed=1"]) == "<b>mine</b>"
    assert run_name(RunLabels(), tmp_path, ["seed=1"]) == "seed=1"
    assert run_name(RunLabels(), tmp_path / "12-00-00-abc") == "12-00-00-abc"
    assert run_name(RunLabels(name="https://me:secret@host"), tmp_path) == "***"


@pytest.mark.parametrize("found", [{"name": 3}, {"tags": "abc"}, {"name": {"a": 1}}, {"tags": [{"b": 2}]}])
def test_a_summary_whose_labels_are_no_texts_is_not_read(found: dict[str, object], tmp_path: Path) -> None:
    known = {"status": "finished", "seconds": 1.0}
    for values, kept in ((known, True), (known | found, False)):
        (tmp_path / "summary.json").write_text(json.dumps(values))
        assert (RunFolder(tmp_path).summary.status != "") == kept


def test_a_summary_has_them_from_the_start(tmp_path: Path) -> None:
    Summary("running", tmp_path, name="<b>mine</b>", tags=("a", "</td>")).write()
    assert json.loads((tmp_path / "summary.json").read_text())["name"] == "<b>mine</b>"
    Summary("finished", tmp_path, 0, {}, {}, 1.0, name="<b>mine</b>", tags=("a", "</td>")).write()
    summary = RunFolder(tmp_path).summary
    assert (summary.name, summary.tags) == ("<b>mine</b>", ("a", "</td>"))
