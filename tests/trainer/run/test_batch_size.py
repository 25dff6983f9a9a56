"""`fit.auto_batch_size`: a run whose batches do not fit trains as one with the batch size that does."""

from io import StringIO
from pathlib import Path

import pytest
from fakes import assert_same
from rich.console import Console
from runs import draw_classes
from torch import nn

from augment.cli.compose import compose
from augment.cli.overrides import normalize
from augment.params import Size
from augment.pipeline.batch import Batch
from augment.support.errors import UserError
from trainer.cli.jobs import prepare
from trainer.loop.checkpoint import BEST, LAST, BestModel, FitState, load
from trainer.loop.runner import Pass, Runner
from trainer.run.batch_size import _candidates
from trainer.run.check import check_config
from trainer.run.config import load_config, parse_config
from trainer.run.memory import bytes_kept
from trainer.run.train import train

SMALL = ["aug.size=16", "fit.device=cpu", "fit.threads=1", "callbacks.plots=null", "callbacks.report=null"]
AUTO = [*SMALL, "fit.epochs=1", "fit.batch_size=6", "fit.auto_batch_size=true"]


@pytest.fixture(autouse=True)
def _photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten images of two classes, of which three to a batch leave a single one, on which no batch norm trains."""
    monkeypatch.chdir(tmp_path)
    draw_classes(tmp_path / "photos", count=5)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory for the training of three images."""
    train_batch = Runner.train

    def limited(runner: Runner, batch: Batch, share: float) -> Pass:
        if len(batch.images) > 3:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")
        return train_batch(runner, batch, share)

    monkeypatch.setattr(Runner, "train", limited)


def run(*overrides: str) -> tuple[Path, str]:
    """Train in a new folder; return it and what was printed."""
    console = Console(file=StringIO(), width=500)
    folder = Path("runs") / str(len(list(Path("runs").glob("*"))))
    train(parse_config(compose(["data=folder", "data.root=photos", *overrides])), folder, console=console)
    assert isinstance(console.file, StringIO)
    return folder, console.file.getvalue()


def test_a_run_finds_what_fits_and_trains_and_resumes_as_if_it_had_been_asked_for(memory: None) -> None:
    found, said = run(*AUTO)
    assert (
        "fit.auto_batch_size: batches of 6 images at 16 px do not fit, those of 2 do: fit.batch_size=2. fit.lr stays "
        "0.02, though smaller batches may need a smaller one; with fit.accumulate=3 each step uses about as many "
        "images as asked for"
    ) in said
    assert load_config(found)["fit"]["batch_size"] == 2
    asked, _ = run(*SMALL, "fit.epochs=1", "fit.batch_size=2")
    assert_same(load(found / BEST, BestModel).model, load(asked / BEST, BestModel).model)
    further, said = run(*AUTO, "fit.epochs=2", f"fit.resume={found}")
    assert "do not fit" not in said
    assert load_config(further)["fit"]["batch_size"] == 2
    assert load(further / LAST, FitState).position == (2, 0)
    again = prepare(normalize(["data=folder", "data.root=photos", *AUTO, "fit.resume=auto"]), folder=found)
    assert again.done is not None


def test_what_fits_is_left_as_it_is(memory: None) -> None:
    found, said = run(*AUTO, "fit.batch_size=2")
    assert load_config(found)["fit"]["batch_size"] == 2
    assert "auto_batch_size" not in said


def test_where_nothing_fits_the_run_ends_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Runner, "train", full)
    with pytest.raises(UserError, match=r"^out of memory on the host .*, batches of 2 images at 16 px.* Allowed: "):
        run(*AUTO)


@pytest.mark.parametrize(("asked", "sizes"), [(100, [10, 5, 2]), (6, [6, 2]), (2, [2])])
def test_halves_of_what_is_asked_are_tried(asked: int, sizes: list[int]) -> None:
    config = parse_config(compose(["data=folder", "data.root=photos", *AUTO, f"fit.batch_size={asked}"]))
    assert list(_candidates(config, min(asked, 10))) == sizes


def test_what_cannot_fit_is_refused_with_what_could(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.run.memory.host_memory", lambda: 400_000)
    given = ["data=folder", "data.root=photos", *SMALL]
    with pytest.raises(UserError, match=r"^fit\.batch_size=99: 10 images at 16 px do not fit .* at most \d,") as caught:
        check_config(parse_config(compose([*given, "fit.batch_size=99"])))
    most = int(str(caught.value).partition("at most ")[2][0])
    assert 1 < most < 9
    check_config(parse_config(compose([*given, f"fit.batch_size={most}", "fit.drop_last=true"])))
    automatic = parse_config(compose([*given, "fit.batch_size=99", "fit.auto_batch_size=true"]))
    check_config(automatic)
    assert next(iter(_candidates(automatic, 10))) in (most, most - 1)


def test_what_autograd_keeps_of_an_image() -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(inplace=True), nn.Conv2d(4, 2, 1)).to("meta")
    assert bytes_kept(network, Size(8, 8)) == 4 * 8 * 8 * (3 + 4)


def test_stages_have_sizes_of_their_own() -> None:
    with pytest.raises(UserError, match=r"^fit\.auto_batch_size: true, but fit\.stages set sizes of their own\."):
        parse_config(compose([*AUTO, "fit.stages={a: {size: 8}}"]))
