"""The files of a label audit: labels.csv with all samples, and labels.json with the most suspicious samples."""

import csv
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO

import numpy as np
from numpy.typing import NDArray

from augment.data.dataset import ImageRef
from augment.data.images import name_of
from augment.support.background import in_threads
from augment.support.formatting import table_cell
from trainer.figures.images import THREADS, thumbnail
from trainer.tasks.display import Finding
from trainer.tasks.label_errors import Estimate, confident, estimate, why_unknown

TABLE_FILE, REPORT_FILE, PAGE_FILE = "labels.csv", "labels.json", "labels.html"

_PAIRS = 20  # most pairs of a given and a suggested label

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Suspect:
    """A sample whose label may be wrong."""

    path: str
    given: str
    suggested: str
    score: float
    probability: float  # of a wrong label, NaN if unknown
    uri: str = ""  # the thumbnail as a data URI. Empty: the file cannot be read

    def __post_init__(self) -> None:
        # Loading an image from a server would reveal the reader of the page to that server.
        if not (self.uri == "" or self.uri.startswith("data:image/jpeg;base64,")):
            raise ValueError("an image is not an embedded JPEG")


@dataclass(frozen=True)
class LabelReport:
    """The content of labels.json."""

    estimates: tuple[Estimate, ...]
    classes: tuple[str, ...]
    several: bool  # whether images have several labels, separated by semicolons
    pairs: tuple[tuple[str, str, int], ...]  # given label, suggested label, and number of samples, most frequent first
    suspects: tuple[Suspect, ...]  # the most suspicious samples, the worst first

    @property
    def sentences(self) -> list[str]:
        """The estimates and the most frequent errors, as sentences."""
        most = ", ".join(f"{suggested} labeled as {given} ({count:,})" for given, suggested, count in self.pairs[:3])
        return [*(one.sentence for one in self.estimates), *([f"Most often: {most}."] if most else [])]

    @property
    def findings(self) -> list[Finding]:
        """The estimates whose interval does not include 0, as warnings for the report."""
        return [Finding(one.sentence, warning=True) for one in self.estimates if one.low > 0]


@dataclass(frozen=True)
class Findings:
    """The findings of an audit. Arrays and lists have one entry per sample, (N,)."""

    estimates: tuple[Estimate, ...]
    score: Array  # NaN for samples that were not trained on
    probability: Array  # NaN if unknown
    given: list[str]
    suggested: list[str]
    pairs: Counter[tuple[str, str]]

    def order(self) -> list[int]:
        """Return the indices of the samples that were trained on, the most suspicious first."""
        order = np.lexsort((self.score, -np.nan_to_num(self.probability)))
        return [int(index) for index in order if not np.isnan(self.score[index])]

    def suspect(self, index: int, file: ImageRef, uri: str = "") -> Suspect:
        score, probability = float(self.score[index]), float(self.probability[index])
        return Suspect(name_of(file), self.given[index], self.suggested[index], score, probability, uri)

    def report(self, files: Sequence[ImageRef], names: Sequence[str], most: int, *, several: bool) -> LabelReport:
        """Return the content of labels.json, with at most `most` suspicious samples."""
        worst = self.order()[:most]
        with in_threads(thumbnail, [files[i] for i in worst], THREADS) as drawn:
            suspects = tuple(self.suspect(i, files[i], uri) for i, uri in zip(worst, drawn, strict=True))
        pairs = tuple((*pair, count) for pair, count in self.pairs.most_common(_PAIRS))
        return LabelReport(self.estimates, tuple(names), several, pairs, suspects)

    def as_csv(self, files: Sequence[ImageRef]) -> str:
        text = StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(("path", "given_label", "suggested_label", "score", "probability"))
        for index in self.order():
            one = self.suspect(index, files[index])
            known = "" if math.isnan(one.probability) else f"{one.probability:.4f}"
            writer.writerow([*map(table_cell, (one.path, one.given, one.suggested)), f"{one.score:.4f}", known])
        return text.getvalue()


def audit_classes(table: Array, targets: Sequence[int], names: Sequence[str], epochs: int) -> Findings:
    """Return the findings about classes. `table` is (N, 2 + K), see `trainer.callbacks.label_audit.LabelAudit`."""
    seen, (score, probability) = table[:, 1] > 0, np.full((2, len(table)), math.nan)
    given, means = np.array(targets)[seen], table[seen, 2:] / table[seen, 1:2]
    score[seen] = table[seen, 0] / table[seen, 1]
    found = Estimate("labels", len(given), unknown=why_unknown(len(given), epochs))
    if not found.unknown:
        found, probability[seen] = estimate(score[seen], given, confident(means, given))
    others = table[:, 2:].copy()
    others[np.arange(len(others)), targets] = -1
    labels, suggested = ([names[int(one)] for one in column] for column in (targets, others.argmax(axis=1)))
    pairs = Counter((labels[i], suggested[i]) for i in np.flatnonzero(probability > 0.5).tolist())
    return Findings((found,), score, probability, labels, suggested, pairs)


def audit_labels(table: Array, targets: Sequence[Sequence[float]], names: Sequence[str], epochs: int) -> Findings:
    """Return the findings about several labels per image. `table` is (N, K, 2), see `LabelAudit`.

    Present and absent labels have different margins, so each kind has its own estimate. A sample is as suspicious as
    its worst label.
    """
    has, seen = np.array(targets) > 0.5, table[:, :, 1] > 0
    scores = np.divide(table[:, :, 0], table[:, :, 1], out=np.full(seen.shape, math.nan), where=seen)
    present = 1 / (1 + np.exp(-np.where(has, scores, -scores)[seen]))  # mean probability of the label
    sure = np.full(seen.shape, -1)
    sure[seen] = confident(np.stack([1 - present, present], axis=1), has[seen].astype(np.int64))
    probability, found = np.full(seen.shape, math.nan), []
    for what, of in (("labels", has & seen), ("missing labels", ~has & seen)):
        one = Estimate(what, int(of.sum()), unknown=why_unknown(int(of.sum()), epochs))
        if not one.unknown:
            one, probability[of] = estimate(scores[of], has[of].astype(np.int64), sure[of], what)
        found.append(one)
    known = not np.isnan(probability).all()
    worst = (np.nan_to_num(-probability) if known else np.nan_to_num(scores, nan=math.inf)).argmin(axis=1)
    flipped = np.nan_to_num(probability) > 0.5
    rows = np.arange(len(worst))
    flipped[rows, worst] = True
    given, suggested = ([_joined(row, names) for row in which] for which in (has, has ^ flipped))
    return Findings(tuple(found), scores[rows, worst], probability[rows, worst], given, suggested, Counter())


def _joined(row: NDArray[np.bool_], names: Sequence[str]) -> str:
    return "; ".join(names[k] for k in np.flatnonzero(row).tolist())
