"""Score a trained model on validation images under one corruption at a time."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from PIL import Image

from augment.data.dataset import Split
from augment.data.images import MemoryImage, name_of, shown_limits
from augment.data.selection import take_some
from augment.data.targets.spatial import SpatialKind
from augment.pipeline.batch import as_pixels
from augment.pipeline.graph.decoding import OutputFormat, Placement
from augment.pipeline.graph.sample_order import Order, RankShard
from augment.pipeline.loader import Loader
from augment.recipe.plan import Plan, build_plan
from augment.recipe.steps import Aug
from augment.support.errors import UserError, first_line
from augment.support.formatting import percent, short_number
from trainer.callbacks.progress import PassBar
from trainer.callbacks.recorder import Recorder
from trainer.loop.callback import Callback
from trainer.loop.learner import Learner
from trainer.run.best_model import LoadedModel
from trainer.run.build import session
from trainer.run.failures import explained
from trainer.stress.corruptions import Corruption
from trainer.tasks.classify import wilson_interval

NO_DROP = "No corruption makes the score worse on average."

_SIDE = 96  # side of an example image, in pixels


@dataclass(frozen=True)
class Score:
    """The score of one pass."""

    value: float
    interval: tuple[float, float] | None  # 95% interval, if the score is a share of images
    wrong: frozenset[int]  # positions of the images with a wrong prediction. Empty if the score is not a share
    example: Image.Image | None  # the first image as the model sees it


@dataclass(frozen=True)
class Weakness:
    """The scores under a corruption, from the mildest to the severest strength."""

    corruption: Corruption
    scores: tuple[Score, ...]

    @property
    def mean(self) -> float:
        return fmean(score.value for score in self.scores)


@dataclass(frozen=True)
class StressTest:
    """The result of a stress test.

    Attributes:
        run: folder of the run.
        score: name of the score, such as "accuracy".
        title: title of the score.
        share: whether the score lies in [0, 1].
        smaller: whether smaller scores are better.
        images: number of images.
        clean: the score without corruption.
        weaknesses: the corruptions, the most harmful first.
        left_out: why a corruption could not be tested, by name.
        files: the images.
    """

    run: Path
    score: str
    title: str
    share: bool
    smaller: bool
    images: int
    clean: Score
    weaknesses: tuple[Weakness, ...]
    left_out: dict[str, str]
    files: Sequence[Any]

    @property
    def mean(self) -> float:
        """The mean over all corruptions. Each corruption contributes the mean over its strengths."""
        return fmean(weakness.mean for weakness in self.weaknesses)

    def drop(self, value: float) -> float:
        """Return how much worse a score is than the clean score."""
        return value - self.clean.value if self.smaller else self.clean.value - value

    def show(self, value: float) -> str:
        return percent(value, 1) if self.share else short_number(value)

    def change(self, value: float) -> str:
        """Return the difference from the clean score as text."""

        def size(number: float) -> str:
            return f"{100 * number:.1f} points" if self.share else short_number(number)

        sign = "+" if value > self.clean.value else "-"
        text = size(abs(value - self.clean.value))
        return text if text == size(0) else f"{sign}{text}"

    def harms(self, weakness: Weakness) -> bool:
        """Return whether a corruption makes the score worse, on average over its strengths."""
        return self.drop(weakness.mean) > 1e-9

    def sentences(self, most: int = 3) -> list[str]:
        """Describe the worst corruptions, each at the strength with the largest drop from the next milder one.

        Corruptions that do not make the score worse are left out.
        """
        return [self._sentence(weakness) for weakness in self.weaknesses[:most] if self.harms(weakness)]

    def _sentence(self, weakness: Weakness) -> str:
        drops = [max(0.0, self.drop(score.value)) for score in (self.clean, *weakness.scores)]
        steps = [after - before for before, after in pairwise(drops)]
        strength = steps.index(max(steps))
        score = weakness.scores[strength].value
        return f"{weakness.corruption.describe(strength)}: {self.show(self.clean.value)} → {self.show(score)}"

    def recipe(self, weakness: Weakness) -> str:
        """Return overrides that train with the strengths that worsen the score. Both directions of an op share a range.

        A range extends to the mildest strength that causes at least half of the largest drop. It always contains the
        milder half of the strengths.
        """
        tested, ends = weakness.corruption, list[float]()
        if not tested.setting:
            return f"aug.train.{tested.op}.p=0.5"
        for other in self.weaknesses:
            if other.corruption.op == tested.op and self.harms(other):
                drops = [self.drop(score.value) for score in other.scores]
                ends += other.corruption.ends([2 * drop >= max(drops) for drop in drops].index(True))
        key = f"aug.train.{tested.op}"
        return f"{key}.p=0.5 '{key}.{tested.setting}=[{min(ends):.3g},{max(ends):.3g}]'"

    def first_to_fail(self, most: int) -> list[tuple[int, int, list[str]]]:
        """Return the images with the most wrong predictions, among the images that are right without corruption.

        Each entry has the image's position, the number of passes with a wrong prediction, and the corruptions under
        which the image fails at the mildest strength.
        """
        failures: dict[int, int] = {}
        for weakness in self.weaknesses:
            for score in weakness.scores:
                for position in score.wrong - self.clean.wrong:
                    failures[position] = failures.get(position, 0) + 1
        worst = sorted(failures, key=lambda position: (-failures[position], position))[:most]
        mild = [(tested.corruption.name, tested.scores[0].wrong) for tested in self.weaknesses]
        return [(at, failures[at], [name for name, wrong in mild if at in wrong]) for at in worst]

    @property
    def _digest(self) -> str:
        """A hash of the tested corruptions. Only scores with the same hash can be compared."""
        tested = sorted(repr(weakness.corruption) for weakness in self.weaknesses)
        return blake2b(repr(tested).encode(), digest_size=4).hexdigest()

    def plain(self) -> dict[str, Any]:
        return {
            "score": self.score,
            "images": self.images,
            "clean": _plain(self.clean),
            "mean": self.mean,
            "metric": [self.smaller, *((0, 1) if self.share else (None, None))],
            "tested": f"{self.images} images, corruptions {self._digest}",
            "corruptions": [
                {**asdict(weakness.corruption), "scores": [*map(_plain, weakness.scores)], "mean": weakness.mean}
                for weakness in self.weaknesses
            ],
            "left_out": self.left_out,
        }


def _plain(score: Score) -> dict[str, Any]:
    return {"value": score.value, "interval": score.interval, "wrong": len(score.wrong)}


def _cropped(trained: LoadedModel, split: Split) -> Split:
    """Decode and crop all images once, because creating a GPU decoder for each pass would take half a second."""
    crop_only = build_plan(trained.config.aug, "val").only()
    validation = trained.loader(split)
    order, placement = Order(validation.batch_size, 0, RankShard(0, 1), False), validation.placement
    files, targets = list[MemoryImage](), list[Any]()
    with session(trained.config), closing(Loader(crop_only, split, order, placement, OutputFormat(raw=True))) as loader:
        for batch in loader:
            for index, pixels in zip(batch.indices.tolist(), as_pixels(batch.images, None), strict=True):
                files.append(MemoryImage(name_of(split.files[index]), pixels))
                targets.append(split.targets[index])
    return replace(split, files=tuple(files), targets=tuple(targets), repeated=0, left_out=())


class _Example(Callback):
    """Keeps the first image of a pass as the model sees it."""

    image: Image.Image | None = None

    def after_batch(self, learner: Learner) -> None:
        if self.image is None:
            assert learner.val_loader is not None
            loader = learner.val_loader
            limits = shown_limits(loader.split.files[0])  # the same for all corruptions
            pixels = as_pixels(learner.batch.images[:1], loader.plan, limits)
            self.image = Image.fromarray(pixels[0])
            self.image.thumbnail((_SIDE, _SIDE))


def stress_test(trained: LoadedModel, split: Split, corruptions: Sequence[Corruption], images: int) -> StressTest:
    """Score a trained model under corruptions.

    Models with the same validation recipe get the same corrupted images. These depend only on the recipe, the original
    images, their order and the corruption. Noise also depends on the batch size.

    Args:
        trained: the model.
        split: the images and targets.
        corruptions: the corruptions.
        images: largest number of images. If there are more, a fixed random selection is used.

    Raises:
        UserError: the images or their targets cannot be used, or no corruption can be tested.
    """
    split = take_some(split, images, seed=0)
    moving, aug = isinstance(split.kind, SpatialKind), trained.config.aug
    if not moving and aug.pixels.is_rgb:
        split = _cropped(trained, split)
        aug = replace(aug, val=tuple(step for step in aug.val if step.op.kind != "crop"))
    passes, left_out = _passes(aug, corruptions, moving_targets=moving)
    scores: dict[Corruption | None, list[Score]] = {}
    for (corruption, _), score in zip(passes, _scores(trained, split, [plan for _, plan in passes]), strict=True):
        if isinstance(score, Score):
            scores.setdefault(corruption, []).append(score)
        elif corruption is None:
            raise score
        else:
            left_out[corruption.name] = first_line(score)
    (clean,) = scores.pop(None)
    if not scores:
        why = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise UserError(f"--ops: none of these ops can be tested on this run ({why}). Name other ops.")
    display = trained.task.display(trained.classes)
    result = StressTest(
        trained.run, display.score, display.score_title, display.share, display.smaller, len(split), clean, (),
        left_out, split.files,
    )  # fmt: skip
    weaknesses = [Weakness(key, tuple(of_strengths)) for key, of_strengths in scores.items() if key is not None]
    weaknesses.sort(key=lambda weakness: -result.drop(weakness.mean))
    return replace(result, weaknesses=tuple(weaknesses))


def _passes(
    aug: Aug, corruptions: Sequence[Corruption], *, moving_targets: bool
) -> tuple[list[tuple[Corruption | None, Plan]], dict[str, str]]:
    """Return the plans of all passes, first without corruption, and why corruptions are left out, by name."""
    passes: list[tuple[Corruption | None, Plan]] = [(None, build_plan(aug, "val"))]
    left_out: dict[str, str] = {}
    for tested in corruptions:
        strengths = range(len(tested.values))
        try:
            plans = [tested.plan(aug, strength, moving_targets=moving_targets) for strength in strengths]
        except UserError as error:  # the op needs RGB
            left_out[tested.name] = first_line(error)
        else:
            passes += [(tested, plan) for plan in plans]
    return passes, left_out


def _scores(trained: LoadedModel, split: Split, plans: Sequence[Plan]) -> Iterator[Score | UserError]:
    """Yield the score of each plan, or an error if the plan does not support the targets."""
    config = replace(trained.config, seed=0)  # the same corruptions for all models
    trained = replace(trained, config=config)
    placement = trained.loader(split, plans[0]).placement
    with session(config), explained(config, training=False), PassBar("stress test", len(plans)) as bar:
        validate = None
        next_loader = _prepared(trained, split, plans[0], placement)
        for number in range(len(plans)):
            loader = next_loader
            if number + 1 < len(plans):  # build the next pipeline while this one runs
                next_loader = _prepared(trained, split, plans[number + 1], placement)
            if isinstance(loader, Loader):
                validate = validate or trained.validator(loader, graph=config.fit.graph)
                yield _score(trained, loader, validate)
            else:
                yield loader
            bar.advance()


def _prepared(trained: LoadedModel, split: Split, plan: Plan, placement: Placement) -> Loader | UserError:
    """Return a loader, which builds its pipeline in the background, or an error. See `_scores`."""
    try:
        loader = trained.loader(split, plan, placement)
    except UserError as error:
        return error
    loader.prepare()
    return loader


def _score(trained: LoadedModel, loader: Loader, validate: Callable[..., None]) -> Score:
    recorder, example, task = Recorder(), _Example(), trained.task
    with closing(loader):
        validate(loader, recorder, example)
    assert recorder.samples is not None
    right, wrong = task.right_of(recorder.samples), frozenset[int]()
    if right is not None:
        positions = [mistake.position for mistake in task.mistakes(recorder.samples, trained.classes)]
        wrong = frozenset(np.asarray(recorder.samples.index)[positions].tolist())
    interval = None if right is None else wilson_interval(*right)
    return Score(recorder.val[f"val_{task.score}"], interval, wrong, example.image)
