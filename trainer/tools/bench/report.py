"""What the benchmark of training found: its columns, its figures and its verdict."""

from collections.abc import Callable, Mapping
from statistics import median
from typing import Any, cast

from augment.cli.benchmark import BenchReport, Column
from augment.support.text import amount
from augment.support.timing import Result, ratio
from trainer.tools.bench.verdict import Facts, fastest, verdict
from trainer.tools.bench.windows import Window

# The row that each is compared with; placements are compared with synthetic, too.
_OF_SYNTHETIC = {"fed": "synthetic"}
_OF_BARE = {"synthetic": "bare_synthetic", "fed": "bare"}


def make_report(results: tuple[Result, ...], settings: Mapping[str, Any], placements: tuple[str, ...]) -> BenchReport:
    """Return the report of a benchmark.

    Args:
        results: results of all rows, whose timings are windows; among them loader, synthetic and fed.
        settings: configuration, hardware and versions as plain values.
        placements: names of the rows of compared placements.
    """
    measured = {result.name: result for result in results if result.timings}
    gpu, memory = settings["hardware"]["gpu"], settings["gpu_memory_mib"]
    model, fit, aug = settings["model"], settings["fit"], settings["aug"]
    headline = (
        f"{model.get('name', model['kind'])}, {aug['size']} px, batch {fit['batch_size']}, {fit['precision']} on "
        f"{gpu or str(settings['hardware']['cores']) + ' CPU cores'}: "
        f"{amount(settings['rounds'], 'round')} of {settings['seconds']:g} s a row"
    )
    of_synthetic = _OF_SYNTHETIC | dict.fromkeys(placements, "synthetic")
    columns = (
        Column("of_synthetic", lambda r: ratio(r, measured.get(of_synthetic.get(r.name, ""))), "of\nsynthetic", ".3f"),
        Column("of_bare", lambda r: ratio(r, measured.get(_OF_BARE.get(r.name, ""))), "of\nbare", ".3f"),
        Column("waiting", lambda r: _middle(r, lambda w: w.waited / w.seconds), "in\nloader", ".1%"),
        Column("step_ms", lambda r: _middle(r, lambda w: 1000 * w.seconds / w.batches), "ms a\nstep"),
        Column("issue_ms", lambda r: _middle(r, lambda w: 1000 * w.issue) if gpu else None, "ms to\nstart it"),
        Column("cpu_cores", lambda r: r.cores),
    )
    loader, synthetic, fed = (measured[name] for name in ("loader", "synthetic", "fed"))
    share = ratio(fed, synthetic)
    assert share is not None
    issue = _middle(synthetic, lambda w: w.issue * w.batches / w.seconds) if gpu else None
    facts = Facts(
        median(loader.speeds),
        median(synthetic.speeds),
        median(fed.speeds),
        share,
        issue,
        fit["graph"],
        fit["precision"],
        aug["decode"],
        aug["cache"] != "off",
    )
    lines = (
        memory
        and f"GPU memory: {memory['peak']:,} MiB at most of PyTorch's, {memory['used']:,} of {memory['total']:,} MiB "
        "in use with everything else",
        verdict(facts),
        fastest({name: median(measured[name].speeds) for name in placements if name in measured}),
    )
    found = {**settings, "verdict": verdict(facts), "facts": vars(facts)}
    return BenchReport(
        headline, results, found, columns, ("of_synthetic", "of_bare"), ("loader",), tuple(filter(None, lines))
    )


def _middle(result: Result, value: Callable[[Window], float]) -> float:
    """Return the median of a value over the windows of a row."""
    return median(map(value, cast(tuple[Window, ...], result.timings)))
