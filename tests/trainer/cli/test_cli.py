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
        (["--epochs", "3"], "--epochs: unknown flag. Did you mean 'fit.epochs=3'? Allowed:"),
        (["--batch-size=3"], "--batch-size=3: unknown flag. Did you mean 'fit.batch_size=3'?"),
        (["--batch-size"], "--batch-size: unknown flag. Did you mean 'fit.batch_size=...'?"),
        (["--aug", "imagenette"], "--aug: unknown flag. Did you mean '+aug=imagenette'?"),
        (["--data=folder"], "--data=folder: unknown flag. Did you mean 'data=folder'?"),
        (["-sc", "install=bash"], "--shell-completion: unknown flag. Allowed: -m"),
        (["--aug.size", "3"], "--aug.size: unknown flag. Did you mean 'aug.size=3'?"),
        (["--nothing"], "--nothing: unknown flag. Allowed: -m"),
        (["--learning-rate=3"], "--learning-rate=3: unknown flag. Did you mean 'fit.lr=3'? Allowed: -m"),
        (["--config_dir", "x"], "--config_dir: unknown flag. Did you mean '--config-dir'? Allowed: -m"),
        (["--config-path", "x"], "--config-path: unknown flag. Did you mean '--config-dir'? Allowed: -m"),
        (["--config-dir"], "argument --config-dir/-cd: expected one argument."),
        (["-m", "--cfg", "job", "seed=0,1"], "--multirun and --cfg: exclude each other. Allowed: one of them."),
        (["--config-name", "mine", "--cfg", "job"], "--config-name mine: there is no such file. Allowed: config."),
        (["-aug.train.flip"], "-aug.train.flip: unknown flag. Did you mean '~aug.train.flip'? Allowed: -m"),
        (["train"], "train: unknown tool. Did you mean python -m trainer, which trains? Allowed: bench, "),
        (["trian"], "trian: unknown tool. Did you mean python -m trainer, which trains? Allowed: bench, "),
        (["test", "RUN"], "test: unknown tool. Did you mean python -m trainer evaluate? Allowed: bench, "),
        (["val"], "val: unknown tool. Did you mean python -m trainer evaluate? Allowed: bench, "),
        (["infer", "RUN"], "infer: unknown tool. Did you mean python -m trainer predict? Allowed: bench, "),
        (["list"], "list: unknown tool. Did you mean python -m trainer dashboard? Allowed: bench, "),
        (["init"], "init: unknown tool. Did you mean python -m trainer --help, which lists all settings? "),
        (["info"], "info: unknown tool. Did you mean python -m augment info? Allowed: bench, "),
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
        (["+aug=imagenete"], "aug: unknown name 'imagenete'. Did you mean 'imagenette'?"),
        (["data=foldr"], "data: unknown name 'foldr'. Did you mean 'folder'?"),
        (["model=tim"], "model: unknown name 'tim'. Did you mean 'timm'?"),
        (["fit.epoch=3"], "fit.epoch: unknown key. Did you mean 'epochs'?"),
        (["+fit.epoch=3"], "fit.epoch: unknown key. Did you mean 'epochs'?"),
        (["fit.image_size=64"], "fit.image_size: unknown key. Did you mean 'aug.size'?"),
        (["fit.pretrained=true"], "fit.pretrained: unknown key. Did you mean 'model.pretrained'?"),
        (["fit.ema=0.9"], "fit.ema: unknown key. Did you mean 'callbacks.ema'?"),
        (["fit.mixup=0.2"], "fit.mixup: unknown key. Did you mean 'aug.train.mixup'?"),
        (["fit.schedule=cosine"], "fit.schedule: unknown name 'cosine'. Did you mean 'one_cycle'?"),
        (["fit.seed=1"], "fit.seed: unknown key. Did you mean 'seed'?"),
        (["data.batch_size=8"], "data.batch_size: unknown key. Did you mean 'fit.batch_size'?"),
        (["model.workers=8"], "model.workers: unknown key. Did you mean 'fit.threads'?"),
        (["fit.epochs=many"], "fit.epochs: 'many' is not allowed. Allowed: a whole number"),
        (["+aug.trian.rotate.p=1"], "aug.trian: unknown key. Did you mean 'train'?"),
        (["aug.train.rotat.p=1"], "aug.train.rotat: unknown op 'rotat'. Did you mean 'rotate'?"),
        (["aug.train.rotate.p=1.5"], "aug.train.rotate.p: 1.5 is not allowed. Allowed: a number from 0 to 1"),
        (["aug.train.rotate.angle_range=[5,-5]"], "aug.train.rotate.angle_range: [5, -5] is not allowed"),
        (
            ["+aug=imagenette", "aug.train.resize={}"],
            "aug.train.resize: 'random_resized_crop' is the crop. Allowed: ",
        ),
        (["callbacks.gradclip={}"], "callbacks.gradclip: unknown callback. Did you mean 'grad_clip'?"),
        (["~aug.train.rotat"], "~aug.train.rotat: nothing to remove. Allowed: a key that a file in conf/ sets."),
        (["seed=-1"], "seed: -1 is not allowed"),
        (["data=folder"], "data.root: missing"),
        (["data=folder", "data.root=nowhere"], "data.root=nowhere: there is no such folder"),
        (["fit.resume=nowhere"], "fit.resume=nowhere: no such folder"),
        (["seed=0,1"], "seed=0,1: several values make a sweep, which only `python -m trainer -m` runs."),
        (["+experiment=imagenete_5"], "experiment: unknown name 'imagenete_5'. Did you mean 'imagenette_5'?"),
        (["+experiment=imagenette_5", "fit=article"], "fit=article: sets fit.epochs=8, but the experiment"),
        (["-m", "experiment=glob(image_net*)"], "experiment: glob(image_net*) matches no file. Allowed: article_2019"),
        (["-m", "seed=0,1", "fit.epochs=2,x"], "fit.epochs: 'x' is not allowed"),
        (["seed=0,1", "-m", "fit.epochs=2,x"], "fit.epochs: 'x' is not allowed"),
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


def test_a_folder_that_cannot_be_made_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("outputs").touch()
    monkeypatch.setattr("trainer.cli.main.check_jobs", lambda *_, **__: [None])
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
