"""The task detect: mAP against COCO's own code, mistakes by hand, places in stored images, what losses learn."""

import json
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from fakes import CPU
from PIL import Image
from torch import Tensor

from augment import Transform, load_recipe
from augment.data.targets.boxes import BOXES, Objects
from augment.data.targets.spatial import Rules
from augment.data.targets.visible_regions import Parts
from augment.drawing.target_overlays import color_of
from augment.support.errors import UserError
from trainer.models.registry import parse_model
from trainer.run.config.fit import parse_fit
from trainer.tasks import detect
from trainer.tasks.detect import boxes_at
from trainer.tasks.keypoints import CoordinateSamples
from trainer.tasks.meter import Meter
from trainer.tasks.object_matches import match_objects
from trainer.tasks.registry import task_named

TASK = task_named("detect")
NAMES = ("background", "cat", "dog", "bird")
Batch = tuple[Tensor, list[dict[str, Tensor]]]


def drawn_boxes(count: int, random: torch.Generator) -> Tensor:
    corner, side = 100 * torch.rand(count, 2, generator=random), 2 + 50 * torch.rand(count, 2, generator=random)
    return torch.cat([corner, corner + side], dim=1)


@pytest.fixture(scope="module")
def batches() -> list[Batch]:
    """Objects that are mostly found, among wrong ones; some are crowds or difficult, some images have none."""
    random, made = torch.Generator().manual_seed(0), []
    for size in (3, 8, 1, 20):
        outputs, targets = torch.zeros(size, 100, 6), []
        for output in outputs:
            count = int(torch.randint(0, 6, (1,), generator=random))
            boxes, labels = drawn_boxes(count, random), torch.randint(1, 3, (count,), generator=random)
            crowd, difficult = (torch.rand(count, generator=random) < 0.1 for _ in range(2))
            targets.append({"boxes": boxes, "labels": labels, "iscrowd": crowd, "difficult": difficult})
            found = torch.cat([boxes + 3 * torch.randn(count, 4, generator=random), drawn_boxes(4, random)])
            guessed = torch.cat([labels, torch.randint(1, 4, (4,), generator=random)])
            scores = 0.05 + 0.9 * torch.rand(count + 4, generator=random)
            output[: count + 4] = torch.cat([found, guessed[:, None], scores[:, None]], dim=1)
        made.append((outputs, targets))
    return made


def measured(batches: list[Batch]) -> Meter:
    meter = Meter(TASK, TASK.measured(NAMES), CPU, keep=True)
    start = 0
    for outputs, targets in batches:
        index = torch.arange(start, start := start + len(targets))
        frames = torch.eye(3, dtype=torch.float64).repeat(len(targets), 1, 1)
        meter.update(torch.tensor(0.0), outputs, targets, index, frames=frames)
    return meter


def coco_scores(batches: list[Batch], folder: Path) -> list[float]:
    """Return mAP, mAP50 and mAP75, as pycocotools computes them from files."""
    coco = pytest.importorskip("pycocotools.coco")
    from pycocotools.cocoeval import COCOeval

    truth: dict[str, list[dict[str, object]]] = {"images": [], "annotations": []}
    results = []
    pairs = [pair for outputs, targets in batches for pair in zip(outputs, targets, strict=True)]
    for image, (output, target) in enumerate(pairs, 1):
        truth["images"].append({"id": image, "width": 200, "height": 200})
        skipped = target["iscrowd"] | target["difficult"]
        for box, label, ignored in zip(target["boxes"].tolist(), target["labels"].tolist(), skipped, strict=True):
            sides = [box[0], box[1], box[2] - box[0], box[3] - box[1]]
            row = {"id": len(truth["annotations"]) + 1, "image_id": image, "category_id": label, "bbox": sides}
            truth["annotations"].append(row | {"area": sides[2] * sides[3], "iscrowd": int(ignored)})
        for left, top, right, bottom, label, score in output.tolist():
            if score:
                box = [left, top, right - left, bottom - top]
                results.append({"image_id": image, "category_id": int(label), "bbox": box, "score": score})
    truth["categories"] = [{"id": number, "name": name} for number, name in enumerate(NAMES) if number]
    for name, content in (("truth", truth), ("results", results)):
        (folder / f"{name}.json").write_text(json.dumps(content))
    with redirect_stdout(StringIO()):
        loaded = coco.COCO(str(folder / "truth.json"))
        judged = COCOeval(loaded, loaded.loadRes(str(folder / "results.json")), "bbox")
        judged.evaluate()
        judged.accumulate()
        judged.summarize()
    return [float(value) for value in judged.stats[:3]]


@pytest.fixture
def backend() -> None:
    pytest.importorskip("faster_coco_eval")


@pytest.mark.usefixtures("backend")
def test_map_is_that_of_coco(batches: list[Batch], tmp_path: Path) -> None:
    scores = measured(batches).scores()
    assert "loss" not in scores
    expected = coco_scores(batches, tmp_path)
    assert [scores[name] for name in ("map", "map50", "map75")] == pytest.approx(expected, abs=1e-6)
    assert 0.05 < expected[0] < 0.6


@pytest.mark.usefixtures("backend")
def test_map_does_not_depend_on_batches_and_ranks(batches: list[Batch]) -> None:
    whole = measured(batches)
    first, second = measured(batches[:2]), measured(batches[2:])
    parts = {"samples": second.samples, "sums": second._sums, "kept": second._joined()}
    merged = first.merged(lambda own: [own, parts])
    assert merged.scores() == whole.scores()
    chosen = [TASK.choose_thresholds(meter.kept(), NAMES) for meter in (merged, whole)]
    assert chosen[0] == chosen[1]
    images = [(outputs[i : i + 1], targets[i : i + 1]) for outputs, targets in batches for i in range(len(targets))]
    assert measured(images).scores() == whole.scores()


@pytest.mark.usefixtures("backend")
def test_scores_of_classes_have_no_background(batches: list[Batch]) -> None:
    meter = measured(batches)
    samples = meter.kept()
    assert isinstance(samples, CoordinateSamples)
    classes = TASK.per_class(samples, NAMES)
    assert list(classes) == ["cat", "dog", "bird"]
    counted = [~(t["iscrowd"] | t["difficult"]) & (t["labels"] == 1) for _, targets in batches for t in targets]
    assert classes["cat"]["objects"] == int(torch.cat(counted).sum())
    assert classes["bird"]["average_precision"] != classes["bird"]["average_precision"]  # no image has one
    known = [classes[name]["average_precision"] for name in ("cat", "dog")]
    assert np.mean(known) == pytest.approx(meter.scores()["map"])
    assert any("bird" in text or "1 of 3" in text for text, _ in TASK.findings(samples, NAMES))


def rates_by_loops(batches: list[Batch], label: int, lowest: float) -> tuple[float, float, float]:
    """Return precision, recall and F1 of a class: each image is matched again, with the objects above a score only."""
    right = wrong = missed = 0
    for output, target in (pair for outputs, targets in batches for pair in zip(outputs, targets, strict=True)):
        rows = sorted((row for row in output.tolist() if row[4] == label and row[5] >= lowest), key=lambda row: -row[5])
        ignored = target["iscrowd"] | target["difficult"]
        boxes = {False: target["boxes"][(target["labels"] == label) & ~ignored].tolist()}
        boxes[True] = target["boxes"][(target["labels"] == label) & ignored].tolist()
        for found in rows:
            best, place = 0.5, None
            for number, true in enumerate(boxes[False]):
                shared, own, other = shared_area(found, true)
                if shared / (own + other - shared) >= best:
                    best, place = shared / (own + other - shared), number
            if place is not None:
                del boxes[False][place]
                right += 1
            elif not any(shared_area(found, true)[0] >= 0.5 * shared_area(found, true)[1] for true in boxes[True]):
                wrong += 1
        missed += len(boxes[False])
    precision, recall = right / (right + wrong) if right else 0.0, right / (right + missed)
    return precision, recall, 2 * right / (2 * right + wrong + missed)


def shared_area(one: list[float], other: list[float]) -> tuple[float, float, float]:
    """Return the area that two boxes share, and their own areas."""
    sides = [min(one[2 + i], other[2 + i]) - max(one[i], other[i]) for i in range(2)]
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    return max(sides[0], 0) * max(sides[1], 0), areas[0], areas[1]


@pytest.mark.usefixtures("backend")
def test_thresholds_have_the_best_f1_score_of_each_class(batches: list[Batch]) -> None:
    samples = measured(batches).kept()
    chosen = TASK.choose_thresholds(samples, NAMES)
    assert chosen[0] == chosen[3] == 0.5, "no bird is true"
    found = TASK.per_class(samples, NAMES)
    assert np.isnan([found["bird"][name] for name in ("threshold", "precision", "recall", "f1")]).all()
    for label in (1, 2):
        scores = [row[5] for outputs, _ in batches for row in outputs.flatten(0, 1).tolist() if row[4] == label]
        best = max(rates_by_loops(batches, label, score)[2] for score in scores)
        rates = rates_by_loops(batches, label, chosen[label])
        assert [found[NAMES[label]][name] for name in ("precision", "recall", "f1")] == pytest.approx(rates)
        assert found[NAMES[label]]["f1"] == pytest.approx(best)
        assert found[NAMES[label]]["threshold"] == chosen[label]
    assert 0.1 < best < 0.9


@pytest.mark.usefixtures("backend")
def test_an_evaluation_adds_the_rates_at_the_thresholds_of_the_run(batches: list[Batch]) -> None:
    samples = measured(batches).kept()
    plain = TASK.evaluate({"val_map": 0.5}, samples, NAMES)
    scores = TASK.at_thresholds(plain, samples, NAMES, (0.5, 0.3, 0.6, 0.1))
    rates = [rates_by_loops(batches, 1, 0.3), rates_by_loops(batches, 2, 0.6)]
    means = [scores.others[key] for key in ("run_precision_macro", "run_recall_macro", "run_f1")]
    assert means == pytest.approx(np.mean(rates, axis=0)), "without birds"
    assert scores.per_class["dog"]["run"]["threshold"] == 0.6
    assert scores.per_class["dog"]["run"]["recall"] == pytest.approx(rates[1][1])
    nothing = TASK.per_class(replace(samples, output=torch.zeros_like(samples.output)), NAMES)
    assert (nothing["cat"]["recall"], nothing["cat"]["precision"]) == (0, 0)


@pytest.mark.usefixtures("backend")
def test_objects_of_equal_scores_are_found_together() -> None:
    """With one of two scores of .8, precision would be 1."""
    target = {"boxes": torch.tensor([[0.0, 0, 9, 9]]), "labels": torch.tensor([1])}
    target |= {name: torch.zeros(1).bool() for name in ("iscrowd", "difficult")}
    output = torch.tensor([[[0.0, 0, 9, 9, 1, 0.8], [20, 0, 29, 9, 1, 0.8], [40, 0, 49, 9, 1, 0.4]]])
    samples = measured([(output, [target])]).kept()
    assert TASK.choose_thresholds(samples, NAMES)[1] == pytest.approx(0.6)
    assert TASK.per_class(samples, NAMES)["cat"]["precision"] == 0.5


@pytest.mark.usefixtures("backend")
def test_scores_at_other_ious_and_of_absent_classes_are_not_minus_one() -> None:
    """Torchmetrics 1153, 2218, 2560. The only class is found with an IoU of .72, right at five of ten thresholds."""
    target = {"boxes": torch.tensor([[0.0, 0, 100, 100]]), "labels": torch.tensor([2])}
    target |= {name: torch.zeros(1).bool() for name in ("iscrowd", "difficult")}
    output = torch.tensor([[[0.0, 0, 100, 72, 2, 0.9], [0, 0, 9, 9, 3, 0.1]]])
    meter = measured([(output, [target])])
    assert meter.scores() == pytest.approx({"map": 0.5, "map50": 1, "map75": 0})
    samples = meter.kept()
    assert isinstance(samples, CoordinateSamples)
    precisions, labels = detect.average_precisions(samples.output, samples.target)
    assert precisions.mean(dim=1).tolist() == pytest.approx([1] * 5 + [0] * 5)
    assert (labels, precisions.mean().item()) == ((2,), pytest.approx(0.5))


@pytest.mark.usefixtures("backend")
def test_recalls_and_overlaps_that_are_thresholds_count_as_in_coco() -> None:
    """Torchmetrics' own thresholds of 0.6 are a little larger."""
    boxes = torch.tensor([[0.0, 0, 100, 100]]) + 100 * torch.arange(5)[:, None]
    target = {"boxes": boxes, "labels": torch.ones(5).long()}
    target |= {name: torch.zeros(5).bool() for name in ("iscrowd", "difficult")}
    found = boxes[:3] - torch.tensor([0.0, 0, 0, 40])
    output = torch.cat([found, torch.tensor([[1, 0.9]] * 3)], dim=1)[None]
    assert measured([(output, [target])]).scores()["map"] == pytest.approx(61 / 101 * 3 / 10)


@pytest.mark.usefixtures("backend")
def test_without_any_object_there_is_no_score() -> None:
    nothing = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0).long(), "iscrowd": torch.zeros(0).bool()}
    empty = [(torch.zeros(2, 100, 6), [nothing | {"difficult": torch.zeros(0).bool()}] * 2)]
    assert np.isnan(list(measured(empty).scores().values())).all()


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faster_coco_eval", None)
    with pytest.raises(UserError, match=r"faster-coco-eval.*dali-trainer\[detect\]"):
        TASK.require()


@pytest.mark.usefixtures("backend")
def test_mistakes_by_hand() -> None:
    """A cat is found twice, a dog as a cat, a bird with a low score; a crowd of birds may be found or not.

    The thresholds of the pass are 0.85 for cats and 0.2 for birds.
    """
    target = torch.tensor([[0.0, 0, 10, 10, 1, 0], [20, 0, 30, 10, 2, 0], [40, 0, 50, 10, 3, 0], [60, 0, 90, 9, 3, 1]])
    found = [[0.0, 0, 10, 9, 1, 0.9], [0, 0, 10, 10, 1, 0.8], [20, 0, 30, 10, 1, 0.95], [40, 0, 50, 10, 3, 0.4]]
    output = torch.tensor([*found, [60, 0, 90, 9, 3, 0.9], [61, 0, 90, 9, 3, 0.8]])
    scores = torch.tensor([[1, 0.9, 1], [2, 0, 1], [3, 0.4, 1], [1, 0.95, 0], [1, 0.8, 0]])
    assert torch.equal(match_objects(target, output), scores)
    assert torch.equal(match_objects(target[:0], output[:1]), torch.tensor([[1, 0.9, 0]]))
    assert torch.equal(match_objects(target[:1], output[:0]), torch.tensor([[1.0, 0, 1]]))
    assert match_objects(target[:0], output[:0]).shape == (0, 3)
    samples = CoordinateSamples(
        index=torch.arange(2),
        target=torch.stack([torch.full_like(target, torch.nan), target]),
        output=torch.stack([torch.zeros_like(output), output]),
        frame=torch.eye(3).repeat(2, 1, 1),
    )
    (wrong,) = TASK.mistakes(samples, NAMES)
    assert (wrong.position, wrong.predicted) == (1, "missed 1 dog; wrong 1 cat")
    drawn = TASK.shown_output(samples, 1, NAMES)[:, 4:].tolist()
    assert drawn == [pytest.approx(of) for of in ([1, 0.9], [1, 0.95], [3, 0.4], [3, 0.9], [3, 0.8])]
    five = Objects.of([[0, 0, 9, 9]] * 5, [4, 3, 4, 1, 2])
    assert TASK.caption(five, (*NAMES, "cow")) == "2 cow, 1 bird, 1 cat and 1 more class"


def test_objects_are_in_pixels_of_the_stored_image_and_clipped() -> None:
    """A stored image of 200 x 100 px is seen from its pixel 50 on, mirrored, at twice its size."""
    frame = torch.tensor([[-2, 0, 298.5], [0, 2, 0.5], [0, 0, 1]], dtype=torch.float64)
    stored = torch.tensor([[60.0, 10, 90, 40]])
    seen = boxes_at(stored, frame)
    assert seen.tolist() == [[120, 20, 180, 80]]
    low = torch.cat([boxes_at(torch.tensor([[-10.0, 50, 30, 120]]), frame), torch.tensor([[1, 0.3]])], dim=1)
    output = torch.cat([low, torch.cat([seen, torch.tensor([[2, 0.9]])], dim=1), torch.zeros(3, 6)])
    first, second = TASK.objects(output, frame, (200, 100), NAMES)
    assert (first.name, first.score, first.box) == ("dog", pytest.approx(0.9), (60, 10, 90, 40))
    assert second.box == (0, 50, 30, 100)


def test_losses_learn_no_crowds_and_no_difficult_objects() -> None:
    still = {
        "device": CPU,
        "parts": Parts.whole(1, (50, 50)),
        "bends": False,
        "edges": (np.full(2, -0.5), np.full(2, 49.5)),
        "forward": lambda self, points, owners, watch: points,
    }
    motion = type("Still", (), still)()
    objects = Objects.of(
        [[0, 0, 9, 9], [5, 5, 20, 20], [9, 9, 30, 30]], [1, 2, 3], crowd=[0, 1, 0], difficult=[1, 0, 0]
    )
    loaded = [BOXES.load(objects)]
    assert BOXES.follow(loaded, motion, Rules(0.1, 1.0, 255))[0]["labels"].tolist() == [1, 2, 3]
    assert BOXES.learned.follow(loaded, motion, Rules(0.1, 1.0, 255))[0]["labels"].tolist() == [3]


# --- the model ---


def test_a_detector_takes_images_as_they_are_and_returns_one_shape() -> None:
    network = parse_model({"kind": "detector"}).build(4, (64, 96)).train()
    shown: list[Tensor] = []
    network.detector.backbone.register_forward_pre_hook(lambda _, given: shown.append(given[0]))
    images = torch.randn(2, 3, 64, 96)
    target = {"boxes": torch.tensor([[8.0, 8, 40, 40]]), "labels": torch.tensor([2]), "image_id": torch.tensor([7])}
    nothing = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0).long()}
    losses = network(images, [target, nothing])
    assert losses.shape == (3,)
    losses.sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())
    found = network.eval()(images)
    assert found.shape == (2, 100, 6)
    for given in shown:
        assert torch.equal(given, images)


@pytest.mark.parametrize("name", ["fcos_cnn", "fasterrcnn_mobilenet_v3_large_320_fpn"])
def test_autocast_rounds_neither_boxes_nor_scores(name: str) -> None:
    network = parse_model({"kind": "detector", "name": name}).build(4, (64, 96)).eval()
    getattr(network.detector, "roi_heads", network.detector).score_thresh = 0.0
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        found = network(torch.randn(1, 3, 64, 96))
    for columns in (found[..., :4], found[..., 5]):
        assert not torch.equal(columns.float(), columns.bfloat16().float())


def test_a_detector_learns_mixed_images() -> None:
    network = parse_model({"kind": "detector"}).build(4, (64, 64)).train()
    recipe = load_recipe({"size": 64, "train": {"mosaic": {}, "mixup": {"p": 0.5}, "cutmix": {"p": 0.5}}})
    given = [{"boxes": [[8, 8, 40, 40]] * count, "labels": [1] * count} for count in (1, 0, 2)]
    images, targets = Transform(recipe, device="cpu")([np.zeros((64, 64, 3), np.uint8)] * 3, given)
    loss = TASK.make_losses(parse_fit({}), network, CPU)[0](network(images, targets), [])
    loss.backward()
    assert loss.isfinite()


def test_a_batch_without_any_box_is_learned_and_scored() -> None:
    network = parse_model({"kind": "detector"}).build(4, (64, 64)).train()
    nothing = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0).long()}
    nothing |= {name: torch.zeros(0).bool() for name in ("iscrowd", "difficult")}
    loss = TASK.make_losses(parse_fit({}), network, CPU)[0](network(torch.randn(2, 3, 64, 64), [nothing] * 2), [])
    loss.backward()
    assert loss.isfinite()
    assert loss > 0  # what is found is wrong
    assert TASK.unmixed([nothing] * 2).shape == (2, 0, 6)


def test_frozen_norms_keep_their_statistics() -> None:
    network = parse_model({"kind": "detector", "freeze_norms": True}).build(4, (64, 64)).train()
    norms = {name: value.clone() for name, value in network.state_dict().items() if "running_mean" in name}
    network.detector.backbone(torch.randn(2, 3, 64, 64))
    assert norms
    assert all(torch.equal(network.state_dict()[name], value) for name, value in norms.items())


def test_the_report_draws_objects_beside_those_found() -> None:
    target = torch.tensor([[[10.0, 10, 30, 30, 1, 0]]])
    output = torch.tensor([[[60.0, 10, 80, 30, 1, 0.9], [0, 0, 90, 40, 1, 0.2]]])
    samples = CoordinateSamples(torch.zeros(1), target, output, torch.eye(3, dtype=torch.float64)[None])
    whole = np.asarray(TASK.draw(Image.new("RGB", (100, 50)), np.eye(3), samples, 0, NAMES))
    assert (whole[200:] == color_of(1)).all(axis=2).any(), "the legend"
    assert not (whole[200:] == color_of(2)).all(axis=2).any(), "classes that are not drawn"
    drawn = np.delete(whole[:200].max(axis=2) > 150, np.s_[400:408], axis=1)  # without the gap
    assert drawn.shape == (200, 800)  # enlarged four times
    columns = np.flatnonzero(drawn.any(axis=0)).tolist()
    ends = [columns[0], *(end for pair in pairwise(columns) for end in pair if pair[1] - pair[0] > 50), columns[-1]]
    assert ends == [40, 119, 640, 719]
