"""Multilabel classification: each image has any number of labels."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from augment.data.targets.labels import LABELS
from augment.support.lazy import F, Tensor, torch
from augment.support.text import amount, percent, plural
from trainer.tasks.display import BarChart, Block, Finding, WrongSample
from trainer.tasks.loss import LabelLoss
from trainer.tasks.metric import OutputSamples
from trainer.tasks.metrics.labels import average_precisions, best_threshold
from trainer.tasks.registry import register
from trainer.tasks.task import Task


@register
class Multilabel(Task[OutputSamples]):
    """Any number of labels for each image, also none."""

    name, kind = "multilabel", LABELS
    unit, units = "label", "labels"
    monitor, score, score_title, unit_score = "val_map", "map", "Mean average precision", "average_precision"
    loss_type = LabelLoss
    loss_settings = ("loss", "loss_options", "label_smoothing")
    threshold = 0.5
    figure_file = "labels.png"

    def average(self, views: Sequence[tuple[float, Tensor]]) -> Tensor:
        """Return the logits of the mean probabilities, from logarithms alone, so that none is rounded to 0 or 1."""
        yes, no = (
            torch.stack([math.log(weight) + F.logsigmoid(sign * logit) for weight, logit in views]).logsumexp(dim=0)
            for sign in (1, -1)
        )
        return yes - no

    def activate(self, outputs: Tensor) -> Tensor:
        """Return the probability of each label."""
        return outputs.sigmoid()

    def per_class(self, samples: OutputSamples, names: Sequence[str]) -> dict[str, dict[str, float]]:
        """Return average precision, best threshold with its F1, and images of each label."""
        # In double precision, where no two probabilities near 1 become equal.
        scores, having = samples.output.double().sigmoid(), samples.target > 0.5
        labels, precisions = {}, average_precisions(scores, having)
        for name, precision, score, has in zip(names, precisions, scores.unbind(1), having.unbind(1), strict=True):
            threshold, f1 = best_threshold(score, has)
            images = int(has.sum())
            labels[name] = {"average_precision": precision, "threshold": threshold, "f1": f1, "images": images}
        return labels

    def figure(self, samples: OutputSamples, names: Sequence[str]) -> BarChart:
        """Return the average precision of each label."""
        return self.bar_chart(self.per_class(samples, names), "images", len(names))

    def section(self, samples: OutputSamples, names: Sequence[str]) -> tuple[Block, ...]:
        """Return the average precision of each label, with its best threshold."""
        return self.bars(
            self.per_class(samples, names),
            "Average precision of each label in the best epoch, the worst first",
            ("average precision", "images", "threshold", "best F1"),
            lambda found: (str(found["images"]), f"{found['threshold']:.3f}", percent(found["f1"])),
            "The threshold is the probability at which predicting the label gives the highest F1 score; it was chosen "
            "on these validation images.",
        )

    def findings(self, samples: OutputSamples, names: Sequence[str]) -> Iterator[Finding]:
        """Yield the worst label, and how many labels no image has."""
        labels = self.worst_first(per_class := self.per_class(samples, names))
        yield from self.worst(per_class, "average precision")
        absent = len(names) - len(labels)
        if labels and absent:
            verbs = plural(absent, "is on no validation image and does", "are on no validation image and do")
            yield Finding(f"{absent} of {amount(len(names), 'label')} {verbs} not count.", warning=True)

    def mistakes(self, samples: OutputSamples, names: Sequence[str]) -> Iterator[WrongSample]:
        """Yield the images with a label that the model is wrong about, the most confident first."""
        having = samples.target > 0.5
        confidence, labels = (self.activate(samples.output) - having.float()).abs().max(dim=1)
        for i in confidence.argsort(descending=True, stable=True).tolist():
            if confidence[i] <= 0.5:
                return
            label, had = int(labels[i]), having[i].tolist()
            true = ", ".join(name for name, has in zip(names, had, strict=True) if has) or "none"
            yield WrongSample(i, true, f"no {names[label]}" if had[label] else names[label], float(confidence[i]))
