"""What is installed works without a checkout: the wheel, one by way of a source archive, and an editable install."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
MINE = "size: 16\ntrain: {flip: {p: 0.5}, rotate: {}}\n"


def unpacked(wheels: Path, folder: Path) -> Path:
    (wheel,) = wheels.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def build(project: Path, what: str, out: Path) -> None:
    """Run a hook of the build backend, as pip does."""
    code = f"import setuptools.build_meta as backend; backend.{what}({str(out)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=project, capture_output=True, check=True)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the packages are built from: builds leave files behind."""
    folder = tmp_path_factory.mktemp("project")
    for name in ("augment", "trainer", "conf"):
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return folder


@pytest.fixture(scope="module")
def installed(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What pip makes of the project, in a folder as it would be in site-packages."""
    folder = tmp_path_factory.mktemp("wheel")
    build(project, "build_wheel", folder)
    return unpacked(folder, folder / "site")


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """An empty folder but for a recipe of the user's own."""
    (tmp_path / "conf" / "aug").mkdir(parents=True)
    (tmp_path / "conf" / "aug" / "mine.yaml").write_text(MINE)
    return tmp_path


# One process for several commands: each would import PyTorch and DALI.
_RUN = """
import json, runpy, sys
for arguments in json.loads(sys.argv[1]):
    sys.argv = arguments
    try:
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    except SystemExit as stopped:
        if stopped.code:
            raise
    print("<end of output>", flush=True)
"""


def run(installed: Path, folder: Path, *commands: Sequence[str]) -> list[str]:
    """Run commands, each as `python -m` does, in one process; return what each printed."""
    # No bytecode, as other tests compare what is installed.
    environment = os.environ | {"PYTHONPATH": str(installed), "COLUMNS": "200", "PYTHONDONTWRITEBYTECODE": "1"}
    result = subprocess.run(
        [sys.executable, "-c", _RUN, json.dumps(commands)], cwd=folder, env=environment, capture_output=True,
        text=True, timeout=300,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    printed = result.stdout.split("<end of output>\n")[:-1]
    assert len(printed) == len(commands)
    return printed


@pytest.mark.usefixtures("sample_drawn")
def test_the_programs_run_from_an_empty_folder(installed: Path, empty: Path) -> None:
    small = ["fit.epochs=1", "fit.limit_batches=2", "fit.batch_size=8", "fit.device=cpu", "fit.threads=1"]
    trainer_help, augment_help, mine, config, *_ = run(
        installed,
        empty,
        ["trainer", "--help"],
        ["augment", "--help"],
        ["augment", "plan", "+aug=mine"],
        ["trainer", "--cfg", "job", "+aug=mine"],
        ["trainer", "-m", "+aug=glob(min*)", *small],
        ["trainer", "dashboard"],
    )
    assert "your own files: aug=mine" in trainer_help
    assert "your own files: aug=mine" in augment_help
    assert "flip" in mine
    assert "rotate" in config
    assert len(list(empty.glob("outputs/*/*/*/report.html"))) == 1
    assert (empty / "outputs" / "dashboard.html").stat().st_size > 1_000_000  # with ECharts
    licenses = {file.name for file in (installed / "trainer" / "sweeps" / "dashboard" / "echarts").iterdir()}
    assert {"LICENSE", "LICENSE-d3", "NOTICE"} < licenses
    (scripts,) = installed.glob("*.dist-info/entry_points.txt")
    assert "dali-augment = augment.__main__:main" in scripts.read_text()
    assert "dali-trainer = trainer.__main__:main" in scripts.read_text()
    assert {file.parent.name for file in installed.glob("*/py.typed")} == {"augment", "trainer"}


@pytest.mark.long
def test_a_source_archive_makes_the_same_wheel(project: Path, installed: Path, tmp_path: Path) -> None:
    build(project, "build_sdist", tmp_path)
    (archive,) = tmp_path.glob("*.tar.gz")
    shutil.unpack_archive(archive, tmp_path, filter="data")
    build(tmp_path / archive.name.removesuffix(".tar.gz"), "build_wheel", tmp_path)
    folder = unpacked(tmp_path, tmp_path / "site")
    files, expected = (
        {str(f.relative_to(root)): f.read_bytes() for f in root.rglob("*") if f.is_file() and "dist-info" not in str(f)}
        for root in (folder, installed)
    )
    assert files == expected
    conf = {str(f.relative_to(ROOT)) for f in (ROOT / "conf").rglob("*.yaml")}
    assert {name.removeprefix("augment/") for name in files if name.startswith("augment/conf/")} == conf


@pytest.mark.long
def test_an_editable_install_reads_the_files_of_the_checkout(project: Path, empty: Path, tmp_path: Path) -> None:
    build(project, "build_editable", tmp_path)
    folder = unpacked(tmp_path, tmp_path / "site")
    assert not list(folder.rglob("*.yaml"))
    # Without the site-packages of this environment, where another checkout may be installed.
    packages = os.pathsep.join([str(folder), sysconfig.get_path("purelib")])
    code = (
        f"import site; site.addsitedir({str(folder)!r}); from augment.cli import config_files; print(config_files.CONF)"
    )
    result = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=empty, env=os.environ | {"PYTHONPATH": packages}, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    assert result.stdout.strip() == str(project / "conf")
