"""Fixtures for every test: a handful of small images, and the devices that augmentation runs on."""

import fcntl
import gc
import os
import shutil
import signal
import sys
from collections.abc import Generator, Iterator
from importlib import import_module
from pathlib import Path

import composed
import numpy as np
import pytest
import torch
from decoded import decoded, for_device
from photos import SIZES, SQUARE, draw_photo
from PIL import Image
from rich.console import Console

from augment.data.dataset import DATA_DIR, Split
from augment.data.images import MemoryImage
from augment.recipe.op import _OPS

# One thread for PyTorch's CPU kernels, also in processes that tests start: results depend on the number of threads, and
# several test processes that share the cores are ten times slower with more.
os.environ["OMP_NUM_THREADS"] = "1"
torch.set_num_threads(1)

import_module("augment.recipe.ops")  # fills OPS, also for test files that import little

# In the background, and under nohup, pytest and what it starts would ignore signals that tests send.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

# What tests share checks too, and is to say what it found as they do.
pytest.register_assert_rewrite("op_checks", "passes", "pipelines", "rendering")


@pytest.fixture(autouse=True)
def _turn_on_the_gpu(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let GPU tests of several processes run side by side, but those marked `alone` by themselves."""
    if not request.node.get_closest_marker("gpu") or not torch.cuda.is_available():
        yield
        return
    # The parent is common to all processes of a run.
    with (tmp_path_factory.getbasetemp().parent / "gpu.lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX if request.node.get_closest_marker("alone") else fcntl.LOCK_SH)
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Replace what is not UTF-8 in captured output, which could not be sent between the processes of a run."""
    report = yield
    report.sections = [(title, text.encode(errors="replace").decode()) for title, text in report.sections]
    return report


# What `pytest -m quick` runs, in a minute on two cores: rooms whose tests neither train nor run the command line.
QUICK = ("augment/cli", "augment/params", "augment/recipe", "augment/support", "trainer/models", "trainer/optim")
QUICK_FILES = ("test_docs.py", "test_layers.py")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no tests that -m leaves out: most of the minute of -m quick."""
    path = collection_path.relative_to(Path(__file__).parent)
    if path.parts[:1] == ("faults",):
        return True if "faults" not in config.option.markexpr else None
    if config.option.markexpr != "quick" or path.suffix != ".py" or path.name == "conftest.py":
        return None
    return None if str(path).startswith(QUICK) or str(path) in QUICK_FILES else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what is quick; deselect the fault harness, and what else takes long, unless -m names it.

    Files with slow tests come first. Otherwise, one process works on the last of them while the others have ended.
    """
    for item in items:
        path = str(item.path.relative_to(Path(__file__).parent))
        if (path.startswith(QUICK) or path in QUICK_FILES) and not item.get_closest_marker("slow"):
            item.add_marker("quick")
    unasked = [marker for marker in ("faults", "long") if marker not in config.option.markexpr]
    left_out = {item for item in items if any(map(item.get_closest_marker, unasked))}
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)  # whole files, which share their fixtures


def pytest_collection_finish() -> None:
    """Import what the first optimizer would import, and exclude all imports from garbage collection."""
    import_module("torch._dynamo")
    _exclude_imports()


@pytest.hookimpl(trylast=True)
def pytest_runtest_logfinish() -> None:
    """Exclude what the test has imported as well."""
    if len(sys.modules) != _excluded:
        _exclude_imports()


_excluded = 0  # number of modules


def _exclude_imports() -> None:
    """Exclude imported objects from garbage collection. Otherwise, each run in a test spends a second on them."""
    global _excluded
    _excluded = len(sys.modules)
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Undo the above: otherwise extension modules report leaks at exit."""
    gc.unfreeze()


@pytest.fixture(scope="module", autouse=True)
def _compose_files_once(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let tests, many of which compose configurations, spend no seconds on it; see `composed`."""
    folder = str(request.path.relative_to(Path(__file__).parent).parent)
    with pytest.MonkeyPatch.context() as patch:
        if folder != "augment/cli" and not folder.startswith("faults"):
            patch.setattr("hydra.compose", composed.compose)
        yield


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder, as programs write below outputs/, indices and the check of images included."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(
    params=[
        pytest.param("cpu", id="cpu"),
        pytest.param(
            "cuda",
            id="gpu",
            marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")],
        ),
    ]
)
def device(request: pytest.FixtureRequest) -> torch.device:
    """Where batches are made: the CPU, and the GPU where there is one."""
    return torch.device(request.param)


@pytest.fixture(scope="session")
def square_files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    """24 PNGs, which no decoder and no resize to their own size changes, of levels 20..235."""
    folder = tmp_path_factory.mktemp("squares")
    files = tuple(folder / f"{seed}.png" for seed in range(24))
    for seed, file in enumerate(files):
        photo = draw_photo(SQUARE, SQUARE, seed).astype(float)
        stretched = 20 + (photo - photo.min()) / np.ptp(photo) * 215
        Image.fromarray(stretched.astype(np.uint8)).save(file)
    return files


@pytest.fixture(scope="session")
def squares(square_files: tuple[Path, ...]) -> tuple[MemoryImage, ...]:
    """The images of `square_files`, decoded."""
    return decoded(square_files)


@pytest.fixture(scope="session")
def shape_files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    """One pixel, strips in both directions, an odd rectangle, a gray image and a black one."""
    folder = tmp_path_factory.mktemp("shapes")
    files = []
    for width, height in ((1, 1), (1, 200), (200, 1), (33, 57)):
        files.append(folder / f"{width}x{height}.png")
        Image.fromarray(draw_photo(width, height, 3)).save(files[-1])
    files += [folder / "gray.png", folder / "black.png"]
    Image.fromarray(draw_photo(40, 50, 4)).convert("L").save(files[-2])
    Image.new("RGB", (40, 40)).save(files[-1])
    return tuple(files)


@pytest.fixture(scope="session")
def shapes(shape_files: tuple[Path, ...]) -> tuple[MemoryImage, ...]:
    """The images of `shape_files`, decoded."""
    return decoded(shape_files)


@pytest.fixture(scope="session")
def image_files(tmp_path_factory: pytest.TempPathFactory) -> Split:
    """Seven JPEGs of varied size and aspect, of three classes in mixed order."""
    folder = tmp_path_factory.mktemp("images")
    files = tuple(folder / f"{width}x{height}.jpg" for width, height in SIZES)
    for seed, (file, (width, height)) in enumerate(zip(files, SIZES, strict=True)):
        Image.fromarray(draw_photo(width, height, seed)).save(file, quality=90)
    return Split(files, targets=(2, 0, 1, 1, 2, 0, 2))


@pytest.fixture
def varied(image_files: Split, device: torch.device) -> Split:
    """The seven images of `image_files`, decoded where the device is a GPU."""
    return Split(for_device(image_files.files, device), image_files.targets)


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    """Six smooth PNGs of 64 x 64 px (`draw_photo`), which every decoder reads alike."""
    folder = tmp_path_factory.mktemp("photos")
    files = tuple(folder / f"{seed}.png" for seed in range(6))
    for seed, file in enumerate(files):
        Image.fromarray(draw_photo(64, 64, seed)).save(file)
    return files


@pytest.fixture(scope="session")
def gray_files(tmp_path_factory: pytest.TempPathFactory) -> Split:
    """Plain gray PNGs: the level of an image tells its index, and its target is neither."""
    from passes import FILES, SIZE, level

    folder = tmp_path_factory.mktemp("grays")
    files = tuple(folder / f"{index}.png" for index in range(FILES))
    for index, file in enumerate(files):
        Image.new("RGB", (SIZE, SIZE), (level(index),) * 3).save(file)
    return Split(files, tuple(7 * index % 5 for index in range(FILES)))


@pytest.fixture
def grays(gray_files: Split, device: torch.device) -> Split:
    """The images of `gray_files`, decoded where the device is a GPU."""
    return Split(for_device(gray_files.files, device), gray_files.targets)


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of three epochs on red, green and blue images, whose own images are gone since."""
    from augment.cli.compose import compose
    from trainer.run.config.schema import parse_config
    from trainer.run.train import train

    root = tmp_path_factory.mktemp("run")
    for split in ("train", "val"):
        for channel, name in enumerate(("red", "green", "blue")):
            (root / "data" / split / name).mkdir(parents=True)
            for seed in range(6):
                photo = draw_photo(40, 30, 100 * channel + seed) // 2
                photo[..., channel] += 120
                Image.fromarray(photo).save(root / "data" / split / name / f"{seed}.png")
    given = ["data=folder", f"data.root={root / 'data'}", "aug.size=[16,20]", "fit.batch_size=6", "fit.epochs=3"]
    aug = [
        "aug.val.center_crop.scale=0.9",
        "fit.device=cpu",
        "fit.threads=1",
        "callbacks.plots=null",
        "callbacks.progress_bar=null",
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)  # the check of the files is kept below outputs/
        train(parse_config(compose([*given, *aug])), root / "run", console=Console(quiet=True))
    shutil.rmtree(root / "data")
    return root / "run"


@pytest.fixture(scope="session")
def sample_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds what a run takes for the sample set, but fewer images, drawn once for all processes."""
    from augment.data.generated.sample import generate_sample

    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent  # common to all processes
    with (root / "sample.lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        if not (root / "sample").exists():
            drawn = generate_sample(root / "sample", train_per_class=8, val_per_class=4)
            drawn.rename(drawn.with_name(drawn.name.removesuffix("-8-4") + "-32-50"))
    return root / "sample"


@pytest.fixture
def sample_drawn(sample_set: Path, tmp_path: Path) -> None:
    """Put the sample set where a run in `tmp_path` has drawn it already."""
    (tmp_path / DATA_DIR).parent.mkdir()
    (tmp_path / DATA_DIR).symlink_to(sample_set)


@pytest.fixture
def no_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let benchmarks measure at once, where nobody looks at the figures; they wait until all threads are idle else."""
    monkeypatch.setattr("augment.cli.benchmark.sleep", lambda _: None)


@pytest.fixture
def clean_registry() -> Iterator[None]:
    """Take out of the registry, and of the imported modules but packages, whatever the test put there."""
    ops, modules = dict(_OPS), set(sys.modules)
    yield
    _OPS.clear()
    _OPS.update(ops)
    for module in set(sys.modules) - modules:
        if "site-packages" not in str(getattr(sys.modules[module], "__file__", "")):
            del sys.modules[module]
