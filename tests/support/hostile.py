"""What strangers put into folders of runs and sweeps, so that whoever opens one runs their code or sends data away."""

import json
import os
import pickle
import shutil
import socket
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from omegaconf import OmegaConf

from augment.cli.config_files import CONF

# What code in a folder would do, and where links in it lead.
EVIL = "import pathlib\npathlib.Path({canary!r}).write_text('code ran')\ntrain = val = lambda **options: []\n"
SECRET = "precious\n"

# libyaml is ten times as fast.
_load = partial(yaml.load, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
_dump = partial(yaml.dump, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper))

ESCAPE = "\033]0;pwned\007\033[31m"
Tamper = Callable[[Path, Path], object]  # with the folder of a run or job, and with one outside

TOP = "../sweep.yaml"


def away(file: Path) -> Path:
    """Remove what has a name, and return the name."""
    shutil.rmtree(file) if file.is_dir() and not file.is_symlink() else file.unlink(missing_ok=True)
    return file


def link(name: str) -> Tamper:
    def tamper(run: Path, outside: Path) -> None:
        folder = name in (".hydra", ".")
        away(run / name).symlink_to(outside / ("folder" if folder else "bashrc"), target_is_directory=folder)

    return tamper


def pipe(name: str) -> Tamper:
    return lambda run, _: os.mkfifo(away(run / name))


def text(name: str, content: str) -> Tamper:
    return lambda run, _: (run / name).write_text(content)


def configure(**values: Any) -> Tamper:
    """Change the configurations of a run, or of a job and its search, and its overrides; `a__b` is a.b."""

    def tamper(run: Path, outside: Path) -> None:
        given = {key.replace("__", "."): value for key, value in values.items()}
        put({key.replace(".", "__"): value for key, value in given.items()})(run, outside)
        override(*(f"++{key}={json.dumps(value).replace(': ', ':')}" for key, value in given.items()))(run, outside)

    return tamper


def put(values: dict[Any, Any]) -> Tamper:
    """Change the configurations alone, as data: `a__b` is a.b and OUTSIDE is a folder outside."""

    def change(config: dict[Any, Any], outside: Path) -> None:
        for path, value in values.items():
            *above, name = path.split("__") if isinstance(path, str) and path[0] != "_" else [path]
            inside = config
            for part in above:
                inside[part] = inside[part] if isinstance(inside.get(part), dict) else {}
                inside = inside[part]
            inside[name] = _load(_dump(value).replace("OUTSIDE", str(outside)))

    def tamper(run: Path, outside: Path) -> None:
        for file in (run / "config.yaml", run / "planned.yaml"):
            if file.exists():
                config = _load(file.read_text())
                change(config, outside)
                file.write_text(_dump(config, sort_keys=False))
        if (file := run / TOP).exists() and "bases" in (sweep := _load(file.read_text())):
            for base in sweep["bases"].values():
                change(base, outside)
            file.write_text(_dump(sweep, sort_keys=False))

    return tamper


def about(**values: Any) -> Tamper:
    """Change what the file of a sweep says."""

    def tamper(run: Path, outside: Path) -> None:
        sweep = _load((run / TOP).read_text()) | values
        (run / TOP).write_text(_dump(sweep, sort_keys=False).replace("OUTSIDE", str(outside)))

    return tamper


def dimension(**values: Any) -> Tamper:
    """Change what a search varies."""
    return about(space=[{"key": "fit.lr", "plus": "++", "group": False, "choices": [0.1], "values": {}} | values])


def override(*tokens: str) -> Tamper:
    """Add overrides to those of a run, or to those of a job and of its sweep."""

    def tamper(run: Path, outside: Path) -> None:
        every = [token.replace("OUTSIDE", str(outside)) for token in tokens]
        replaced = ("data=", "++data.") if any(token.lstrip("+").startswith("data") for token in every) else ("-",)
        hydra = [token for token in every if "hydra" in token]

        def others(before: list[str]) -> list[str]:
            return [token for token in before if not token.startswith(replaced)]

        if (file := run / ".hydra" / "overrides.yaml").exists():
            file.write_text(OmegaConf.to_yaml([*others(_load(file.read_text())), *every]))
        if (file := run / "job.json").exists():
            job = json.loads(file.read_text())
            job["overrides"] = [*others(job["overrides"]), *(token for token in every if token not in hydra)]
            file.write_text(json.dumps(job))
        if (file := run / TOP).exists():
            sweep = _load(file.read_text())
            file.write_text(_dump(sweep | {"command": [*others(sweep["command"]), *every]}))

    return tamper


def ask(*tokens: str) -> Tamper:
    """Add overrides to those of a sweep alone."""

    def tamper(run: Path, _: Path) -> None:
        sweep = _load((run / TOP).read_text())
        (run / TOP).write_text(_dump(sweep | {"command": [*sweep["command"], *tokens]}))

    return tamper


def elsewhere(run: Path, outside: Path) -> None:
    """Let jobs start from a file of the stranger's."""
    about(config_name=os.path.relpath(outside / "evil", CONF))(run, outside)
    (run / "job.json").write_text(json.dumps({"order": 0, "overrides": ["++seed=0"]}))


def state(name: str, change: Callable[[dict[str, Any]], object]) -> Tamper:
    """Change what a checkpoint holds."""

    def tamper(run: Path, _: Path) -> None:
        if (run / name).exists():
            values = torch.load(run / name, weights_only=True)
            change(values)
            torch.save(values, run / name)

    return tamper


def momentum(values: dict[str, Any], tensor: torch.Tensor) -> None:
    for inner in values["optimizer"]["state"].values():
        inner.update(dict.fromkeys(inner, tensor))


class Pickled:
    """Runs a command where it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self.command,)


def checkpoints(how: str) -> Tamper:
    def tamper(run: Path, outside: Path) -> None:
        evil = Pickled(f"touch {outside / 'canary'}")
        for name in ("best.pt", "last.pt"):
            if how == "compressed":
                with zipfile.ZipFile(run / name, "w", zipfile.ZIP_DEFLATED) as archive:
                    archive.writestr("x/data.pkl", bytes(10**7))
            elif how == "old":
                (run / name).write_bytes(pickle.dumps(evil))
            else:
                torch.save({"format": 1, "model": evil}, run / name)

    return tamper


CODE: dict[str, Tamper] = {
    "a plugin": configure(plugins=["evil"]),
    "a plugin of ops": configure(aug__plugins=["evil"]),
    "a system call": override("data.source=own", "++data.train=os.system", "++data.val=os.system",
                              "++data.options={command:'touch OUTSIDE/canary'}"),
    "a function": override("++data={source:own,train:evil.train,val:evil.val}"),
    "Hydra's callbacks": override("+hydra.callbacks.x={_target_: pathlib.Path.touch, self: OUTSIDE/canary}"),
    "a section": override("++aug={plugins: [evil]}"),
    "a flag": override("--config-dir=OUTSIDE"),
    **{f"{how} checkpoints": checkpoints(how) for how in ("pickled", "old", "compressed")},
    "a search path": override("hydra.searchpath=[OUTSIDE]", "+evil=evil"),
    "a Python tag": lambda run, _: [(run / name).write_text("a: !!python/object/apply:os.system ['touch canary']\n")
                                    for name in ("config.yaml", ".hydra/overrides.yaml", TOP) if (run / name).exists()],
}  # fmt: skip
REACH: dict[str, Tamper] = {
    "Imagenette": override("data=imagenette"),
    "Imagewoof": override("++data={source:imagewoof}"),
    "a mirror": override("data=imagenette", "++data.url=http://127.0.0.1:9/imagenette2-160.tgz"),
    "wandb": override("++callbacks.wandb={}"),
    "mlflow": override("++callbacks.mlflow={}"),
    "an environment variable": override("++run.name=${oc.env:HOME}"),
    "a folder": override("data=sample", "++data.dir=OUTSIDE/canary"),
    "the folder of a run": override("hydra.run.dir=OUTSIDE/canary", "+hydra={run: {dir: OUTSIDE/canary}}"),
}
SIZES: dict[str, Tamper] = {
    "a large model": configure(model={"kind": "xresnet50", "width": 16}),
    "a large image": configure(aug__size=4096),
    "an expanded momentum": state("last.pt", lambda s: momentum(s, torch.zeros(1).expand(2**40))),
    "another momentum": state("last.pt", lambda s: momentum(s, torch.zeros(3))),
    "no optimizer": state("last.pt", lambda s: s.update(optimizer={})),
    "other callbacks": state("last.pt", lambda s: s.update(callbacks={key: {"rows": 1} for key in s["callbacks"]})),
    "another loader": state("last.pt", lambda s: s["loader"].update(consumed=2**70)),
    "a position": state("last.pt", lambda s: s.update(position=(-1, 10**9))),
    "random states": state("last.pt", lambda s: s.update(random={"cpu": torch.zeros(1), "cuda": []})),
    "classes with escapes": state("best.pt", lambda s: s.update(classes=tuple(ESCAPE + c for c in s["classes"]))),
    "another task": state("best.pt", lambda s: s.update(task="detect")),
    "a huge score": state("best.pt", lambda s: s["row"].update(val_accuracy=10**400)),
    "batches to make again": state("last.pt", lambda s: s["loader"].update(consumed=10**9, pipeline=None)),
    "a time that is text": state("last.pt", lambda s: s["callbacks"]["Recorder"].update(seconds="a", since="b")),
    "a task": state("best.pt", lambda s: s.update(task=ESCAPE)),
    "a name with escapes": configure(run__name=ESCAPE),
    "aliases": text("config.yaml", "a: &a [x, x, x]\n" + "".join(f"{b}: &{b} [*{a}, *{a}, *{a}]\n" for a, b in zip(
        "abcdefghijk", "bcdefghijkl", strict=True))),
}  # fmt: skip
SWEPT: dict[str, Tamper] = {
    "a swept plugin": ask("++plugins=[evil],[evil,json]"),
    "a configuration elsewhere": elsewhere,
    "a launcher": override("hydra/launcher=slurm", "hydra.launcher.cluster=local"),
    "a job elsewhere": lambda run, outside: (
        shutil.move(run, outside / "folder" / "job"),
        run.symlink_to(outside / "folder" / "job"),
    ),
}


TOUCH = {"_target_": "pathlib.Path.touch", "self": "OUTSIDE/canary"}
TIMM = {"kind": "timm", "name": "resnet18"}
SHARDS = {"source": "webdataset", "train": "a.tar", "val": "b.tar"}

# Values in configurations that reach beyond them: none counts without being named on the command line.
REFUSED: dict[str, dict[Any, Any]] = {
    "a search path": {"hydra": {"searchpath": ["pkg://evil"]}},
    "a folder of Hydra": {"hydra": {"run": {"dir": "OUTSIDE/canary"}, "sweep": {"dir": "OUTSIDE/canary"}}},
    "a launcher of Hydra": {"hydra": {"launcher": TOUCH, "sweeper": TOUCH}},
    "variables of a job": {"hydra": {"job": {"env_set": {"PYTHONPATH": "OUTSIDE"}}, "output_subdir": "../x"}},
    "a log": {"hydra": {"hydra_logging": {"handlers": {"x": {"class": "evil.Log"}}}}},
    "a resolver": {"run__name": "${canary:}"},
    "an interpolation in a key": {"run": {"${canary:}": "x"}},
    "an interpolation in a list": {"run__tags": ["a", "${oc.env:HOME}"]},
    "an interpolation in a deep key": {"fit__loss_options": {"a": {"${oc.env:HOME}": 1}}},
    "an interpolation of another key": {"run__name": "${data.root}"},
    "defaults": {"defaults": [{"/experiment": "../../../outside/evil"}, "_self_"]},
    "an experiment": {"experiment": "../../../outside/evil"},
    "a file to start from": {"config_name": "OUTSIDE/evil"},
    "a target of the data": {"data": TOUCH},
    "a target in a callback": {"callbacks__x": TOUCH},
    "a target in a built-in callback": {"callbacks__checkpoint": TOUCH},
    "a target in the model": {"model": {**TOUCH, "_recursive_": True}},
    "a target in a step": {"aug__train": {"flip": TOUCH}},
    "a plugin as text": {"plugins": "evil"},
    "plugins in a mapping": {"plugins": {"evil": 1}},
    "nested plugins": {"plugins": [["evil"]]},
    "a plugin of ops": {"aug__plugins": ["evil"]},
    "a plugin by a path": {"plugins": ["OUTSIDE/../evil"]},
    "own data": {"data": {"source": "own", "train": "evil.train", "val": "evil.val"}},
    "own validation data": {"data": {"source": "own", "train": "evil.train", "val": "os.system"}},
    "a URL": {"data": SHARDS | {"train": "http://127.0.0.1:9/a.tar"}},
    "a URL of val": {"data": SHARDS | {"val": "s3://bucket/b.tar"}},
    "a glob": {"data": SHARDS | {"train": "/**/*.tar"}},
    "braces of val": {"data": SHARDS | {"val": "b-{0..9999999999}.tar"}},
    "a regular expression": {"data__group": "((a+)+)+$"},
    "a folder to write to": {"data": {"source": "sample", "dir": "OUTSIDE/canary"}},
    "a mirror": {"data": {"source": "imagenette", "url": "http://127.0.0.1:9/imagenette2-160.tgz"}},
    "arguments of a model": {"model": TIMM | {"options": {"depths": [10**9]}}},
    "a model elsewhere": {"model": TIMM | {"name": "hf-hub:evil/model"}},
    "a model in a folder": {"model": TIMM | {"name": "local-dir:OUTSIDE"}},
    "an encoder elsewhere": {"model": {"kind": "smp", "name": "tu-hf-hub:evil/model"}},
    "many processes": {"fit__gpus": 1000, "fit__batch_size": 1000},
    "a tracker": {"callbacks__wandb": {}},
    "a tracker with a server": {"callbacks__mlflow": {"tracking_uri": "http://127.0.0.1:9"}},
    "unknown keys": {"evil": 1, "data__evil": 1},
    "keys of other types": {1: 2, None: 3},
    "a value that is missing": {"data__root": "???"},
    **{f"{section} of type {type(value).__name__}": {section: value}
       for section in ("data", "model", "aug", "fit", "callbacks", "run", "seed") for value in ([1], "x", 1.5)},
    "a name with a zero": {"data__root": "a\0b"},
    "a name with a line break": {"data__root": "a\nb"},
}  # fmt: skip

# Sections of other types, but for one type of each.
REPEATED = {f"{section} of type {kind}"
            for section, kinds in {"data": ("str", "float"), "model": ("list", "float"), "aug": ("list", "str"),
                                   "fit": ("str", "float"), "callbacks": ("list", "float"), "run": ("list", "str"),
                                   "seed": ("str", "float")}.items() for kind in kinds}  # fmt: skip

# What only jobs and searches read, as a run that is resumed or evaluated starts from its own checkpoint.
STARTED: dict[str, dict[Any, Any]] = {
    "weights elsewhere": {"model__weights": "OUTSIDE/bashrc"},
    "a run to resume": {"fit__resume": "OUTSIDE/folder"},
    "pretrained weights": {"model": TIMM | {"pretrained": True}},
}

# Overrides, which nothing reads but people.
LABELS = (
    "hydra.searchpath=[pkg://evil]", "+experiment=../../../outside/evil", "+experiment=%2e%2e/outside/evil",
    "hydra.run.dir=OUTSIDE/canary", "hydra.sweep.dir=OUTSIDE/canary", "hydra/launcher=slurm", "hydra/sweeper=evil",
    "hydra.launcher._target_=evil.X", "hydra.job.env_set={A: b}", "hydra/hydra_logging=evil",
    "+hydra.callbacks.x={_target_: pathlib.Path.touch}", "hydra.output_subdir=OUTSIDE", "++plugins=[evil]",
    "++run.name=${canary:}", "${canary:}=1", "aug@hydra=evil", "--config-dir=OUTSIDE", "a\0=b\n", "~data",
)  # fmt: skip

# What the file of a sweep or a search must not decide.
ABOUT: dict[str, Tamper] = {
    "a launcher that is code": about(launcher={"_target_": "evil.Launcher"}),
    "Slurm": about(launcher={"kind": "slurm", "cluster": "local", "options": {"slurm_setup": ["touch canary"]}}),
    "Ray": about(launcher={"kind": "ray", "address": "127.0.0.1:9"}),
    "many workers": about(launcher={"kind": "local", "n_jobs": 1000}),
    "many processes of a job": about(launcher={"kind": "local", "gpus_per_job": 1000}),
    "many GPUs": about(launcher={"kind": "local", "gpus": ",".join("0" * 999)}),
    "an interpolation of the launcher": about(launcher={"kind": "local", "gpus": "${canary:}"}),
    "a launcher of another type": about(launcher=["local"]),
    "a sweeper that is code": about(sweeper={"_target_": "evil.Sweeper"}),
    "storage of a search": about(sweeper={"kind": "optuna", "storage": "sqlite:////OUTSIDE/canary"}),
    "a sweeper of another type": about(sweeper="optuna"),
    "a sweeper without values": about(sweeper={"kind": ["optuna"], "params": 7}),
}
SEARCHES: dict[str, Tamper] = {
    "a plugin that is searched": dimension(key="plugins", choices=["a"], values={"a": ["evil"]}),
    "a URL that is searched": dimension(key="data.train", choices=["http://127.0.0.1:9/a.tar"]),
    "a URL behind a choice": dimension(key="data", choices=["a"], values={"a": SHARDS | {"val": "http://127.0.0.1:9"}}),
    "a resolver that is searched": dimension(key="run.name", choices=["${canary:}"]),
    "Hydra that is searched": dimension(key="hydra.searchpath", choices=["a"], values={"a": ["pkg://evil"]}),
    "a file that is searched": dimension(key="experiment", group=True, choices=["../../../outside/evil"]),
    "a section that is searched": dimension(key="callbacks", choices=["a"], values={"a": {"wandb": {}}}),
    "an empty key": dimension(key="", choices=[1]),
    "values of another type": dimension(values=[1, 2]),
    "choices that are mappings": dimension(choices=[{"a": 1}]),
    "no choices": dimension(choices=[]),
    "a space of another type": about(space={"fit.lr": [1, 2]}),
    "a space of numbers": about(space=[1, 2]),
    "an interval without an end": about(space=[{"key": "fit.lr", "plus": "", "group": False, "log": False,
                                                "low": 0.0, "high": float("inf")}]),
    "no configuration": about(bases={}),
    "configurations of another type": about(bases={"base": [1]}),
    "fixed overrides of another type": about(fixed=7),
    "no space": about(space=None),
}  # fmt: skip


def set_up(top: Path) -> tuple[Path, Path]:
    """Make what hostile folders refer to: a module `evil`, and files outside; return where those and the canary are."""
    outside = top / "outside"
    (outside / "folder").mkdir(parents=True)
    for name in ("bashrc", "folder/overrides.yaml"):
        (outside / name).write_text(SECRET)
    (outside / "evil.yaml").write_text(
        "# @package _global_\nplugins: [evil]\ndata: {source: sample}\nmodel: {kind: cnn}\n"
    )
    (top / "evil.py").write_text(EVIL.format(canary=str(outside / "canary")))
    return outside, outside / "canary"


def code_of(tool: Callable[[list[str]], int], *arguments: object) -> int:
    """Return the exit code of a tool."""
    try:
        return tool([*map(str, arguments)])
    except SystemExit as ended:
        return int(str(ended.code or 0))


def outside_of(top: Path, *mine: Path) -> dict[Path, bytes]:
    """Return the files that nothing may change: those below a folder, but not in others."""
    files = [path for path in top.rglob("*") if not any(path.is_relative_to(one) for one in mine)]
    return {path: path.read_bytes() for path in files if path.is_file()}


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What was asked of the network, which is not there."""
    asked: list[object] = []

    def refuse(*address: object, **options: object) -> None:
        asked.append(address)
        raise OSError("no network")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    return asked
