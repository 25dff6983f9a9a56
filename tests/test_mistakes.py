"""Mistakes, each answered at once and in one process: what was given, and what to write in its place."""

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

# A command line without `python -m`; what the answer names; and what it suggests or allows.
COMMANDS = [
    # Tools
    ("trainer trian", "trian: unknown tool", "python -m trainer, which trains"),
    ("trainer test RUN", "test: unknown tool", "python -m trainer evaluate"),
    ("trainer tune", "tune: unknown tool", "-m hydra/sweeper=optuna"),
    ("trainer info", "info: unknown tool", "python -m augment info"),
    ("trainer predct RUN photos", "predct: unknown tool", "Did you mean 'predict'?"),
    ("augment train", "train: unknown tool", "python -m trainer, which trains"),
    ("augment prewiev", "prewiev: unknown tool", "Did you mean 'preview'?"),
    ("trainer imagenette", "'imagenette' is not an override", "+aug=imagenette"),
    ("trainer photos", "'photos' is not an override", "data=folder data.root=photos"),
    ("trainer mine.yaml", "'mine.yaml' is not an override", "'+aug=mine'? Its file is conf/aug/mine.yaml"),
    # Flags
    ("trainer --aug imagenette", "--aug: unknown flag", "+aug=imagenette"),
    ("trainer --resume RUN", "--resume: unknown flag", "fit.resume=RUN"),
    ("trainer --config mine.yaml", "--config: unknown flag", "'--config-dir'"),
    ("trainer --config-dir nowhere", "--config-dir nowhere: there is no such folder", "a folder such as conf"),
    ("trainer --config-name nowhere", "--config-name nowhere: there is no such file", "Allowed: config"),
    ("trainer -sc install=bash", "-sc: unknown flag", "Allowed: --cfg"),
    ("trainer -m --cfg job seed=0,1", "--multirun and --cfg", "Allowed: one of them"),
    ("augment preview --splti train", "--splti: unknown flag", "'--split'"),
    ("trainer --batch-size", "--batch-size: unknown flag.", "fit.batch_size=..."),
    ("trainer bench --batch-size 4", "--batch-size: unknown flag", "Settings are key=value"),
    ("trainer --config-dir", "argument --config-dir/-cd", "expected one argument."),
    ("trainer -aug.train.flip", "-aug.train.flip: unknown flag.", "'~aug.train.flip'"),
    ("trainer --trust", "--trust: there is nothing to trust.", "with fit.resume=RUN."),
    ("trainer report --open run", "--open: unknown flag.", "Allowed: "),
    ("trainer sweep resume S --jop=1", "--jop: unknown flag.", "Did you mean '--job'? Allowed: --conf"),
    ("trainer find_lr --from 0", "argument --from: 0 is not allowed.", "a number above 0"),
    ("trainer find_lr --steps 3", "argument --steps: 3 is not allowed.", "a whole number from 20"),
    ("trainer find_lr --out a.jpg", "argument --out: 'a.jpg' is not allowed.", "a file that ends in .png"),
    ("trainer dashboard --port 80", "--port: has no effect without --watch.", ""),
    # Keys
    ("trainer epochs=3", "epochs: unknown key", "fit.epochs"),
    ("trainer rotate.p=0.5", "rotate: unknown key", "aug.train.rotate"),
    ("trainer fit.epoch=3", "fit.epoch: unknown key", "'epochs'"),
    ("trainer fit.num_workers=3", "fit.num_workers: unknown key.", "'threads'"),
    ("trainer fit.ema=0.9", "fit.ema: unknown key.", "'callbacks.ema'"),
    ("trainer report run fit.epochs=3", "fit.epochs=3: not allowed here.", "folders of runs."),
    ("trainer dashboard fit.lr=1", "fit.lr=1: not allowed here.", "folder"),
    ("trainer sweep resume S fit.lr=1", "fit.lr=1: not allowed here.", "hydra/launcher=..., hydra.launcher.*"),
    ("trainer data.root=photos", "data.root: unknown key of data=sample", "data=folder"),
    ("trainer model.name=resnet18", "model.name: unknown key of model=cnn", "model=timm"),
    ("trainer hydra.run.dri=x", "hydra.run.dri: unknown key", "hydra.run.dir"),
    ("trainer fit.epochs = 3", "'fit.epochs' is not an override", "no spaces around ="),
    ("trainer =3", "'=3' is not an override.", "key=value"),
    ("trainer ~fit.lr", "~fit.lr: nothing to remove", "a key that a file in conf/ sets"),
    ("trainer +aug=imagenette ~aug.train.fliip", "~aug.train.fliip: there is no such key", "Did you mean 'flip'?"),
    # Values
    ("trainer fit.epochs=three", "fit.epochs: 'three'", "a whole number from 1"),
    ("trainer fit.epochs=0", "fit.epochs: 0", "a whole number from 1"),
    ("trainer fit.epochs=1,5", "fit.epochs=1,5: several values", "write 1.5"),
    ("trainer fit.lr=[1", "fit.lr=[1: cannot be read", "[ and ] do not match"),
    ("trainer fit.lr=${fit.lrr}", "Interpolation key 'fit.lrr' not found", "${KEY}"),
    ("trainer aug.size=[360]", "aug.size: [360]", "[height, width]"),
    ("trainer aug.size=360x480", "aug.size: '360x480'", "Did you mean [360, 480]?"),
    ("trainer aug.mean=[124,116,104]", "aug.mean: [124, 116, 104]", "from 0 to 1"),
    ("trainer fit.device=gpu:1", "fit.device: unknown name 'gpu:1'.", "'cuda:1'"),
    ("trainer hydra.run.dir= fit.resume=auto", "hydra.run.dir: a folder is missing.", "such as outputs/mine."),
    ("trainer run.tags=x", "run.tags: 'x'", "run.tags=[x]"),
    # Recipes
    ("trainer +aug=imagenete", "aug: unknown name 'imagenete'", "'imagenette'"),
    ("trainer +aug=imagenette +aug=none", "aug: chosen twice", "once"),
    ("trainer aug.train.rotat.p=0.5", "unknown op 'rotat'", "'rotate'"),
    ("trainer aug.train.RandomHorizontalFlip.p=1", "unknown op 'RandomHorizontalFlip'", "'flip'"),
    ("trainer aug.train.rotate.prob=0.5", "aug.train.rotate.prob: unknown key", "'p'"),
    ("trainer aug.train.rotate.p=50%", "aug.train.rotate.p: '50%'", "Did you mean 0.5?"),
    ("trainer aug.trian.rotate.p=0.5", "aug.trian: unknown key", "'train'"),
    ("trainer aug.val.mixup.p=1", "aug.val.mixup", "in aug.train only"),
    ("augment plan +aug=nothing", "aug: unknown name 'nothing'", "imagenette"),
    ("augment preview --op rotat", "--op: unknown op 'rotat'", "'rotate'"),
    # Models, optimizers, schedules
    ("trainer model=resnet18", "model: unknown name 'resnet18'", "model=timm model.name=resnet18"),
    ("trainer model=timm", "model.name: missing", "such as resnet18"),
    ("trainer model.weights=/nope.pth", "model.weights=/nope.pth: no such file", "holds"),
    ("trainer model.weights=run/lst.pt", "model.weights=run/lst.pt: no such file", "run/last.pt"),
    # Callbacks, metrics, trackers
    ("trainer callbacks.wnadb.project=x", "callbacks.wnadb: unknown callback", "'wandb'"),
    ("trainer callbacks=tensorflow", "callbacks: unknown name 'tensorflow'", "'tensorboard'"),
    ("trainer callbacks.early_stopping.monitor=val_acc", "unknown name 'val_acc'", "'val_accuracy'"),
    ("trainer callbacks.grad_clip=1", "callbacks.grad_clip: 1", "max_norm"),
    # Data
    ("trainer data=photos", "data: unknown name 'photos'", "data=folder data.root=photos"),
    ("trainer data=folder", "data.root: missing", "train/<class>/*"),
    ("trainer data=folder data.root=photo", "data.root=photo: there is no such folder", "photos"),
    ("trainer data=folder data.root=https://host/photos", "https://host/photos is a URL", "download it"),
    ("trainer data=folder data.root=notes.txt", "data.root=notes.txt: is a file", "the folders train and val"),
    ("trainer data=folder data.root=photos/train", "data.root=photos/train", "data.root="),
    ("trainer data=folder data.root=photos/train data.val_fraction=2", "data.val_fraction: 2", "up to 0.9"),
    ("trainer data=folder data.root=photos data.val_fraction=0.5", "there is photos/val", "data.root=photos/train"),
    ("trainer data=folder data.root=classes", "no folder train and no folder val", "data.val_fraction=0.2"),
    ("trainer data=folder data.root=broken", "broken/train/cat/0.png is broken", "data.skip_bad=true"),
    ("trainer data=filelist data.train=list.csv data.val_fraction=0.2", "there is no nope.png, line 3 of list.csv",
     "relative to data.root"),
    ("trainer data=filelist data.train=lst.csv data.val_fraction=0.2", "there is no file lst.csv", "list.csv"),
    ("trainer data=webdataset data.train=photos data.val=photos", "photos is a folder", "photos/*"),
    ("trainer data=own data.train=nope:Train data.val=x", "data.train=nope:Train", "module.name"),
    ("augment convert data=folder data.root=photos --to folder --out photos", "--out photos: exists", "a new or empty"),
    # Plugins
    ("trainer plugins=[nowhere]", "plugins: no module named 'nowhere'", "this folder and PYTHONPATH"),
    ("trainer plugins=[./my_ops.py]", "plugins: ./my_ops.py: the path of a file", "'my_ops'"),
    # Sweeps and searches
    ("trainer seed=0,1", "seed=0,1: several values", "python -m trainer -m"),
    ("trainer -m fit.lr=0.1,foo", "fit.lr: 'foo'", "a number above 0"),
    ("trainer -m fit.lr=interval(0.1,1)", "fit.lr: an interval", "hydra/sweeper=optuna"),
    ("trainer -m fit.resume=auto seed=0,1", "fit.resume=auto", "--multirun without it"),
    ("trainer -m hydra/sweeper=optuna", "nothing to search", "fit.lr=interval(1e-3,1e-1)"),
    ("trainer -m hydra/sweeper=optuna fit.lr=interval(1,0.1)", "fit.lr=interval(1,0.1)", "low < high"),
    ("trainer -m hydra/sweeper=optuna hydra.sweeper.n_trial=3 fit.lr=interval(0.1,1)", "n_trial", "'n_trials'"),
    ("trainer -m hydra/sweeper=optuna hydra.sweeper.metrics=[val_acc] fit.lr=interval(0.1,1)", "val_acc",
     "'val_accuracy'"),
    ("trainer -m hydra/sweeper=optuna hydra.sweeper.sampler=tpo fit.lr=interval(0.1,1)", "sampler: ", "'tpe'"),
    ("trainer -m hydra/sweeper=optuna hydra.sweeper.metrics=[val_loss,epoch] fit.lr=interval(0,1)", "metrics", "one;"),
    ("trainer hydra.sweeper.n_trials=3", "hydra.sweeper.n_trials: there is no sweep", "without -m"),
    ("trainer sweep list SWEEP", "list: unknown", "'show'"),
    ("trainer sweep resume", "resume: 0 folders", "resume SWEEP"),
    ("trainer sweep resume run", "run: no sweep.yaml in it", "the folder of a sweep"),
    ("trainer sweep resume nowhere", "nowhere: there is no such folder.", "The current folder holds S"),
    ("trainer sweep retry S --job nothing", "--job nothing: no such job in S.", ""),
    ("trainer sweep resume S hydra.sweeper.n_trials=9", "hydra.sweeper.n_trials: needs a search.", "beside hydra/"),
    ("trainer -m seed=0,1 hydra.sweeper.n_trials=9", "hydra.sweeper.n_trials: needs a search.", "beside hydra/"),
    ("trainer -m seed=0,1 hydra.sweep.dir=notes.txt/x", "hydra.sweep.dir=notes.txt/x: cannot be written", "Not a dir"),
    ("trainer -m seed=0,1 hydra.sweep.dir=", "hydra.sweep.dir: a folder is missing.", "such as outputs/mine."),
    ("trainer -m seed=0,1 hydra.sweep.subdir=x", "hydra.sweep.subdir: unknown key.", "hydra.sweep.dir, hydra.searchp"),
    ("trainer -m seed=0,1 hydra/launcher=plugin", "hydra/launcher: ", "local"),
    ("trainer -m seed=0,1 hydra.launcher.n_job=2", "hydra.launcher.n_job: unknown key.", "'n_jobs'"),
    ("trainer -m seed=0,1 hydra.launcher.n_jobs=0", "hydra.launcher.n_jobs: 0 is not allowed.", ""),
    ("trainer -m seed=0,1 hydra.launcher.gpus=[0,one]", "hydra.launcher.gpus: ", "numbers"),
    ("trainer -m seed=0,1 hydra/launcher=slurm hydra.launcher.cluster=slrm", "hydra.launcher", "slrm"),
    # Resume, evaluate, predict, export, compare, bench
    ("trainer fit.resume=auto hydra.run.dir=run", "holds a run of another configuration.", "Allowed: another folder; "),
    ("trainer fit.resume=nowhere", "fit.resume=nowhere: there is no such folder", "the folder of a run"),
    ("trainer fit.resume=run/last.pt", "fit.resume=run/last.pt: a file", "Did you mean run?"),
    ("trainer old", "'old' is not an override.", "'fit.resume=old'"),
    ("trainer resume run", "resume: unknown tool.", "fit.resume=RUN_FOLDER"),
    ("trainer find_lr fit.resume=x", "fit.resume: the test starts with fresh weights.", "null."),
    ("trainer bench fit.gpus=2", "fit.gpus: 2, but this process trains alone.", ""),
    ("trainer bench --out notes.txt/x", "notes.txt is not a folder", ""),
    ("trainer report none", "none: there is no such folder.", "the folder of a run."),
    ("trainer report run/best.pt", "run/best.pt: a file. Did you mean run?", "the folder of a run."),
    ("trainer report photos", "no config.yaml in it.", "the folder of a run."),
    ("trainer dashboard nowhere", "nowhere: no such folder", ""),
    ("trainer dashboard photos run", "run: not allowed here.", "one folder."),
    ("trainer evaluate photos run", "photos: no config.yaml in it", "the folder of a run"),
    ("trainer evaluate run/best.pt", "run/best.pt: a file", "Did you mean run?"),
    ("trainer evaluate run nowhere", "nowhere: there is no such folder", "The current folder holds"),
    ("trainer evaluate run photos", "is not one of the model's classes", "Allowed: blue, green, red"),
    ("trainer predict run", "no images are given", "folders that hold images"),
    ("trainer predict nowhere notes.txt", "nowhere: there is no such folder.", "The current folder holds "),
    ("trainer predict empty photos", "best.pt: no such checkpoint", ""),
    ("trainer predict run empty", "holds no images", ""),
    ("trainer predict run bad.jpg", "error: the image cannot be used: ", ""),
    ("trainer predict run bad.jpg bad.jpg", "none of 2 images can be used; the first: bad.jpg is empty", ""),
    ("trainer predict run photos model.kind=timm model.name=resnet18", "best.pt: not the weights of ", ""),
    ("trainer predict run photos --csv notes.txt/x.csv", "cannot be written", ""),
    ("trainer export run --unchecked aug.val.flip.p=0.5", "aug.val.flip: is random", ""),
    ("trainer export run --unchecked --limit 9", "--limit", ""),
    ("trainer export run data.root=nowhere", "nowhere", ""),
    ("trainer predict run https://host/cat.jpg", "https://host/cat.jpg is a URL", "download it"),
    ("trainer predict run phtos", "phtos: there is no such file or folder", "Did you mean photos?"),
    ("trainer -m hydra/sweeper=optuna fit.lr=loguniform(0.1,1)", "'loguniform'", "tag(log,interval(LOW,HIGH))"),
    ("trainer export run --preprocessing besides", "--preprocessing: unknown name 'besides'", "'beside'"),
    ("trainer compare run --metric val_acc", "--metric val_acc", "'val_accuracy'"),
    ("augment preview --split tain", "argument --split: unknown name 'tain'", "'train'"),
    ("augment preview", "aug.train: no steps", "+aug=NAME for a recipe, or --op NAME for an op."),
    ("augment preview --op flip --count 0", "--count: 0 is not allowed", "a whole number from 1 to 64"),
    ("augment preview --op flip --photos nowhere", "--photos nowhere: there is no such folder", ""),
    ("augment preview --op flip --photos empty", "--photos empty: the folder contains no images", ""),
    ("augment convert data=sample --out x", "--to, --out: missing", "--to folder or webdataset, and"),
    ("augment convert data=sample --to folder", "--to, --out: missing.", ""),
    ("augment convert --to folder --out x", "data: missing", "data=folder data.root=DIR, or another source."),
    ("augment convert data=folder --to folder --out x", "data.root: missing", ""),
    ("augment convert data=sample --size 0", "--size: 0 is not allowed", "a whole number from 1 to 65500"),
    ("augment export aug.val.flip.p=0.5", "aug.val.flip: is random", ""),
    ("augment export --run nothing", "--run nothing: contains no config.yaml", ""),
    ("augment export --run nothing +aug=none", "cannot be combined", ""),
    ("augment fusion --photos empty", "--photos empty: the folder contains no images.", ""),
    ("augment fusion a b", "a b: not allowed here.", "flags only"),
    ("trainer --help fit.lrr", "--help fit.lrr: unknown topic.", "Did you mean 'fit.lr'? Allowed: all, aug, "),
    ("trainer --help rotat", "--help rotat: unknown topic.", "'rotate'"),
    ("trainer --help data=foldr", "--help data=foldr: unknown topic.", "'data=folder'"),
    ("trainer --help evalute", "--help evalute: unknown topic.", "'evaluate'"),
    ("augment ops rotat", "unknown op 'rotat'", "Did you mean 'rotate'?"),
    ("augment bench +aug=imagenette --also rand_augmet", "aug: unknown name 'rand_augmet'", ""),
    ("augment bench --rows foo", "--rows: unknown row 'foo'", "Allowed: cached"),
    ("trainer find_lr --from 1 --to 0.1", "--from 1 --to 0.1", "the second the larger"),
]  # fmt: skip


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
    (lambda: augment.load_recipe("imagenette", "size=64"), "size: unknown key", "aug.size"),
    (lambda: augment.load_recipe("imagenette", {"aug.size": 64}), "{'aug.size': 64}", '"aug.size=160"'),
    (lambda: augment.load_recipe({"trian": {}}), "aug.trian", "'train'"),
    (lambda: augment.load_recipe("nowhere.yaml"), "nowhere.yaml", "a YAML file"),
    (lambda: loader(split="validation"), "split=validation", "'val'"),
    (lambda: loader(data="foldr"), "'foldr'", "'folder'"),
    (lambda: loader(data="./photos"), "'./photos'", "data='folder', root=DIR"),
    (lambda: loader(path="photos"), "data.path", "'root'"),
    (lambda: loader(batch=3), "batch: unknown argument", "'batch_size'"),
    (lambda: loader(num_workers=3), "num_workers", "'threads'"),
    (lambda: loader(device="gpu"), "device: 'gpu'", "'cuda'"),
    (lambda: augment.make_loader("imagenette", "folder", root="photos"), "recipe: 'imagenette'", "augment.load_recipe"),
    (lambda: augment.Transform(recipe(), split="test", device="cpu"), "split=test", "'val'"),
    (lambda: augment.Transform(recipe(), device="cpu")(torch.zeros(2, 8, 8, 3)), "images: float32", "a uint8 tensor"),
    (lambda: trainer.train(epochs=2), "epochs=2", '"fit.epochs=2"'),
    (lambda: trainer.train({"fit.epochs": 2}), "{'fit.epochs': 2}", "text, such as"),
    (lambda: trainer.train("fit.epoch=2"), "fit.epoch: unknown key", "'epochs'"),
    (lambda: trainer.train("seed=0,1"), "seed=0,1", "python -m trainer -m"),
    (
        lambda: learner(2, optimizer=torch.optim.SGD([nn.Parameter(torch.zeros(1))])),
        "optimizer: SGD(...)",
        "lambda model: SGD",
    ),
    (lambda: learner(1).fit(), "shape (4, 1), but the data have 2 classes", "nn.Linear(..., 2)"),
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
    shutil.copytree(finished_run, root / "run")
    for name in ("S", "empty"):
        (root / name).mkdir()
    (root / "S/sweep.yaml").write_text("command: []\n")
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
    monkeypatch.setattr("trainer.cli.jobs.run_job", unanswered)
    monkeypatch.setattr("trainer.sweeps.sweep.command.run", unanswered)
    yield
    set_config_dir(None)


@pytest.mark.parametrize(("line", "given", "remedy"), COMMANDS, ids=[line for line, _, _ in COMMANDS])
def test_a_command_line(line: str, given: str, remedy: str, capsys: pytest.CaptureFixture[str]) -> None:
    package, *arguments = shlex.split(line)
    with pytest.raises(SystemExit) as stopped:
        raise SystemExit(main(arguments) if package == "trainer" else run_tool(package, arguments))
    assert stopped.value.code == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ")
    assert given in printed.err
    assert remedy in printed.err
    assert "Traceback" not in printed.out + printed.err
    assert not [*Path("outputs").glob("2*"), *Path().glob("outputs/export"), *Path().glob("x")]


@pytest.mark.parametrize(("call", "given", "remedy"), CALLS, ids=[given for _, given, _ in CALLS])
def test_a_call(call: Callable[[], object], given: str, remedy: str) -> None:
    with pytest.raises(UserError) as caught:
        call()
    assert given in str(caught.value)
    assert remedy in str(caught.value)


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
