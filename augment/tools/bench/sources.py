"""Measure how fast the same images are loaded from each source."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from augment.cli.benchmark import BenchReport
from augment.data.dataset import Dataset, ImageRef
from augment.data.selection import whole_batches
from augment.data.sources import load_dataset
from augment.support.console import progress_bar
from augment.support.errors import UserError
from augment.support.text import amount
from augment.support.timing import cores
from augment.tools.bench.checking import describe_check
from augment.tools.bench.contenders import recipe_stream, select_rows
from augment.tools.bench.formats import SOURCES, load_as
from augment.tools.bench.measure import make_report, measure, read_all, settings_of
from augment.tools.bench.options import BenchOptions
from augment.tools.bench.setup import Contender, Setup, Stream

_PROCESSES = 8  # that read `own`, at most


def compare_sources(options: BenchOptions) -> BenchReport:
    """Measure the recipe on the train images in the format of every source.

    Raises:
        UserError: --rows names no source, or the images have several labels or numbers.
    """
    flags = options.flags
    names = select_rows(("folder", *flags.rows) if flags.rows else (), SOURCES)
    dataset = load_dataset(options.source)
    if dataset.task != "classify":
        raise UserError("data: images with several labels or numbers are not compared. Allowed: one class each.")
    setup = Setup.of(options.aug, dataset.train.files, flags)
    with TemporaryDirectory(prefix="sources-") as folder:
        results = measure(_contenders(names, dataset, Path(folder)), setup, flags)
    settings = settings_of(setup, flags)
    lines = tuple(filter(None, [describe_check(dataset.train.files, flags.rounds)]))
    return make_report("sources", results, settings, baselines=("folder",), beyond=(), name="sources", lines=lines)


def _contenders(names: Sequence[str], dataset: Dataset, folder: Path) -> list[Contender]:
    """Write the images for each source; one that cannot hold them is a contender with an obstacle."""
    # Name, title, source and settings of each contender.
    forms: list[tuple[str, str, str, Mapping[str, Any]]] = [(name, name, name, {}) for name in names]
    if "own" in names:
        workers = min(_PROCESSES, cores())
        title = f"own, {amount(workers, 'process')}"
        forms.append(("own_workers", title, "own", {"workers": workers}))
    contenders = []
    with progress_bar() as progress:
        bar = progress.add_task("", total=len(forms))
        for name, title, source, settings in forms:
            progress.update(bar, description=f"writing {title}")
            try:
                loaded = load_as(source, dataset, folder / name, cores(), **settings)
            except UserError as error:
                contenders.append(Contender(name, title, recipe_stream, partial(_obstacle, str(error).rstrip("."))))
            else:
                read_all(loaded.train.files)
                contenders.append(Contender(name, title, partial(_stream, loaded.train.files)))
                if name == "folder":  # a list can refer to these files
                    dataset = loaded
            progress.advance(bar)
    return contenders


def _obstacle(reason: str, _: Setup) -> str:
    return reason


def _stream(files: Sequence[ImageRef], setup: Setup) -> Stream:
    return recipe_stream(replace(setup, files=whole_batches(files, setup.batch_size)))
