"""Checkpoint files: whole or not at all, and readable errors for what is none."""

import os
import random
from pathlib import Path

import pytest
import torch
from fakes import assert_same
from torch import nn

from augment.errors import UserError
from trainer.checkpoint import gradients_of, load, save, set_gradients

STATE = {
    "epoch": 3,
    "best": float("nan"),
    "model": {"weight": torch.arange(100.0)},
    "rows": [{"loss": 0.5}],
    "none": None,
}


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    save(STATE, tmp_path / "last.pt")
    assert_same(load(tmp_path / "last.pt"), STATE)
    assert os.listdir(tmp_path) == ["last.pt"]


def test_a_new_state_replaces_the_old_one(tmp_path: Path) -> None:
    for epoch in range(3):
        save({"epoch": epoch}, tmp_path / "last.pt")
    assert load(tmp_path / "last.pt") == {"epoch": 2}
    assert os.listdir(tmp_path) == ["last.pt"]


@pytest.mark.parametrize("written", [b"", b"half of it"])
@pytest.mark.parametrize("error", [OSError("No space left on device"), KeyboardInterrupt()], ids=["full", "ctrl-c"])
def test_a_save_that_fails_leaves_the_old_file(
    error: BaseException, written: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(STATE, tmp_path / "last.pt")

    def fail(state: object, path: Path) -> None:
        Path(path).write_bytes(written)
        raise error

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(type(error)):
        save({"epoch": 4}, tmp_path / "last.pt")
    assert_same(load(tmp_path / "last.pt"), STATE)
    assert os.listdir(tmp_path) == ["last.pt"]


def test_a_reader_never_sees_half_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save({"epoch": 1}, tmp_path / "last.pt")
    real, seen = torch.save, []

    def look_meanwhile(state: object, path: Path) -> None:
        real(state, path)
        seen.append(load(tmp_path / "last.pt"))

    monkeypatch.setattr(torch, "save", look_meanwhile)
    save({"epoch": 2}, tmp_path / "last.pt")
    assert seen == [{"epoch": 1}]
    assert load(tmp_path / "last.pt") == {"epoch": 2}


def test_no_checkpoint_in_the_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        load(tmp_path / "best.pt")
    assert str(caught.value) == f"{tmp_path / 'best.pt'}: no such checkpoint. The folder has none."


def test_no_such_checkpoint_names_those_there_are(tmp_path: Path) -> None:
    for name in ("last.pt", "best.pt"):
        save(STATE, tmp_path / name)
    with pytest.raises(UserError, match=r"first\.pt: no such checkpoint\. The folder has best\.pt, last\.pt\.$"):
        load(tmp_path / "first.pt")


@pytest.mark.parametrize("path", ["missing/last.pt", "."])
def test_no_folder_or_no_file(path: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such checkpoint"):
        load(tmp_path / path)


def test_a_file_cut_short_anywhere(tmp_path: Path) -> None:
    file = tmp_path / "last.pt"
    # Small enough to try many lengths, large enough that PyTorch fails in each of its ways.
    save({"a": torch.arange(1000), "b": {"c": [1.0, "x"]}}, file)
    whole = file.read_bytes()
    for length in [*range(40), *range(40, len(whole), 97)]:
        file.write_bytes(whole[:length])
        with pytest.raises(UserError) as caught:
            load(file)
        assert str(caught.value).startswith(f"{file}: not a checkpoint, or cut short"), length


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"hello world\n",
        b'{"epoch": 3}',
        b"<html>",
        b"\x00" * 500,
        b"\xff\xd8\xff\xe0" + b"a" * 99,
        b"PK\x03\x04",
    ],
)
def test_a_file_that_is_something_else(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "last.pt").write_bytes(content)
    with pytest.raises(UserError, match="not a checkpoint, or cut short"):
        load(tmp_path / "last.pt")


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_any_garbage_is_a_readable_error(tmp_path: Path) -> None:
    generator = random.Random(0)
    for first in range(256):
        content = bytes([first]) + generator.randbytes(20)
        (tmp_path / "last.pt").write_bytes(content)
        with pytest.raises(UserError):
            load(tmp_path / "last.pt")


def test_code_in_a_file_is_not_run(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return Path.touch, (str(tmp_path / "touched"),)

    torch.save({"model": Evil()}, tmp_path / "last.pt")
    with pytest.raises(UserError, match="not a checkpoint"):
        load(tmp_path / "last.pt")
    assert not (tmp_path / "touched").exists()


def test_what_is_no_state_is_refused(tmp_path: Path) -> None:
    torch.save(torch.arange(3), tmp_path / "last.pt")
    with pytest.raises(UserError, match="not a checkpoint"):
        load(tmp_path / "last.pt")


def test_tensors_go_to_the_device(tmp_path: Path) -> None:
    save(STATE, tmp_path / "last.pt")
    assert load(tmp_path / "last.pt")["model"]["weight"].device.type == "cpu"
    assert load(tmp_path / "last.pt", torch.device("meta"))["model"]["weight"].device.type == "meta"


def test_gradients_that_are_put_back_are_copies() -> None:
    """A fit that goes on adds to its own; the state may be put back again."""
    model = nn.Sequential(nn.Linear(2, 1), nn.Linear(1, 1))
    model[0](torch.ones(1, 2)).sum().backward()
    state = gradients_of(model)
    assert state.keys() == {"0.weight", "0.bias"}
    model[1].weight.grad = torch.ones(1, 1)
    for _ in range(2):
        set_gradients(model, state)
        assert model[1].weight.grad is None
        assert model[0].bias.grad is not None
        model[0].bias.grad += 1
        assert (state["0.bias"].item(), model[0].bias.grad.item()) == (1.0, 2.0)
