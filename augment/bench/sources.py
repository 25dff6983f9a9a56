"""`python -m augment.bench.sources data=...`: how fast the same pictures come from each source.

The pictures are written anew for every source, the folder included, below one temporary folder. All are read once
before: what is measured is the work of reading, not the disk.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.table import Table

from augment.bench.contenders import Row, Setup, Stream, recipe_stream, whole_batches
from augment.bench.cpu_time import cores
from augment.bench.formats import SOURCES, load_as
from augment.bench.options import positive_count, positive_seconds
from augment.bench.report import DPI, Result, crowd, draw_bars, ratio
from augment.bench.run import describe, hardware, measure, read_all, versions
from augment.command import Parser, one_of, output, readable_errors, table_console, writing
from augment.compose import compose_recipe
from augment.dataset import Dataset, Picture
from augment.errors import UserError
from augment.figures import save_figure
from augment.files import write_json
from augment.memory import keep_freed_memory
from augment.progress import progress_bar
from augment.sources import load_dataset
from augment.wording import amount

_PROCESSES = 8  # that read `own`, at most

# What a row reads: its name, its title, the source, and settings of it.
_Form = tuple[str, str, str, Mapping[str, Any]]

_EXAMPLES = """\
  python -m augment.bench.sources +aug=imagenette                               the built-in sample
  python -m augment.bench.sources +aug=imagenette data=folder data.root=DIR     the train pictures of DIR
  python -m augment.bench.sources data=folder data.root=DIR --only tfrecord     two rows"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    with readable_errors():
        options, overrides = _parser().split(sys.argv[1:] if arguments is None else arguments)
        recipe = compose_recipe(overrides)
        dataset = load_dataset(recipe.source())
        if dataset.task != "classify":
            raise UserError("data: pictures with several labels or numbers are not compared. Allowed: one class each.")
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if device.type == "cpu":
            keep_freed_memory()  # as in training
        batch_size = min(options.batch_size, len(dataset.train))
        whole = whole_batches(dataset.train.files, batch_size)
        setup = Setup(
            recipe.aug, whole, len(dataset.train), batch_size, options.threads, options.threads, device, options.half
        )
        names = [name for name in SOURCES if name in ("folder", options.only or name)]
        with TemporaryDirectory(prefix="sources-", dir=options.dir) as folder:
            rows = _rows(names, dataset, Path(folder))
            with progress_bar() as progress:
                results = measure(rows, setup, options.rounds, options.seconds, progress)
        settings = {
            "size": recipe.aug.size,
            "batch_size": batch_size,
            "rounds": options.rounds,
            "seconds": options.seconds,
            "threads": options.threads,
            "half": options.half,
            "photos": describe(dataset.train.files),
            "hardware": hardware(),
            "versions": versions(),
        }
        out = options.out or Path("outputs") / f"bench-sources-{datetime.now():%Y-%m-%d-%H-%M-%S}"
        with writing(f"--out {out}"):
            _write(out, results, settings)
    console = table_console()
    console.print(_table(results, settings))
    if warning := crowd(results):
        console.print(warning, style="red", highlight=False, soft_wrap=True)
    console.print(f"{out}/sources.json, sources.png", highlight=False, soft_wrap=True)
    return 0


def _rows(names: Sequence[str], dataset: Dataset, folder: Path) -> list[Row]:
    forms: list[_Form] = [(name, name, name, {}) for name in names]
    if "own" in names:
        workers = min(_PROCESSES, cores())
        title = f"own, {amount(workers, 'process', 'processes')}"
        forms.append(("own_workers", title, "own", {"workers": workers}))
    rows = []
    with progress_bar() as progress:
        bar = progress.add_task("", total=len(forms))
        for name, title, source, settings in forms:
            progress.update(bar, description=f"writing for {title}")
            try:
                loaded = load_as(source, dataset, folder / name, cores(), **settings)
            except UserError as error:
                rows.append(Row(name, title, recipe_stream, partial(_obstacle, str(error).rstrip("."))))
            else:
                read_all(loaded.train.files)
                rows.append(Row(name, title, partial(_stream, loaded.train.files)))
                if name == "folder":  # a list names files
                    dataset = loaded
            progress.advance(bar)
    return rows


def _obstacle(reason: str, _: Setup) -> str:
    return reason


def _stream(files: Sequence[Picture], setup: Setup) -> Stream:
    return recipe_stream(replace(setup, files=whole_batches(files, setup.batch_size)))


def _plain(results: Sequence[Result], settings: Mapping[str, Any]) -> dict[str, Any]:
    rows = [
        {
            "name": result.name,
            "left_out": result.left_out or None,
            "of_folder": ratio(result, results[0]),
            "cpu_ms": result.cpu_ms if result.timings else None,
            "rounds": [vars(timing) for timing in result.timings],
        }
        for result in results
    ]
    return {**settings, "rows": rows}


def _write(out: Path, results: Sequence[Result], settings: Mapping[str, Any]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "sources.json", _plain(results, settings))
    save_figure(draw_bars(results, _headline(settings), partial(_note, results[0])), out / "sources.png", DPI)


def _note(folder: Result, result: Result) -> str:
    share = ratio(result, folder)
    return f"{share:.2f} of folder" if share and result is not folder else ""


def _headline(settings: Mapping[str, Any]) -> str:
    where = settings["hardware"]["gpu"] or f"{settings['hardware']['cores']} CPU cores"
    photos = settings["photos"]
    return (
        f"sources on {where}: {photos['count']:,} pictures of {photos['mean_bytes'] / 1000:.0f} kB, "
        f"{settings['size']} px, batch {settings['batch_size']}, "
        f"{amount(settings['rounds'], 'round')}"
    )


def _table(results: Sequence[Result], settings: Mapping[str, Any]) -> Table:
    left_out = "\n".join(f"left out: {result.title} ({result.left_out})" for result in results if result.left_out)
    table = Table(
        box=SIMPLE_HEAD,
        pad_edge=False,
        title=_headline(settings),
        title_justify="left",
        caption=left_out or None,
        caption_justify="left",
    )
    # The names give way where it is narrow: a number that is cut is none.
    table.add_column("", overflow="fold", min_width=8)
    for column in ("img/s", "min..max", "of folder", "CPU ms"):
        table.add_column(column, justify="right", no_wrap=True)
    for result in results:
        if speeds := result.speeds:
            share = ratio(result, results[0])
            spread = f"{min(speeds):,.0f}..{max(speeds):,.0f}"
            shares = "" if share is None else f"{share:.2f}"
            table.add_row(result.title, f"{median(speeds):,.0f}", spread, shares, f"{result.cpu_ms:.2f}")
    return table


def _parser() -> Parser:
    description = "Measure the loader on the same pictures from each source, by turns."
    parser = Parser("augment.bench.sources", description, _EXAMPLES)
    parser.add_argument("--batch-size", type=positive_count, default=256, metavar="N", help="pictures in a batch (256)")
    parser.add_argument("--rounds", type=positive_count, default=5, metavar="N", help="how often each source runs (5)")
    parser.add_argument("--seconds", type=positive_seconds, default=3.0, metavar="S", help="a round, at least (3)")
    parser.add_argument(
        "--threads", type=positive_count, default=min(16, cores()), metavar="N", help="of DALI (one a core, at most 16)"
    )
    parser.add_argument("--half", action="store_true", help="float16 in place of float32 images")
    parser.add_argument("--only", type=one_of(*SOURCES), metavar="NAME", help="this source and folder")
    parser.add_argument("--dir", type=Path, metavar="DIR", help="where a temporary folder for the pictures is made")
    parser.add_argument("--out", type=output, metavar="DIR", help="for sources.json and sources.png")
    return parser


if __name__ == "__main__":
    sys.exit(main())
