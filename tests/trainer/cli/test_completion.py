"""What may follow a command line, and that shells offer it."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from augment.cli.config_files import config_files, group_names
from augment.recipe.op import OPS
from trainer.__main__ import main
from trainer.cli import completion
from trainer.cli.completion import SHELLS, complete, script
from trainer.cli.help import sections

TRAIN = "CUDA_VISIBLE_DEVICES=0 python -m trainer"


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache of these tests' own, written by an older version."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        (file := folder / "dali-trainer" / "completion.json").parent.mkdir()
        file.write_text('{"keys": {"fit.old": []}, "stamp": [0]}')
        yield file


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (f"{TRAIN} fit.sched", ["fit.schedule="]),
        (f"{TRAIN} fit.schedule=", ["fit.schedule=one_cycle", "fit.schedule=flat_cos"]),
        (f"{TRAIN} -m fit.schedule=one_cycle,fl", ["fit.schedule=one_cycle,flat_cos"]),
        (f"{TRAIN} aug.train.rotate.border=c", ["aug.train.rotate.border=constant"]),
        (f"{TRAIN} ~aug.train.rota", ["~aug.train.rotate"]),
        (f"{TRAIN} callbacks.ema=n", ["callbacks.ema=null"]),
        (f"{TRAIN} +au", ["+aug="]),
        (f"{TRAIN} eva", ["evaluate"]),
        (f"{TRAIN} evaluate --tt", []),
        (f"{TRAIN} --help fi", ["fit", "fit.", "find_lr"]),
        ("python -m augment preview --op cutm", ["cutmix"]),
        ("python -m augment ops cutm", ["cutmix"]),
        (f"{TRAIN} data.root=/", []),
        (f"{TRAIN} evaluate ", []),
        ("python train.py fit.sched", []),
    ],
)
def test_what_may_follow(line: str, found: list[str]) -> None:
    given = complete(line)
    assert set(found) <= set(given)
    assert len(given) == len(set(given))
    assert found or not given
    assert all(word.startswith(line.split()[-1]) for word in given)


def test_every_key_group_op_and_file_is_completed(cache: Path) -> None:
    script("bash")
    known = json.loads(cache.read_text())["keys"]
    for section in sections():
        for name in section.params if "<" not in section.prefix else ():
            assert f"{section.prefix}.{name}".lstrip(".") in known
    for group in group_names():
        assert f"{group}=" in complete(f"{TRAIN} ")
        assert {f"{group}={name}" for name in config_files(group)} <= set(complete(f"{TRAIN} {group}="))
    assert complete(f"{TRAIN} fit.resume=") == ["fit.resume=auto", "fit.resume=last"]
    assert complete(f"{TRAIN} aug.train.") == [f"aug.train.{name}." for name in OPS]


def test_your_own_files_are_completed(own_folder: Path) -> None:
    for folder, name in (("conf", "mine"), ("others", "theirs")):
        (own_folder / folder / "aug").mkdir(parents=True)
        (own_folder / folder / "aug" / f"{name}.yaml").touch()
    assert complete(f"{TRAIN} +aug=mi") == ["+aug=mine"]
    assert complete(f"{TRAIN} +aug=the") == []
    assert complete(f"{TRAIN} --config-dir others +aug=the") == ["+aug=theirs"]


def test_the_cache_is_written_again_when_a_module_has_changed(cache: Path) -> None:
    given = complete(f"{TRAIN} fit.")
    assert "fit.lr=" in given
    assert "fit.old=" not in given
    written = cache.read_text()
    cache.write_text(json.dumps(json.loads(written) | {"keys": {"fit.old": []}}))
    assert complete(f"{TRAIN} fit.") == ["fit.old="]
    cache.write_text(written)


def test_shells_ask_without_the_packages() -> None:
    """Without site-packages nothing slow can be imported."""
    command = [sys.executable, "-IS", completion.__file__, f"{TRAIN} fit.sched"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "fit.schedule=\n"


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atexit.register", lambda _: None)
    monkeypatch.setattr("trainer.__main__.exit_on_stop", lambda *_: None)
    for arguments in (["--completion", "bash"], ["fit.lr=1", "--completion", "bash"]):
        monkeypatch.setattr("sys.argv", ["trainer", *arguments])
        assert main() == 0
        assert capsys.readouterr().out == script("bash")
    monkeypatch.setattr("sys.argv", ["trainer", "--completion", "tcsh"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert "argument --completion: invalid choice: 'tcsh'" in capsys.readouterr().err


ASK = {
    "bash": 'ask() { COMP_LINE=$1 COMP_POINT=${#1}; _dali; printf "%s\\n" "${COMPREPLY[@]}"; }',
    "fish": "function ask; complete -C $argv[1]; end",
}


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_completes(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    lines = ["python -m trainer fit.sched", "python -m trainer fit.schedule=fl", "dali-trainer eva"]
    file = tmp_path / "ask"
    asked = "".join(f"ask '{line}'\n" for line in lines) if shell in ASK else ""
    file.write_text(f"{script(shell)}\n{ASK.get(shell, '')}\n{asked}")
    flags = {"bash": ["--norc"], "zsh": ["-fn"], "fish": ["--no-config"]}[shell]
    done = subprocess.run([shell, *flags, str(file)], capture_output=True, text=True, check=True, cwd=tmp_path)
    value = "flat_cos" if shell == "bash" else "fit.schedule=flat_cos"
    assert done.stdout.split() == ([] if shell == "zsh" else ["fit.schedule=", value, "evaluate"])
