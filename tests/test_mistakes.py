"""Users' mistakes: each error names the key and the remedy, with exit code 2 and before anything is written."""

import re
import shlex
import shutil
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from photos import draw_photo
from PIL import Image
from torch import nn

import augment
import trainer
from augment.cli.config_files import set_config_dir
from augment.cli.tools import run_tool
from augment.data.dataset import DATA_DIR
from augment.support.errors import UserError
from trainer.cli.main import main

# A command line without `python -m`, then what the answer must contain: the key, flag, file or tool that is wrong, and
# what to write in its place. Sentences are not quoted, so that they can be reworded. A suggested name is in quotes,
# because the names in a list of allowed names are not.
COMMANDS = [
    # Tools
    ("trainer trian", "trian", "python -m trainer"),
    ("trainer test RUN", "test", "python -m trainer evaluate"),
    ("trainer tune", "tune", "python -m trainer -m hydra/sweeper=optuna"),
    ("trainer quantize run", "quantize", "python -m trainer export --variants int8"),
    ("trainer draw run", "draw", "python -m trainer predict --overlay"),
    ("trainer upload run", "upload", "python -m trainer push"),
    ("trainer info", "info", "python -m augment info"),
    ("trainer predct RUN photos", "predct", "'predict'"),
    ("augment train", "train", "python -m trainer"),
    ("augment prewiev", "prewiev", "'preview'"),
    ("trainer imagenette", "imagenette", "'aug=imagenette'"),
    ("trainer photos", "'photos'", "data=folder data.root=photos"),
    ("trainer mine.yaml", "mine.yaml", "'aug=mine'", "conf/aug/mine.yaml"),
    # Flags
    ("trainer --aug imagenette", "--aug", "aug=imagenette"),
    ("trainer --resume RUN", "--resume", "fit.resume=RUN"),
    ("trainer --config mine.yaml", "--config", "'--config-dir'"),
    ("trainer --config-dir nowhere", "--config-dir nowhere", "aug/NAME.yaml"),
    ("trainer --config-name nowhere", "--config-name nowhere", "config"),
    ("trainer -sc install=bash", "-sc", "unknown flag"),
    ("trainer -m --cfg job seed=0,1", "--multirun", "--cfg"),
    ("augment preview --splti train", "--splti", "'--split'"),
    ("trainer --batch-size", "--batch-size", "fit.batch_size=..."),
    ("trainer bench --batch-size 4", "--batch-size", "key=value"),
    ("trainer --config-dir", "--config-dir/-cd", "one argument"),
    ("trainer -aug.train.flip", "-aug.train.flip", "'~aug.train.flip'"),
    ("trainer --trust", "--trust", "fit.resume=RUN"),
    ("trainer report --open run", "--open", "--help"),
    ("trainer find_lr --from 0", "--from", "above 0"),
    ("trainer find_lr --steps 3", "--steps", "from 20"),
    ("trainer find_lr --out a.jpg", "--out", ".png"),
    ("trainer dashboard --port 80", "--port", "--watch"),
    # Keys
    ("trainer epochs=3", "epochs", "'fit.epochs'"),
    ("trainer rotate.p=0.5", "rotate", "'aug.train.rotate'"),
    ("trainer fit.epoch=3", "fit.epoch", "'epochs'"),
    ("trainer fit.num_workers=3", "fit.num_workers", "'threads'"),
    ("trainer fit.ema=0.9", "fit.ema", "'callbacks.ema'"),
    ("trainer fit.monitor=val_loss", "fit.monitor", "'callbacks.checkpoint.monitor'"),
    ("trainer patience=3", "patience", "'callbacks.early_stopping.patience'"),
    ("trainer callbacks.checkpoint.monitor=mcc", "'mcc'", "'val_matthews_corrcoef'"),
    ("trainer report run fit.epochs=3", "fit.epochs=3", "RUN_FOLDER"),
    ("trainer dashboard fit.lr=1", "fit.lr=1", "folder"),
    ("trainer sweep resume S fit.lr=1", "fit.lr=1", "hydra/launcher=...", "hydra.launcher.*"),
    ("trainer data.root=photos", "data.root", "data=sample", "data=folder"),
    ("trainer model.name=resnet18", "model.name", "model=cnn", "model=timm"),
    ("trainer hydra.run.dri=x", "hydra.run.dri", "hydra.run.dir"),
    ("trainer fit.epochs = 3", "'fit.epochs'", "'fit.epochs=3'"),
    ("trainer =3", "'=3'", "key=value"),
    ("trainer ~fit.lr", "~fit.lr", "conf/"),
    ("trainer +aug=imagenette ~aug.train.fliip", "~aug.train.fliip", "'flip'"),
    # Values
    ("trainer fit.epochs=three", "fit.epochs", "'three'", "from 1"),
    ("trainer fit.epochs=0", "fit.epochs", "from 1"),
    ("trainer fit.epochs=1,5", "fit.epochs=1,5", "1.5"),
    ("trainer fit.lr=[1", "fit.lr=[1", "key=value"),
    ("trainer fit.lr=${fit.lrr}", "'fit.lrr'", "${KEY}"),
    ("trainer aug.size=[360]", "aug.size", "[height, width]"),
    ("trainer aug.size=360x480", "aug.size", "'360x480'", "[height, width]"),
    ("trainer aug.mean=[124,116,104]", "aug.mean", "from 0 to 1"),
    ("trainer fit.device=gpu:1", "fit.device", "'gpu:1'", "'cuda:1'"),
    ("trainer hydra.run.dir= fit.resume=auto", "hydra.run.dir", "outputs/mine"),
    ("trainer run.tags=x", "run.tags", "run.tags=[x]"),
    # Recipes
    ("trainer +aug=imagenete", "aug", "'imagenete'", "'imagenette'"),
    ("trainer +aug=imagenette +aug=none", "aug", "imagenette", "none"),
    ("trainer aug imagenette", "'aug'", "'aug=imagenette'"),
    ("trainer -m fit.lr=0.1 0.2", "'0.2'", "0.1,0.2"),
    ("trainer aug = imagenette", "'aug'", "'aug=imagenette'", "no spaces"),
    ("trainer fit.lr=1 data.root = photos", "'data.root'", "'data.root=photos'", "no spaces"),
    ("trainer aug.train.rotate.angle_range=[-7, 7]", "'7]'", "without spaces", "[-7,7]"),
    ("trainer aug.train.rotat.p=0.5", "aug.train.rotat", "'rotate'"),
    ("trainer aug.train.RandomHorizontalFlip.p=1", "aug.train.RandomHorizontalFlip", "'flip'"),
    ("trainer aug.train.rotate.prob=0.5", "aug.train.rotate.prob", "'p'"),
    ("trainer aug.train.rotate.p=50%", "aug.train.rotate.p", "'50%'", "from 0 to 1"),
    ("trainer aug.trian.rotate.p=0.5", "aug.trian", "'train'"),
    ("trainer aug.val.mixup.p=1", "aug.val.mixup", "aug.train"),
    ("augment plan +aug=nothing", "aug", "'nothing'", "imagenette"),
    ("augment preview --op rotat", "--op", "'rotat'", "'rotate'"),
    ("trainer --config-dir own +aug=tilted", "aug.train.rotate.angle", "'angle_range'", "own/aug/tilted.yaml"),
    # Models, optimizers, schedules
    ("trainer experiment=finetune model=cnn", "model.name", "experiment=finetune", "~model.name"),
    ("trainer aug=detect data=folder data.root=photos", "model.kind=detector", "aug=detect", "aug=imagenette"),
    ("trainer --config-dir own experiment=short", "experiment", "# @package _global_", "own/experiment/short.yaml"),
    ("trainer model=resnet18", "model", "'resnet18'", "model=timm model.name=resnet18"),
    ("trainer model=timm", "model.name", "resnet18"),
    ("trainer model.weights=/nope.pth", "model.weights=/nope.pth"),
    ("trainer model.weights=run/lst.pt", "model.weights=run/lst.pt", "run/last.pt"),
    # Callbacks, metrics, trackers
    ("trainer callbacks.wnadb.project=x", "callbacks.wnadb", "'wandb'"),
    ("trainer callbacks=tensorflow", "callbacks", "'tensorboard'"),
    ("trainer callbacks.early_stopping.monitor=val_acc", "callbacks.early_stopping.monitor", "'val_accuracy'"),
    ("trainer callbacks.grad_clip=1", "callbacks.grad_clip", "callbacks.grad_clip.max_norm=1"),
    ("trainer callbacks.early_stopping=2", "callbacks.early_stopping", "callbacks.early_stopping.patience=2"),
    # Data
    ("trainer data=photos", "data", "'photos'", "data=folder data.root=photos"),
    ("trainer data=folder", "data.root", "train/<class>/*"),
    ("trainer data=folder data.root=photo", "data.root=photo", "photos"),
    ("trainer data=folder data.root=https://host/photos", "https://host/photos", "Download"),
    ("trainer data=folder data.root=notes.txt", "data.root=notes.txt", "train", "val"),
    ("trainer data=folder data.root=photos/train", "data.root=photos/train", "mistakes0/photos"),
    ("trainer data=folder data.root=photos/train data.val_fraction=2", "data.val_fraction", "0.9"),
    ("trainer data=folder data.root=photos data.val_fraction=0.5", "photos/val", "data.root=photos/train"),
    ("trainer data=folder data.root=classes", "data.root=classes", "data.val_fraction=0.2"),
    ("trainer data=folder data.root=broken", "broken/train/cat/0.png", "data.skip_bad=true"),
    ("trainer data=filelist data.train=list.csv data.val_fraction=0.2", "nope.png", "line 3", "data.root"),
    ("trainer data=filelist data.train=lst.csv data.val_fraction=0.2", "data.train", "lst.csv", "list.csv"),
    ("trainer data=webdataset data.train=photos data.val=photos", "data.train=photos", "photos/*"),
    ("trainer data=own data.train=nope:Train data.val=x", "data.train=nope:Train", "module.name"),
    ("augment convert data=folder data.root=photos --to folder --out photos", "--out photos", "new"),
    # Plugins
    ("trainer plugins=[nowhere]", "plugins", "'nowhere'", "PYTHONPATH"),
    ("trainer aug.train.fade.p=1", "fade", "aug.plugins=[MODULE]"),
    ("trainer callbacks.mail.to=me", "callbacks.mail", "plugins=[MODULE]"),
    ("trainer data.source=zips", "data.source", "plugins=[MODULE]"),
    ("trainer fit.loss=generalized", "fit.loss", "plugins=[MODULE]"),
    ("trainer fit.metrics=[kappas]", "fit.metrics", "plugins=[MODULE]"),
    ("trainer fit.optimizer=signs", "fit.optimizer", "plugins=[MODULE]"),
    ("trainer model.kind=tiny", "model.kind", "plugins=[MODULE]"),
    ("trainer plugins=[./my_ops.py]", "plugins", "./my_ops.py", "'my_ops'"),
    ("trainer plugins=my_ops.py", "my_ops.py", "plugins=[my_ops]"),
    # Sweeps and searches
    ("trainer seed=0,1", "seed=0,1", "python -m trainer -m"),
    ("trainer -m fit.lr=0.1,foo", "fit.lr", "'foo'", "above 0"),
    ("trainer -m fit.lr=interval(0.1,1)", "fit.lr", "hydra/sweeper=optuna"),
    ("trainer -m fit.resume=auto seed=0,1", "fit.resume=auto", "hydra.sweep.dir"),
    ("trainer -m hydra/sweeper=optuna", "hydra/sweeper=optuna", "fit.lr=interval(1e-3,1e-1)"),
    ("trainer -m hydra/sweeper=optuna fit.lr=interval(1,0.1)", "fit.lr=interval(1,0.1)", "low < high"),
    ("trainer -m hydra/sweeper=optuna hydra.sweeper.n_trial=3 fit.lr=interval(0.1,1)", "hydra.sweeper.n_trial",
     "'n_trials'"),
    ("trainer -m hydra/sweeper=optuna hydra.sweeper.metrics=[val_acc] fit.lr=interval(0.1,1)", "hydra.sweeper.metrics",
     "val_acc", "'val_accuracy'"),
    ("trainer -m hydra/sweeper=optuna hydra.sweeper.sampler=tpo fit.lr=interval(0.1,1)", "hydra.sweeper.sampler",
     "'tpe'"),
    ("trainer -m hydra/sweeper=optuna hydra.sweeper.metrics=[val_loss,epoch] fit.lr=interval(0,1)",
     "hydra.sweeper.metrics", "one"),
    ("trainer hydra.sweeper.n_trials=3", "hydra.sweeper.n_trials", "-m"),
    ("trainer sweep list SWEEP", "list", "'show'"),
    ("trainer sweep resume", "resume", "SWEEP"),
    ("trainer sweep resume run", "run", "sweep.yaml"),
    ("trainer sweep resume nowhere", "nowhere", "S"),
    ("trainer sweep resume S hydra.sweeper.n_trials=9", "hydra.sweeper.n_trials", "hydra/sweeper=optuna"),
    ("trainer -m seed=0,1 hydra.sweeper.n_trials=9", "hydra.sweeper.n_trials", "hydra/sweeper=optuna"),
    ("trainer -m seed=0,1 hydra.sweep.dir=notes.txt/x", "hydra.sweep.dir=notes.txt/x", "Not a directory"),
    ("trainer -m seed=0,1 hydra.sweep.dir=", "hydra.sweep.dir", "outputs/mine"),
    ("trainer -m seed=0,1 hydra.sweep.subdir=x", "hydra.sweep.subdir", "hydra.sweep.dir"),
    ("trainer -m seed=0,1 hydra/launcher=plugin", "hydra/launcher", "local"),
    ("trainer -m seed=0,1 hydra.launcher.n_job=2", "hydra.launcher.n_job", "'n_jobs'"),
    ("trainer -m seed=0,1 hydra.launcher.n_jobs=0", "hydra.launcher.n_jobs", "from 1"),
    ("trainer -m seed=0,1 hydra.launcher.gpus=[0,one]", "hydra.launcher.gpus", "0,1"),
    ("trainer -m seed=0,1 hydra/launcher=slurm hydra.launcher.cluster=slrm", "hydra.launcher", "slrm"),
    # Resume, evaluate, predict, export, compare, bench
    ("trainer fit.resume=auto hydra.run.dir=run", "hydra.run.dir=run", "fit.resume=run"),
    ("trainer fit.resume=nowhere", "fit.resume=nowhere", "run"),
    ("trainer fit.resume=run/last.pt", "fit.resume=run/last.pt", "run"),
    ("trainer old", "'old'", "'fit.resume=old'"),
    ("trainer resume run", "resume", "fit.resume=run?"),
    ("trainer resume fit.epochs=9", "resume", "fit.resume=RUN_FOLDER"),
    ("trainer find_lr fit.resume=x", "fit.resume", "null"),
    ("trainer bench fit.gpus=2", "fit.gpus", "torchrun"),
    ("trainer bench --out notes.txt/x", "--out", "notes.txt"),
    ("trainer report none", "none", "S"),
    ("trainer report run/best.pt", "run/best.pt", "run"),
    ("trainer report photos", "photos", "config.yaml"),
    ("trainer dashboard nowhere", "nowhere", "S"),
    ("trainer dashboard photos run", "run", "[FOLDER]"),
    ("trainer evaluate photos run", "photos", "config.yaml"),
    ("trainer evaluate run/best.pt", "run/best.pt", "run"),
    ("trainer evaluate run nowhere", "nowhere", "S"),
    ("trainer evaluate run photos", "photos/val/cat", "blue, green, red"),
    ("trainer predict run", "FILE_OR_FOLDER"),
    ("trainer predict nowhere notes.txt", "nowhere", "S"),
    ("trainer predict empty photos", "best.pt"),
    ("trainer predict list.csv photos", "list.csv", "is a file. Use the folder"),
    ("trainer predict photos run", "photos", "last"),
    ("trainer predict run photos --draw", "--draw", "'--overlay'"),
    ("trainer predict run photos --conf=0.3", "--conf", "'--threshold'"),
    ("trainer export run --int8", "--int8", "'--variants'"),
    ("trainer predict run empty", "empty", "images"),
    ("trainer predict run bad.jpg", "bad.jpg", "0 bytes"),
    ("trainer predict run bad.jpg bad.jpg", "bad.jpg", "0 bytes"),
    ("trainer predict run photos model.kind=timm model.name=resnet18", "run/best.pt", "conv1.weight"),
    # Without a run, because the path is checked before the model is loaded.
    ("trainer predict nowhere photos --csv notes.txt/x.csv", "--csv", "notes.txt is not a folder"),
    ("trainer predict nowhere photos --json photos", "--json", "photos is a folder"),
    ("trainer labels nowhere --json photos", "--json", "photos is a folder"),
    ("trainer export run --unchecked aug.val.flip.p=0.5", "aug.val.flip", "center_crop"),
    ("trainer export run --unchecked --limit 9", "--limit", "--preprocessing"),
    ("trainer export run data.root=nowhere", "data.root=nowhere", "S"),
    ("trainer predict run https://host/cat.jpg", "https://host/cat.jpg", "Download"),
    ("trainer predict run phtos", "phtos", "photos"),
    ("trainer predict run 'photos/*.JPEG'", "photos/*.JPEG", "quotes"),
    ("trainer -m hydra/sweeper=optuna fit.lr=loguniform(0.1,1)", "fit.lr=loguniform(0.1,1)",
     "tag(log,interval(LOW,HIGH))"),
    ("trainer export run --preprocessing besides", "--preprocessing", "'besides'", "'beside'"),
    ("trainer export run --variants fp16,int4", "--variants", "'int4'", "'int8'"),
    ("trainer export run --variants int8 --calibrate 1", "--calibrate", "10"),
    ("trainer export run --calibrate 20", "--calibrate", "int8"),
    ("trainer compare run --metric val_acc", "--metric val_acc", "'val_accuracy'"),
    ("augment preview --split tain", "--split", "'tain'", "'train'"),
    ("augment preview", "aug.train", "aug=NAME", "--op NAME"),
    ("augment preview --op flip --count 0", "--count", "from 1 to 64"),
    ("augment preview --op flip --photos nowhere", "--photos nowhere", "S"),
    ("augment preview --op flip --photos notes.txt", "--photos notes.txt", "is a file"),
    ("augment info data=lmdb data.train=notes.txt data.val=notes.txt", "data.train=notes.txt/data.mdb", "is a file"),
    ("augment preview --op flip --photos empty", "--photos empty", "images"),
    ("augment convert data=sample --out x", "--to", "folder", "webdataset"),
    ("augment convert data=sample --to folder", "--out", "folder"),
    ("augment convert --to folder --out x", "data", "data=folder data.root=DIR"),
    ("augment convert data=folder --to folder --out x", "data.root", "train/<class>/*"),
    ("augment convert data=sample --size 0", "--size", "from 1 to 65500"),
    ("augment export aug.val.flip.p=0.5", "aug.val.flip", "center_crop"),
    ("augment export --run nothing", "--run nothing", "S"),
    ("augment export --run nothing +aug=none", "--run nothing", "+aug=none"),
    ("augment fusion --photos empty", "--photos empty", "images"),
    ("augment fusion a b", "a b", "--help"),
    ("trainer --help fit.lrr", "--help fit.lrr", "'fit.lr'"),
    ("trainer --help rotat", "--help rotat", "'rotate'"),
    ("trainer --help data=foldr", "--help data=foldr", "'data=folder'"),
    ("trainer --help evalute", "--help evalute", "'evaluate'"),
    ("augment ops rotat", "'rotat'", "'rotate'"),
    ("augment bench +aug=imagenette --also rand_augmet", "'rand_augmet'", "'rand_augment'"),
    ("augment bench --rows foo", "--rows", "'foo'", "cached"),
    ("trainer find_lr --from 1 --to 0.1", "--from 1 --to 0.1", "larger --to"),
]  # fmt: skip


def contains(message: str, name: str) -> bool:
    """Whether a message contains a name that is not a part of a longer one."""
    return re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w/-])", message) is not None


def recipe() -> augment.Recipe:
    return augment.load_recipe("imagenette", "aug.size=16")


def loader(**given: object) -> augment.Loader:
    arguments = {"data": "folder", "root": "photos", "device": "cpu", "threads": 1}
    return augment.make_loader(recipe(), **(arguments | given))


def learner(outputs: int, **given: object) -> trainer.Learner:
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, outputs))
    arguments = {"optimizer": lambda model: torch.optim.SGD(model.parameters(), lr=0.1)}
    return trainer.Learner(model, loader(), loader(), trainer.LoopSettings(device="cpu"), **(arguments | given))


# The same from Python.
CALLS: list[tuple[Callable[[], object], str, str]] = [
    (lambda: augment.load_recipe("imagenete"), "'imagenete'", "'imagenette'"),
    (lambda: augment.load_recipe("imagenette", size=64), "size=64", '"aug.size=64"'),
    (lambda: augment.load_recipe("imagenette", "size=64"), "size", "'aug.size'"),
    (lambda: augment.load_recipe("imagenette", {"aug.size": 64}), "{'aug.size': 64}", '"aug.size=160"'),
    (lambda: augment.load_recipe({"trian": {}}), "aug.trian", "'train'"),
    (lambda: augment.load_recipe("nowhere.yaml"), "nowhere.yaml", "YAML"),
    (lambda: loader(split="validation"), "split=validation", "'val'"),
    (lambda: loader(data="foldr"), "'foldr'", "'folder'"),
    (lambda: loader(data="./photos"), "'./photos'", "data='folder', root=DIR"),
    (lambda: loader(path="photos"), "data.path", "'root'"),
    (lambda: loader(batch=3), "batch", "'batch_size'"),
    (lambda: loader(num_workers=3), "num_workers", "'threads'"),
    (lambda: loader(device="gpu"), "'gpu'", "'cuda'"),
    (lambda: augment.make_loader("imagenette", "folder", root="photos"), "'imagenette'", "augment.load_recipe"),
    (lambda: augment.Transform(recipe(), split="test", device="cpu"), "split=test", "'val'"),
    (lambda: augment.Transform(recipe(), device="cpu")(torch.zeros(2, 8, 8, 3)), "float32 (2, 8, 8, 3)", "uint8"),
    (lambda: trainer.train(epochs=2), "epochs=2", '"fit.epochs=2"'),
    (lambda: trainer.train({"fit.epochs": 2}), "{'fit.epochs': 2}", '"aug.size=160"'),
    (lambda: trainer.train("fit.epoch=2"), "fit.epoch", "'epochs'"),
    (lambda: trainer.train("seed=0,1"), "seed=0,1", "python -m trainer -m"),
    (lambda: learner(2, optimizer=torch.optim.SGD([nn.Parameter(torch.zeros(1))])), "SGD(...)", "lambda model: SGD"),
    (lambda: learner(1).fit(), "(4, 1)", "nn.Linear(..., 2)"),
    (lambda: learner(2, callbacks=[trainer.Recorder]), "Recorder is a class", "Recorder()"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, finished_run: Path, sample_set: Path) -> Path:
    """Folders and files that the mistakes name: a good data set, bad ones, and a run."""
    root = tmp_path_factory.mktemp("mistakes")
    (root / DATA_DIR).parent.mkdir()
    (root / DATA_DIR).symlink_to(sample_set)
    for number, name in enumerate(("cat", "dog")):
        for split in ("train", "val"):
            (root / "photos" / split / name).mkdir(parents=True)
            for seed in range(2):
                image = Image.fromarray(draw_photo(24, 24, 10 * number + seed))
                image.save(root / "photos" / split / name / f"{seed}.png")
    shutil.copytree(root / "photos/train", root / "classes")
    shutil.copytree(root / "photos", root / "broken")
    bad = Path("train/cat/0.png")
    (root / "broken" / bad).write_bytes((root / "photos" / bad).read_bytes()[:200])
    (root / "list.csv").write_text("path,label\nphotos/train/cat/0.png,cat\nnope.png,dog\n")
    (root / "notes.txt").write_text("notes")
    (root / "own/aug").mkdir(parents=True)
    (root / "own/aug/tilted.yaml").write_text("train: {rotate: {angle: 7}}\n")
    (root / "own/experiment").mkdir()
    (root / "own/experiment/short.yaml").write_text("fit: {epochs: 2}\n")
    shutil.copytree(finished_run, root / "run")
    for name in ("S", "empty"):
        (root / name).mkdir()
    (root / "S/sweep.yaml").write_text("command: []\nlauncher: {kind: local}\nsweeper: {_target_: basic_sweeper}\n")
    (root / "bad.jpg").touch()
    (root / "old").symlink_to(root / "run")
    shutil.copy(root / "run/config.yaml", root / "empty")
    return root


@pytest.fixture(autouse=True)
def _in_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # set by `main`
    monkeypatch.setattr(sys, "argv", ["trainer"])

    def unanswered(*_: object, **__: object) -> None:
        pytest.fail("the mistake was accepted, and a run began")

    monkeypatch.setattr("trainer.run.train.train", unanswered)
    monkeypatch.setattr("trainer.cli.main.run_job", unanswered)
    monkeypatch.setattr("trainer.cli.single_run.run_job", unanswered)
    monkeypatch.setattr("trainer.sweeps.sweep.command.run", unanswered)
    yield
    set_config_dir(None)


@pytest.mark.parametrize(("count", "seen"), [(0, "no GPU"), (1, "1 GPU")])
def test_more_processes_than_gpus(
    count: int, seen: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    with pytest.raises(SystemExit, match="2"):
        main(["fit.gpus=2"])
    assert f"fit.gpus=2: PyTorch sees {seen} here." in capsys.readouterr().err


@pytest.mark.parametrize("mistake", COMMANDS, ids=[mistake[0] for mistake in COMMANDS])
def test_a_command_line(
    mistake: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line, *named = mistake
    package, *arguments = shlex.split(line)
    monkeypatch.setattr(sys, "argv", [package, *arguments])
    with pytest.raises(SystemExit) as stopped:
        raise SystemExit(main(arguments) if package == "trainer" else run_tool(package, arguments))
    assert stopped.value.code == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ")
    assert [name for name in named if not contains(printed.err, name)] == []
    assert "Traceback" not in printed.out + printed.err
    assert not [*Path("outputs").glob("2*"), *Path().glob("outputs/export"), *Path().glob("x")]


@pytest.mark.parametrize(("call", "given", "remedy"), CALLS, ids=[given for _, given, _ in CALLS])
def test_a_call(call: Callable[[], object], given: str, remedy: str) -> None:
    with pytest.raises(UserError) as caught:
        call()
    assert contains(str(caught.value), given)
    assert contains(str(caught.value), remedy)


@pytest.mark.parametrize(
    "call",
    [
        lambda: augment.load_recipe("imagenete"),
        lambda: augment.load_recipe("imagenette", "aug.train.rotat.p=1"),
        lambda: augment.make_loader(augment.load_recipe("imagenette"), data="foldr"),
        lambda: augment.Transform(augment.load_recipe("imagenette"), split="tain"),
        lambda: trainer.train("+aug=imagenete"),
    ],
)
def test_a_script_gets_a_short_traceback(call: Callable[[], object]) -> None:
    with pytest.raises(UserError) as caught:
        call()
    text = "".join(traceback.format_exception(caught.value))
    assert len(text.splitlines()) <= 15
    assert str(caught.value) in text.splitlines()[-1]
