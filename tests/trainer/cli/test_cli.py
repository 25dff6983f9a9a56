"""Mistakes on the command line of the trainer: a sentence each, before anything is written."""

import re
from pathlib import Path

import pytest

from augment.recipe import op as registry
from trainer.cli.main import main
from trainer.tools import reference


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start in an empty folder, and keep Hydra's switch from the other tests."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--epochs", "3"], "--epochs: unknown flag. Did you mean 'fit.epochs=...'? Allowed:"),
        (["--batch-size=3"], "--batch-size=3: unknown flag. Did you mean 'fit.batch_size=...'?"),
        (["--aug.size", "3"], "--aug.size: unknown flag. Did you mean 'aug.size=...'?"),
        (["--nothing"], "--nothing: unknown flag. Allowed: -m"),
        (["--learning-rate=3"], "--learning-rate=3: unknown flag. Did you mean 'fit.lr=...'? Allowed: -m"),
        (["--config_dir", "x"], "--config_dir: unknown flag. Did you mean '--config-dir'? Allowed: -m"),
        (["--config-dir"], "argument --config-dir/-cd: expected one argument."),
        (["-m", "--cfg", "job", "seed=0,1"], "--multirun and --cfg: exclude each other. Allowed: one of them."),
        (["--config-name", "mine", "--cfg", "job"], "--config-name mine: there is no such file. Allowed: config."),
        (["-aug.train.flip"], "-aug.train.flip: unknown flag. Did you mean '~aug.train.flip'? Allowed: -m"),
        (["train"], "train: unknown tool. Did you mean python -m trainer, which trains? Allowed: bench, "),
        (["seed="], "seed: '' is not allowed. Allowed: "),
        (["resume", "old"], "resume: unknown tool. Did you mean fit.resume=RUN_FOLDER? Allowed: bench, "),
        (["--trust"], "--trust: unknown flag. Allowed: -m"),
        (["help"], "help: unknown tool. Did you mean --help? Allowed: bench, "),
        (["fit.epochs", "=", "3"], "'fit.epochs' is not an override. Did you mean 'fit.epochs=...'? Write no spaces"),
        (["learning_rate=3"], "learning_rate: unknown key. Did you mean 'fit.lr'? Allowed: aug, "),
        (["fit.num_workers=3"], "fit.num_workers: unknown key. Did you mean 'threads'? Allowed: accumulate, "),
        (["-m", "hydra/sweeper=optna", "seed=0,1"], "hydra/sweeper: unknown name 'optna'. Did you mean 'optuna'?"),
        (["callbacks.plots=false"], "callbacks.plots: False is not allowed. Allowed: {}, which adds it, or"),
        (["data=folder", "data.path=x"], "data.path: unknown key. Did you mean 'root'? Allowed: balance, "),
        (["imagenette"], "'imagenette' is not an override. Did you mean '+aug=imagenette'?"),
        (["-m", "train", "seed=0,1"], "'train' is not an override."),
        (["old"], "'old' is not an override. Did you mean 'fit.resume=old'?"),
        (["hydra.run.dir=", "fit.resume=auto"], "hydra.run.dir: a folder is missing. Allowed: such as outputs/mine."),
        (["fit.resume=old/last.pt"], "fit.resume=old/last.pt: a file. Did you mean old? Allowed: the folder of a run"),
        (["epochs=3"], "epochs: unknown key. Did you mean 'fit.epochs'?"),
        (["data.root=old"], "data.root: unknown key of data=sample; data=folder, data=filelist have it. Allowed:"),
    ],
)
def test_mistakes_have_a_sentence(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("old").mkdir()
    Path("old/last.pt").touch()
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert re.match(f"error: {re.escape(message)}", capsys.readouterr().err)
    assert not Path("outputs").exists()


def test_a_folder_that_cannot_be_made_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("outputs").touch()
    monkeypatch.setattr("trainer.cli.main.check_jobs", lambda *_, **__: None)
    with pytest.raises(SystemExit, match="2"):
        main([])
    assert re.match(
        r"error: hydra\.\w+\.dir=outputs/\S+: cannot be written: Not a directory\. Allowed:", capsys.readouterr().err
    )


def test_the_help_lists_what_plugins_declare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An op of one's own is in --help, as any other."""
    text = (
        'from augment.recipe.op import numpy_op\n@numpy_op()\ndef stays(image):\n    """Nothing."""\n    return image\n'
    )
    (tmp_path / "ops_for_help.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "_OPS", dict(registry._OPS))
    monkeypatch.setattr(reference, "OPS", registry._OPS)
    assert main(["aug.plugins=[ops_for_help]", "--help"]) == 0
    assert "stays (local)  Nothing." in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["--help", "aug.plugins=ops_for_help"])
    assert "Allowed: a list of names, such as aug.plugins=[ops_for_help]" in capsys.readouterr().err
