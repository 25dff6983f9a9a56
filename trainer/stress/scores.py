"""Score a trained model on validation images under one corruption at a time."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
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
from augment.pipeline.graph.decoding import Form, Placement
from augment.pipeline.graph.sample_order import Order, RankShard
from augment.pipeline.loader import Loader
from augment.recipe.plan import Plan, build_plan
from augment.support.errors import UserError, first_line
from augment.support.formatting import percent, short_number
from trainer.callbacks.progress import PassBar
from trainer.callbacks.recorder import Recorder
from trainer.loop.callback import Callback
from trainer.loop.learner import Learner
from trainer.run.best_model import Trained
from trainer.run.build import session
from trainer.run.failures import explained
from trainer.stress.corruptions import Corruption
from trainer.tasks.classify import wilson_interval

_SIDE = 96  # side of an example image, in pixels


@dataclass(frozen=True)
class Score:
    """The score of one pass."""

    value: float
    interval: tuple[float, float] | None  # 95% interval, if the score is a share of images
    wrong: frozenset[int]  # positions of images with a wrong prediction, if the task has right and wrong ones
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

    def lost(self, value: float) -> float:
        """Return how much worse a score is than the clean score."""
        return value - self.clean.value if self.smaller else self.clean.value - value

    def show(self, value: float) -> str:
        return percent(value, 1) if self.share else short_number(value)

    def change(self, value: float) -> str:
        """Return the difference from the clean score as text."""
        text = self.show(abs(value - self.clean.value))
        if text == self.show(0):
            return text
        return f"{'+' if value > self.clean.value else '-'}{text}"

    def sentences(self, most: int = 3) -> list[str]:
        """Describe the worst corruptions, each at the strength with the largest drop from the next milder one."""
        return [self._sentence(weakness) for weakness in self.weaknesses[:most]]

    def _sentence(self, weakness: Weakness) -> str:
        values = [self.clean.value, *(score.value for score in weakness.scores)]
        strength = max(range(len(weakness.scores)), key=lambda at: self.lost(values[at + 1]) - self.lost(values[at]))
        what = weakness.corruption.describe(strength)
        return f"{what}: {self.show(self.clean.value)} → {self.show(values[strength + 1])}"

    def first_to_fail(self, most: int) -> list[tuple[int, int, list[str]]]:
        """Return the images with the most wrong predictions, among those that are right without corruption.

        Each entry has the position of the image, the number of passes with a wrong prediction, and the corruptions with
        a wrong prediction at the mildest strength.
        """
        passes = [score.wrong for weakness in self.weaknesses for score in weakness.scores]
        counts = np.bincount([i for wrong in passes for i in wrong - self.clean.wrong], minlength=1)
        order = [int(i) for i in np.argsort(-counts, kind="stable")[:most] if counts[i]]
        mild = [(weakness.corruption.name, weakness.scores[0].wrong) for weakness in self.weaknesses]
        return [(i, int(counts[i]), [name for name, wrong in mild if i in wrong]) for i in order]

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
                {**asdict(found.corruption), "scores": [*map(_plain, found.scores)], "mean": found.mean}
                for found in self.weaknesses
            ],
            "left_out": self.left_out,
        }


def _plain(score: Score) -> dict[str, Any]:
    return {"value": score.value, "interval": score.interval, "wrong": len(score.wrong)}


def _cropped(trained: Trained, split: Split) -> Split:
    """Decode and crop all images once, because creating a GPU decoder for each pass would take half a second."""
    plan, usual = build_plan(trained.config.aug, "val").only(), trained.loader(split)
    order, placement = Order(usual.batch_size, 0, RankShard(0, 1), False), usual.placement
    files, targets = list[MemoryImage](), list[Any]()
    with session(trained.config), closing(Loader(plan, split, order, placement, Form(raw=True))) as loader:
        for batch in loader:
            for index, pixels in zip(batch.indices.tolist(), as_pixels(batch.images, None), strict=True):
                files.append(MemoryImage(name_of(split.files[index]), pixels))
                targets.append(split.targets[index])
    return replace(split, files=tuple(files), targets=tuple(targets), repeated=0, left_out=())


class _Example(Callback):
    """Keeps the first image of a pass as the model sees it."""

    def __init__(self) -> None:
        self.image: Image.Image | None = None

    def after_batch(self, learner: Learner) -> None:
        if self.image is None:
            assert learner.val_loader is not None
            loader, batch = learner.val_loader, learner.batch
            limits = shown_limits(loader.split.files[int(batch.indices[0])])  # the same for all corruptions
            self.image = Image.fromarray(as_pixels(batch.images[:1], loader.plan, limits)[0])
            self.image.thumbnail((_SIDE, _SIDE))


def stress_test(trained: Trained, split: Split, corruptions: Sequence[Corruption], images: int) -> StressTest:
    """Score a trained model under corruptions.

    All models get the same corrupted images. Corrupted images depend only on the original images, their order and the
    corruption.

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
    passes: list[tuple[Corruption | None, Plan]] = [(None, build_plan(aug, "val"))]
    left_out: dict[str, str] = {}
    for one in corruptions:
        try:
            passes += [(one, one.plan(aug, strength, moving_targets=moving)) for strength in range(len(one.values))]
        except UserError as error:  # the op needs RGB
            left_out[one.name] = first_line(error)
    found: dict[Corruption | None, list[Score]] = {}
    for (corruption, _), score in zip(passes, _scores(trained, split, [plan for _, plan in passes]), strict=True):
        if isinstance(score, Score):
            found.setdefault(corruption, []).append(score)
        elif corruption is None:
            raise score
        else:
            left_out[corruption.name] = first_line(score)
    (clean,) = found.pop(None)
    if not found:
        why = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise UserError(f"--ops: none of these ops can be tested on this run ({why}). Name other ops.")
    display = trained.task.display(trained.classes)
    result = StressTest(
        trained.run, display.score, display.score_title, display.share, display.smaller, len(split), clean, (),
        left_out, split.files,
    )  # fmt: skip
    weaknesses = [Weakness(tested, tuple(scores)) for tested, scores in found.items() if tested is not None]
    return replace(result, weaknesses=tuple(sorted(weaknesses, key=lambda one: -result.lost(one.mean))))


def _scores(trained: Trained, split: Split, plans: Sequence[Plan]) -> Iterator[Score | UserError]:
    """Yield the score of each plan, or an error if the plan does not support the targets."""
    config = replace(trained.config, seed=0)  # the same corruptions for all models
    trained = replace(trained, config=config)
    placement = trained.loader(split, plans[0]).placement
    with session(config), explained(config, training=False), PassBar("stress test", len(plans)) as bar:
        following, validate = _prepared(trained, split, plans[0], placement), None
        for number in range(len(plans)):
            loader = following
            if number + 1 < len(plans):  # build the next pipeline while this one runs
                following = _prepared(trained, split, plans[number + 1], placement)
            if isinstance(loader, Loader):
                validate = validate or trained.validator(loader, graph=config.fit.graph)
                yield _score(trained, loader, validate)
            else:
                yield loader
            bar.advance()


def _prepared(trained: Trained, split: Split, plan: Plan, placement: Placement) -> Loader | UserError:
    """Return a loader, which builds its pipeline in the background, or an error. See `_scores`."""
    try:
        loader = trained.loader(split, plan, placement)
    except UserError as error:
        return error
    loader.prepare()
    return loader


def _score(trained: Trained, loader: Loader, validate: Callable[..., None]) -> Score:
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
