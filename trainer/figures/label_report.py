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
from trainer.tasks.label_errors import Estimate, TrainingResult, confident_classes, estimate, why_unknown

TABLE_FILE, REPORT_FILE, PAGE_FILE = "labels.csv", "labels.json", "labels.html"

_MAX_PAIRS = 20  # maximum number of pairs of a given and a suggested label

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Suspect:
    """A sample whose label may be wrong."""

    path: str
    given: str
    suggested: str
    score: float
    probability: float  # probability that the label is wrong, or NaN if unknown
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
    # Frequent errors, the most frequent first: given label, suggested label, and number of samples (at least 2).
    pairs: tuple[tuple[str, str, int], ...]
    suspects: tuple[Suspect, ...]  # the most suspicious samples, the worst first

    @property
    def sentences(self) -> list[str]:
        """The estimates and the most frequent errors, as sentences."""
        sentences = [estimate.sentence for estimate in self.estimates]
        most = ", ".join(f"{suggested} labeled as {given} ({count:,})" for given, suggested, count in self.pairs[:3])
        return [*sentences, f"Most often: {most}."] if most else sentences

    @property
    def findings(self) -> list[Finding]:
        """The estimates whose interval does not include 0, as warnings for the report."""
        return [Finding(estimate.sentence, warning=True) for estimate in self.estimates if estimate.certain]


@dataclass(frozen=True)
class AuditResult:
    """The result of an audit. Arrays and lists have one entry per sample, (N,)."""

    estimates: tuple[Estimate, ...]
    score: Array  # NaN for samples that were not trained on
    probability: Array  # NaN if unknown
    certain: NDArray[np.bool_]  # whether some labels of the same kind are wrong, see `Estimate`
    given: list[str]
    suggested: list[str]
    pairs: Counter[tuple[str, str]]

    def order(self) -> list[int]:
        """Return the indices of the samples that were trained on, the most suspicious first."""
        order = np.lexsort((self.score, -np.nan_to_num(self.probability)))
        return [int(index) for index in order if not np.isnan(self.score[index])]

    def suspect(self, index: int, file: ImageRef, uri: str) -> Suspect:
        # Beside an estimate that all labels may be right, a high probability would mislead.
        probability = float(self.probability[index]) if self.certain[index] else math.nan
        return Suspect(
            name_of(file), self.given[index], self.suggested[index], float(self.score[index]), probability, uri
        )

    def report(self, files: Sequence[ImageRef], names: Sequence[str], most: int, *, several: bool) -> LabelReport:
        """Return the content of labels.json, with at most `most` suspicious samples."""
        worst = self.order()[:most]
        with in_threads(thumbnail, [files[i] for i in worst], THREADS) as drawn:
            suspects = tuple(self.suspect(i, files[i], uri) for i, uri in zip(worst, drawn, strict=True))
        pairs = tuple((*pair, count) for pair, count in self.pairs.most_common(_MAX_PAIRS) if count > 1)
        return LabelReport(self.estimates, tuple(names), several, pairs, suspects)

    def as_csv(self, files: Sequence[ImageRef]) -> str:
        text = StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(("path", "given_label", "suggested_label", "score", "probability"))
        for index in self.order():
            texts = map(table_cell, (name_of(files[index]), self.given[index], self.suggested[index]))
            probability = "" if math.isnan(self.probability[index]) else f"{self.probability[index]:.4f}"
            writer.writerow([*texts, f"{self.score[index]:.4f}", probability])
        return text.getvalue()


def audit_classes(table: Array, targets: Sequence[int], names: Sequence[str], training: TrainingResult) -> AuditResult:
    """Audit images with one class each. `table` is (N, 2 + K), see `trainer.callbacks.label_audit.LabelAudit`."""
    total = table[:, 2:].sum(axis=1, keepdims=True)
    seen = (table[:, 1] > 0) & (total[:, 0] > 0)
    given = np.array(targets)[seen]
    score, probability = np.full((2, len(table)), math.nan)
    score[seen] = table[seen, 0] / table[seen, 1]
    wrong_labels = Estimate("labels", len(given), unknown=why_unknown(len(given), training))
    if not wrong_labels.unknown:
        sure = confident_classes(table[seen, 2:] / total[seen])
        wrong_labels, probability[seen] = estimate(score[seen], given, sure, own_errors=training.own_errors)
    # The suggested label is the most probable one of the other classes.
    others = table[:, 2:].copy()
    others[np.arange(len(others)), targets] = -1
    labels = [names[int(target)] for target in targets]
    suggested = [names[number] for number in others.argmax(axis=1).tolist()]
    certain = np.full(len(table), wrong_labels.certain)
    pairs = Counter((labels[i], suggested[i]) for i in np.flatnonzero(probability > 0.5).tolist())
    return AuditResult((wrong_labels,), score, probability, certain, labels, suggested, pairs)


def audit_labels(
    table: Array, targets: Sequence[Sequence[float]], names: Sequence[str], training: TrainingResult
) -> AuditResult:
    """Audit images with several labels each. `table` is (N, K, 2), see `LabelAudit`.

    Present and absent labels have different margins, so each kind has its own estimate. A sample is as suspicious as
    its worst label.
    """
    is_present, seen = np.array(targets) > 0.5, table[:, :, 1] > 0
    scores = np.divide(table[:, :, 0], table[:, :, 1], out=np.full(seen.shape, math.nan), where=seen)
    present = 1 / (1 + np.exp(-np.where(is_present, scores, -scores)[seen]))  # mean probability of the label
    sure = np.full(seen.shape, -1)
    sure[seen] = confident_classes(np.stack([1 - present, present], axis=1))
    probability = np.full(seen.shape, math.nan)
    estimates = []
    for what, selected in (("labels", is_present & seen), ("missing labels", ~is_present & seen)):
        count = int(selected.sum())
        wrong_labels = Estimate(what, count, unknown=why_unknown(count, training))
        if not wrong_labels.unknown:
            labels = is_present[selected].astype(np.int64)
            wrong_labels, probability[selected] = estimate(scores[selected], labels, sure[selected], what)
        estimates.append(wrong_labels)
    if np.isnan(probability).all():
        worst = np.nan_to_num(scores, nan=math.inf).argmin(axis=1)
    else:
        worst = np.nan_to_num(-probability).argmin(axis=1)
    flipped = np.nan_to_num(probability) > 0.5
    rows = np.arange(len(worst))
    flipped[rows, worst] = True
    given = [_joined(row, names) for row in is_present]
    suggested = [_joined(row, names) for row in is_present ^ flipped]
    certain = np.where(is_present[rows, worst], *(one.certain for one in estimates))
    found = scores[rows, worst], probability[rows, worst], certain
    return AuditResult(tuple(estimates), *found, given, suggested, Counter())


def _joined(row: NDArray[np.bool_], names: Sequence[str]) -> str:
    return "; ".join(names[k] for k in np.flatnonzero(row).tolist())
