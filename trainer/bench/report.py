"""What the benchmark of training found: a table, a JSON file, a bar chart and a sentence."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, cast

from augment.bench.report import DPI, Result, crowd, draw_bars, ratio
from augment.figures import save_figure
from augment.wording import amount
from trainer.bench.verdict import Facts, fastest, verdict
from trainer.bench.windows import Window

# Against which row each is held.
_OF_SYNTHETIC = {"fed": "synthetic"}
_OF_BARE = {"synthetic": "bare_synthetic", "fed": "bare"}


@dataclass(frozen=True)
class Report:
    """A whole benchmark.

    Attributes:
        results: of all rows, whose timings are windows; among them loader, synthetic and fed.
        settings: what was set and what it ran on, plain values.
        placements: names of the rows that are fed from placements to be compared, with their overrides.
    """

    results: tuple[Result, ...]
    settings: Mapping[str, Any]
    placements: Mapping[str, str]

    def find(self, name: str) -> Result:
        """Return the result of a row."""
        return next(result for result in self.results if result.name == name)

    @property
    def facts(self) -> Facts:
        """What the sentence is made of."""
        loader, synthetic, fed = (self.find(name) for name in ("loader", "synthetic", "fed"))
        share, fit, aug = ratio(fed, synthetic), self.settings["fit"], self.settings["aug"]
        assert share is not None
        return Facts(
            median(loader.speeds),
            median(synthetic.speeds),
            median(fed.speeds),
            share,
            median(w.issue * w.batches / w.seconds for w in _windows(synthetic)) if self._on_gpu else None,
            fit["graph"],
            fit["precision"],
            aug["decode"],
            aug["cache"] != "off",
        )

    @property
    def sentences(self) -> str:
        """What it means, and a warning if the machine was not left alone."""
        speeds = {of: median(self.find(name).speeds) for name, of in self.placements.items() if self.find(name).timings}
        found = (verdict(self.facts), fastest(speeds), crowd(self.results))
        return "\n".join(sentence for sentence in found if sentence)

    @property
    def headline(self) -> str:
        """What was measured, and on what."""
        s, gpu = self.settings, self.settings["hardware"]["gpu"]
        model = s["model"].get("name", s["model"]["kind"])
        what = f"{model}, {s['aug']['size']} px, batch {s['fit']['batch_size']}, {s['fit']['precision']}"
        turns = f"{amount(s['rounds'], 'round')} of {s['seconds']:g} s a row"
        return f"{what} on {gpu or str(s['hardware']['cores']) + ' CPU cores'}: {turns}"

    def table(self) -> str:
        """Return the table, in Markdown and aligned."""
        heads = ["", "img/s", "min..max", "of synthetic", "of bare", "in loader", "ms a step"]
        rows = [self._cells(self._plain(result)) for result in self.results if result.timings]
        lines = [[*heads, *(["ms to start it"] if self._on_gpu else [])], *rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
        lines.insert(1, ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])])
        padded = ([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])] for line in lines)
        return "\n".join(f"| {' | '.join(cells)} |" for cells in padded)

    def notes(self) -> list[str]:
        """Return what does not fit into the table."""
        notes = [f"left out: {result.title} ({result.left_out})" for result in self.results if result.left_out]
        if memory := self.settings["gpu_memory_mib"]:
            notes.append(
                f"GPU memory: {memory['peak']:,} MiB at most of PyTorch's, {memory['used']:,} of {memory['total']:,} "
                "MiB in use with everything else"
            )
        return notes

    def plain(self) -> dict[str, Any]:
        """Return everything as plain values."""
        found = {"verdict": verdict(self.facts), "facts": vars(self.facts)}
        return {**self.settings, "rows": [self._plain(result) for result in self.results], **found}

    def figure(self, path: Path) -> None:
        """Write the bar chart."""

        def note(result: Result) -> str:
            row = self._plain(result)
            for key, text in (("of_synthetic", "of synthetic"), ("of_bare", "of bare")):
                if row[key] is not None:
                    return f"{row[key]:.3f} {text}"
            return ""

        save_figure(draw_bars(self.results, self.headline, note, beyond=("loader",)), path, DPI)

    @property
    def _on_gpu(self) -> bool:
        return bool(self.settings["hardware"]["gpu"])

    def _plain(self, result: Result) -> dict[str, Any]:
        named: dict[str, Any] = {"name": result.name, "title": result.title, "left_out": result.left_out or None}
        if not result.timings:
            return named
        speeds, windows = result.speeds, _windows(result)
        synthetic = "synthetic" if result.name in self.placements else _OF_SYNTHETIC.get(result.name)
        return named | {
            "images_per_second": median(speeds),
            "lowest": min(speeds),
            "highest": max(speeds),
            "of_synthetic": self._of(result, synthetic),
            "of_bare": self._of(result, _OF_BARE.get(result.name)),
            "waiting": median(w.waited / w.seconds for w in windows),
            "step_ms": median(1000 * w.seconds / w.batches for w in windows),
            "issue_ms": median(1000 * w.issue for w in windows) if self._on_gpu else None,
            "cpu_cores": result.cores,
            "rounds": [vars(window) for window in windows],
        }

    def _of(self, result: Result, other: str | None) -> float | None:
        return None if other is None else ratio(result, self.find(other))

    def _cells(self, row: Mapping[str, Any]) -> list[str]:
        shares = ["" if row[key] is None else f"{row[key]:.3f}" for key in ("of_synthetic", "of_bare")]
        spread = f"{row['lowest']:,.0f}..{row['highest']:,.0f}"
        cells = [row["title"], f"{row['images_per_second']:,.0f}", spread, *shares]
        cells += [f"{100 * row['waiting']:.1f} %", f"{row['step_ms']:.2f}"]
        return [*cells, *([f"{row['issue_ms']:.2f}"] if self._on_gpu else [])]


def _windows(result: Result) -> tuple[Window, ...]:
    return cast(tuple[Window, ...], result.timings)
