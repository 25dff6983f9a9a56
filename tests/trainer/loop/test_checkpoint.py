"""Checkpoint files: whole or not at all, and readable errors for what is none."""

import os
import random
import zipfile
from collections.abc import Callable
from dataclasses import replace
from io import BufferedWriter, FileIO
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import assert_same
from torch import nn

from augment.support.errors import UserError
from trainer.loop.checkpoint import FORMAT, BestModel, FitState, load, save, to_host

BEST_MODEL = BestModel(
    model={"weight": torch.arange(100.0)},
    row={"epoch": 3, "val_loss": float("nan")},
    samples={"target": torch.tensor([1, 0])},
    classes=("ant", "bee"),
    task="classify",
)
FIT_STATE = FitState(
    position=(3, 0),
    model={"weight": torch.arange(100.0)},
    optimizer={"state": {0: {"momentum_buffer": torch.ones(100)}}, "param_groups": [{"lr": 0.5}]},
    gradients={},
    loader={"epoch": 3},
    callbacks={"Recorder": {"rows": [{"loss": 0.5}], "meter": None}},
    random={"cpu": torch.get_rng_state(), "cuda": []},
)


def at(epoch: int) -> FitState:
    return replace(FIT_STATE, position=(epoch, 0))


@pytest.mark.parametrize("state", [BEST_MODEL, FIT_STATE], ids=["best", "last"])
def test_what_is_saved_is_loaded(state: BestModel | FitState, tmp_path: Path) -> None:
    save(state, tmp_path / "some.pt")
    loaded = load(tmp_path / "some.pt", type(state))
    assert type(loaded) is type(state)
    assert_same(vars(loaded), vars(state))
    assert os.listdir(tmp_path) == ["some.pt"]


class Watched(BufferedWriter):
    """A file that does something before it is written to, given its number of bytes so far."""

    def __init__(self, path: Path, look: Callable[[int], None]) -> None:
        super().__init__(FileIO(path, "wb"))
        self._look = look

    def write(self, data: Any) -> int:
        self._look(self.tell())
        return super().write(data)


@pytest.mark.parametrize("room", [0, 500])
@pytest.mark.parametrize("error", [OSError("No space left on device"), KeyboardInterrupt()], ids=["full", "ctrl-c"])
def test_a_save_that_fails_leaves_the_old_file(
    error: BaseException, room: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(FIT_STATE, tmp_path / "last.pt")

    def fail(size: int) -> None:
        if size >= room:
            raise error

    monkeypatch.setattr(Path, "open", lambda path, _: Watched(path, fail))
    with pytest.raises(type(error)) as raised:
        save(at(4), tmp_path / "last.pt")
    assert raised.value is error
    monkeypatch.undo()
    assert_same(vars(load(tmp_path / "last.pt", FitState)), vars(FIT_STATE))
    assert os.listdir(tmp_path) == ["last.pt"]


# --- files before the last one ---


def damage(file: Path, at: int) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 0x10
    file.write_bytes(content)


def test_a_flipped_bit_in_the_weights_is_noticed(tmp_path: Path) -> None:
    """PyTorch would read them without a word."""
    file = tmp_path / "best.pt"
    save(BEST_MODEL, file)
    damage(file, file.read_bytes().index(torch.arange(100.0).numpy().tobytes()) + 50)
    with pytest.raises(
        UserError, match=r"best\.pt is truncated, or is not a checkpoint\. Restore it, or use another file\.$"
    ):
        load(file, BestModel)


@pytest.mark.parametrize("fault", ["cut", "flipped", "zeros", "missing"])
def test_a_damaged_file_falls_back_to_the_one_before(
    fault: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "last.pt"
    for epoch in (1, 2, 3):
        save(at(epoch), file, keep=2)
    content = file.read_bytes()
    assert load(file, FitState).position == (3, 0)
    assert not caplog.messages
    for path, expected in ((file, (2, 0)), (tmp_path / "last.1.pt", (1, 0))):
        if fault == "flipped":
            damage(path, len(content) // 2)
        elif fault == "missing":
            path.unlink()
        else:
            path.write_bytes(content[:-1] if fault == "cut" else bytes(len(content)))
        if fault == "missing" and path is not file:  # where one is missing, there are none before it
            break
        assert load(file, FitState).position == expected
        name = "last.1.pt" if path is file else "last.2.pt"
        assert caplog.messages[-1].endswith(f" The older checkpoint {name} is used instead.")


def test_a_copy_does_not_change() -> None:
    weight = torch.zeros(2, 3).t()
    module = nn.BatchNorm1d(1)
    state = replace(FIT_STATE, model={"weight": weight}, loader=module.state_dict(), callbacks={"C": {"rows": [{}]}})
    held = replace(state, **to_host(vars(state)))
    weight += 1
    state.callbacks["C"]["rows"].append({})
    assert held.model["weight"].tolist() == [[0, 0]] * 3
    assert held.model["weight"].stride() == weight.stride()
    assert held.callbacks == {"C": {"rows": [{}]}}
    assert held.loader._metadata == module.state_dict()._metadata  # type: ignore[attr-defined]


# --- versions ---


@pytest.mark.parametrize(("name", "kind"), [("last.pt", FitState), ("best.pt", BestModel)])
def test_checkpoints_of_other_versions_are_rejected(name: str, kind: type[FitState], tmp_path: Path) -> None:
    file = tmp_path / name
    other = {"model": {}, "unheard": 1}
    for content, version in ((other, "format None"), (other | {"format": FORMAT + 1}, f"format {FORMAT + 1}")):
        torch.save(content, file)
        with pytest.raises(UserError) as caught:
            load(file, kind)
        assert str(caught.value).startswith(
            f"{file} has {version}, but this version of dali-trainer reads format {FORMAT}. "
        )
        assert "start a new run" in str(caught.value)


def test_a_format_that_is_no_number_is_rejected(tmp_path: Path) -> None:
    torch.save({"format": torch.zeros(2), **vars(BEST_MODEL)}, tmp_path / "best.pt")
    with pytest.raises(UserError, match="is not the checkpoint of a run"):
        load(tmp_path / "best.pt", BestModel)


def test_one_kind_of_checkpoint_is_not_taken_for_the_other(tmp_path: Path) -> None:
    save(BEST_MODEL, tmp_path / "last.pt")
    with pytest.raises(UserError, match=r"last\.pt is not the last\.pt of a run\. Use"):
        load(tmp_path / "last.pt", FitState)


# --- files that are no checkpoints ---


def test_no_such_checkpoint_names_those_there_are(tmp_path: Path) -> None:
    for name in ("last.pt", "best.pt"):
        save(BEST_MODEL, tmp_path / name)
    with pytest.raises(UserError, match=r"first\.pt does not exist\. The folder contains best\.pt, last\.pt\.$"):
        load(tmp_path / "first.pt", BestModel)


def test_a_file_cut_short_anywhere(tmp_path: Path) -> None:
    file = tmp_path / "last.pt"
    # Small enough to try many lengths, large enough that PyTorch fails in each of its ways.
    save(replace(BEST_MODEL, model={"weight": torch.arange(1000)}), file)
    whole = file.read_bytes()
    for length in [*range(40), *range(40, len(whole), 97)]:
        file.write_bytes(whole[:length])
        with pytest.raises(UserError) as caught:
            load(file, BestModel)
        assert str(caught.value).startswith(f"{file} is truncated, or is not a checkpoint"), length


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_any_garbage_is_a_readable_error(tmp_path: Path) -> None:
    generator = random.Random(0)
    contents = [bytes([first]) + generator.randbytes(20) for first in range(256)]
    for content in (b"", b"hello world\n", b"\x00" * 500, b"\xff\xd8\xff\xe0" + b"a" * 99, b"PK\x03\x04", *contents):
        (tmp_path / "last.pt").write_bytes(content)
        with pytest.raises(UserError, match="is truncated, or is not a checkpoint"):
            load(tmp_path / "last.pt", FitState)


def test_a_file_larger_than_the_memory_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file with holes can have any size on any disk."""
    save(BEST_MODEL, tmp_path / "best.pt")
    save(FIT_STATE, tmp_path / "last.1.pt")
    (tmp_path / "last.pt").write_bytes(b"truncated")
    monkeypatch.setattr("trainer.loop.torch_files.host_memory", lambda: 1000)
    with pytest.raises(UserError, match="larger than the memory"):
        load(tmp_path / "best.pt", BestModel)
    with pytest.raises(UserError, match="truncated"):  # an older file is not read, either
        load(tmp_path / "last.pt", FitState)


@pytest.mark.parametrize("value", [2**60, -(2**60), 10**400], ids=["large", "negative", "huge"])
def test_integers_that_are_no_scores(value: int, tmp_path: Path) -> None:
    save(replace(BEST_MODEL, row={"epoch": 3, "val_loss": value}), tmp_path / "best.pt")
    with pytest.raises(UserError, match="'row' has a value of the wrong type"):
        load(tmp_path / "best.pt", BestModel)


@pytest.mark.parametrize(
    ("state", "name", "value"),
    [
        (FIT_STATE, "position", (1,)),
        (FIT_STATE, "position", (0, -1)),
        (FIT_STATE, "model", []),
        (FIT_STATE, "optimizer", {"param_groups": "none"}),
        (FIT_STATE, "others", [[]]),
        (BEST_MODEL, "row", {"epoch": "3"}),
        (BEST_MODEL, "samples", ()),
        (BEST_MODEL, "classes", "cat"),
        (BEST_MODEL, "task", 1),
        (BEST_MODEL, "thresholds", (1.5,) * len(BEST_MODEL.classes)),
        (BEST_MODEL, "thresholds", (0.5,) * (len(BEST_MODEL.classes) + 1)),
    ],
)
def test_a_value_of_the_wrong_type_is_named(state: FitState | BestModel, name: str, value: Any, tmp_path: Path) -> None:
    save(replace(state, **{name: value}), tmp_path / "it.pt")
    with pytest.raises(UserError, match=rf"it\.pt: .*{name}"):
        load(tmp_path / "it.pt", type(state))


def test_code_in_a_file_is_not_run(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return Path.touch, (str(tmp_path / "touched"),)

    torch.save({"model": Evil()}, tmp_path / "last.pt")
    with pytest.raises(UserError, match="not a checkpoint"):
        load(tmp_path / "last.pt", FitState)
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize("others", [[], ["whole/DATA/0"]], ids=["short", "and_a_long_one"])
def test_pytorch_reads_no_further_than_the_file(
    others: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch before 2.10 fills a tensor from other memory of the process if its record is too short."""
    torch.save({"format": FORMAT, **vars(BEST_MODEL)}, whole := tmp_path / "whole.pt")
    with zipfile.ZipFile(whole) as archive, zipfile.ZipFile(tmp_path / "best.pt", "w") as changed:
        for name in archive.namelist():
            changed.writestr(name, archive.read(name)[: 4 if name == "whole/data/0" else None])
        for name in others:
            changed.writestr(name, bytes(400))
    monkeypatch.setattr(torch, "load", lambda *_, **__: {"format": FORMAT, **vars(BEST_MODEL)})
    assert load(whole, BestModel).row["epoch"] == 3
    with pytest.raises(UserError, match="not a checkpoint"):
        load(tmp_path / "best.pt", BestModel)
