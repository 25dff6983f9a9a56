"""Mistakes on the command line of the trainer: a sentence each, before anything is written."""

import re
import sys
from pathlib import Path

import pytest

from trainer.cli.main import main


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start in an empty folder, and keep Hydra's switch from the other tests."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["trainer"])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")


# What tests/test_mistakes.py does not have.
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batch-size"], "--batch-size: unknown flag. Did you mean 'fit.batch_size=...'?"),
        (["--config-dir"], "argument --config-dir/-cd: expected one argument."),
        (["-aug.train.flip"], "-aug.train.flip: unknown flag. Did you mean '~aug.train.flip'? Allowed: --cfg, "),
        (["--trust"], "--trust: there is nothing to trust. Allowed: with fit.resume=RUN."),
        (["resume", "old"], "resume: unknown tool. Did you mean fit.resume=RUN_FOLDER? Allowed: bench, "),
        (["old"], "'old' is not an override. Did you mean 'fit.resume=old'?"),
        (["hydra.run.dir=", "fit.resume=auto"], "hydra.run.dir: a folder is missing. Allowed: such as outputs/mine."),
        (["fit.num_workers=3"], "fit.num_workers: unknown key. Did you mean 'threads'? Allowed: accumulate, "),
        (["fit.ema=0.9"], "fit.ema: unknown key. Did you mean 'callbacks.ema'?"),
        (["fit.device=gpu:1"], "fit.device: unknown name 'gpu:1'. Did you mean 'cuda:1'?"),
    ],
)
def test_mistakes_have_a_sentence(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("old").mkdir()
    Path("old/last.pt").touch()
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    printed = capsys.readouterr()
    assert re.match(f"error: {re.escape(message)}", printed.err)
    assert (printed.err.count("\n"), printed.out) == (1, "")
    assert not Path("outputs").exists()


def test_hydra_shows_what_it_composes(capsys: pytest.CaptureFixture[str]) -> None:
    """Flags may stand anywhere, and nothing is written."""
    assert main(["fit.epochs=3", "-c", "job", "+aug=none"]) == 0
    assert "fit:\n  epochs: 3\n" in capsys.readouterr().out
    assert not Path("outputs").exists()


@pytest.mark.usefixtures("clean_registry")
def test_the_help_explains_what_plugins_declare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An op of one's own is in --help, as any other."""
    text = (
        'from augment.recipe.op import numpy_op\n@numpy_op()\ndef stays(image):\n    """Nothing."""\n    return image\n'
    )
    (tmp_path / "ops_for_help.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["aug.plugins=[ops_for_help]", "--help", "stays"]) == 0
    assert "stays (local): Nothing." in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["--help", "aug.plugins=ops_for_help"])
    assert "Allowed: a list of names, such as aug.plugins=[ops_for_help]" in capsys.readouterr().err
