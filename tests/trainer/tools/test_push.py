"""Test pushing a model to a hub on this machine, and using it from there."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from hub_server import Hub, hub

from augment.support.errors import UserError
from trainer import load_model
from trainer.tools.evaluate import main as evaluate
from trainer.tools.predict import main as predict
from trainer.tools.push import main as push

__all__ = ["hub"]


def fails(call: Callable[[], object], capsys: pytest.CaptureFixture[str]) -> str:
    """Return what a command line prints that ends with exit code 2."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as exit:
        call()
    assert exit.value.code == 2
    printed = capsys.readouterr().err
    assert "Traceback" not in printed
    return printed


def test_a_pushed_model_predicts_the_same(
    hub: Hub, finished_run: Path, photos: tuple[Path, ...], own_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert push([str(finished_run), "me/colors", "--license", "mit"]) == 0
    assert hub.private == {"me/colors": True}
    files = hub.files["me/colors"]
    assert set(files) - {".gitattributes"} == {"README.md", "best.pt", "config.yaml"}
    assert b"data" not in files["config.yaml"].replace(b"data:\n  source: sample", b"")
    assert str(finished_run.parent).encode() not in b"".join(files.values())
    card = files["README.md"].decode()
    assert 'license: "mit"' in card
    assert "| val_accuracy |" in card
    assert "\n    green\n" in card
    assert "center_crop" in card
    model = load_model("hf://me/colors", device="cpu")
    assert torch.load(model.folder / "best.pt")["samples"] is None
    expected = load_model(finished_run, device="cpu").predict(list(photos))
    assert model.predict(list(photos)) == expected
    assert load_model("hf://me/colors@main", device="cpu").predict(list(photos)) == expected
    assert predict(["hf://me/colors", str(photos[0]), "fit.device=cpu"]) == 0
    (own_folder / "mine/red").mkdir(parents=True)
    shutil.copy(photos[0], own_folder / "mine/red")
    assert evaluate(["hf://me/colors", "mine", "fit.device=cpu"]) == 0
    assert [file.name for file in own_folder.glob("outputs/data/hub/*/evaluation-mine.json")] == [
        "evaluation-mine.json"
    ]
    for data, message in ([], "runs on the hub have no data"), (["data=sample"], "the classes differ"):
        with pytest.raises(SystemExit, match="2"):
            evaluate(["hf://me/colors", *data, "fit.device=cpu"])
        assert message in capsys.readouterr().err


def test_a_public_repository_needs_the_flag(
    hub: Hub, finished_run: Path, own_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert push([str(finished_run), "me/colors", "--public"]) == 0
    assert hub.private == {"me/colors": False}
    assert "license" not in hub.files["me/colors"]["README.md"].decode()
    hub.files["me/colors"] = {}
    assert "Add --public" in fails(lambda: push([str(finished_run), "me/colors"]), capsys)
    assert hub.files == {"me/colors": {}}


def test_mistakes(hub: Hub, finished_run: Path, own_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "RUN USER/NAME" in fails(lambda: push([str(finished_run)]), capsys)
    for name in ("badname", "a/b/c"):
        assert f"{name}: this is not the name of" in fails(lambda name=name: push([str(finished_run), name]), capsys)
    assert "Cannot have -- or .." in fails(lambda: push([str(finished_run), "a/b..c"]), capsys)
    assert not hub.private
    assert "best.pt" in fails(lambda: push(["nowhere", "me/colors"]), capsys) or not hub.files
    assert "no run has started" in fails(lambda: push(["last", "me/colors"]), capsys)
    hub.denied = True
    assert "may not read it" in fails(lambda: push([str(finished_run), "me/colors"]), capsys)
    with pytest.raises(UserError, match=r"^hf://me/colors: there is no such repository"):
        load_model("hf://me/colors")
    hub.denied = False
    with pytest.raises(UserError, match=r"^hf://me/others: there is no such repository"):
        load_model("hf://me/others")
    assert push([str(finished_run), "me/colors"]) == 0
    with pytest.raises(UserError, match=r"^hf://me/colors: there is no such repository or revision"):
        load_model("hf://me/colors@v7")
    assert not hub.files.keys() - {"me/colors"}


@pytest.mark.parametrize("answer", [None, [], {}, {"id": "me/colors", "siblings": [1]}, "x", 1], ids=str)
def test_answers_that_no_hub_gives(
    answer: object,
    hub: Hub,
    finished_run: Path,
    own_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(hub, "answer", lambda *request: (200, answer, {}))
    assert "Check the network" in fails(lambda: push([str(finished_run), "me/colors"]), capsys)
    with pytest.raises(UserError, match=r"^hf://me/colors: the Hugging Face Hub cannot be reached .* the network\.$"):
        load_model("hf://me/colors")
    assert not list(own_folder.glob("outputs/data/hub/*/best.pt"))


def test_without_a_network(
    finished_run: Path, own_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE" in fails(lambda: push([str(finished_run), "me/colors"]), capsys)
    with pytest.raises(UserError, match=r"^hf://me/colors: the Hugging Face Hub cannot be reached .*HF_HUB_OFFLINE"):
        load_model("hf://me/colors")
    assert not list(own_folder.glob("outputs/data/hub/*/best.pt"))


def test_names_of_a_stranger_in_the_model_card(hub: Hub, finished_run: Path, own_folder: Path) -> None:
    shutil.copytree(finished_run, own_folder / "run")
    best = torch.load(own_folder / "run/best.pt")
    best["row"] |= {"val_<img src=x>": 1.0, "val_[a](http://x)": 1.0, "val_a\n# b |": 1.0, "val_\033[31m": 1.0}
    best["classes"] = ("\udcff", *best["classes"][1:])
    torch.save(best, own_folder / "run/best.pt")
    assert push(["run", "me/colors"]) == 0
    card = hub.files["me/colors"]["README.md"].decode()
    for text in ("<img", "](http", "\n# b", "\033", "b |"):
        assert text not in card


@pytest.mark.usefixtures("own_folder")
def test_a_repository_of_a_stranger_is_data(hub: Hub, finished_run: Path) -> None:
    push([str(finished_run), "me/colors"])
    files = hub.files["me/colors"]
    files["config.yaml"] = files["config.yaml"].replace(b"plugins: []", b"plugins: [evil]", 1)
    assert b"[evil]" in files["config.yaml"]
    with pytest.raises(UserError, match=r"plugins: .evil. in .* is not used"):
        load_model("hf://me/colors", device="cpu")


@pytest.mark.usefixtures("own_folder")
@pytest.mark.parametrize("file", ["config.yaml", "best.pt"])
def test_a_repository_that_loses_a_file_is_no_run(file: str, hub: Hub, finished_run: Path) -> None:
    """The file of an earlier download may belong to another model."""
    push([str(finished_run), "me/colors"])
    load_model("hf://me/colors", device="cpu")
    del hub.files["me/colors"][file]
    with pytest.raises(UserError, match=r"^hf://me/colors: this repository lacks the config.yaml or best.pt"):
        load_model("hf://me/colors", device="cpu")


def test_arguments_of_other_code_need_trust(
    hub: Hub, finished_run: Path, own_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`push` takes no settings, so that its remedy is the flag. Other tools print an override for a shell."""
    shutil.copytree(finished_run, own_folder / "run")
    config = own_folder / "run" / "config.yaml"
    values = yaml.safe_load(config.read_text())
    values["model"] = {"kind": "timm", "name": "test_vit", "options": {"act": "a b", "depth": 3}}
    config.write_text(yaml.safe_dump(values))
    printed = fails(lambda: push(["run", "me/colors"]), capsys)
    assert printed.startswith("error: model.options: {act: a b, depth: 3} in run/config.yaml is not used")
    assert printed.endswith(". Add --trust if you trust the folder.\n")
    assert not hub.files
    (own_folder / "photo.png").touch()
    printed = fails(lambda: predict(["run", "photo.png"]), capsys)
    assert "Pass 'model.options={act: a b, depth: 3}' on the command line, or --trust" in printed
