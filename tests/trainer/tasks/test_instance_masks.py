"""Instance masks: their places in an image, their mAP against COCO's own code, and the models that have them."""

import json
import math
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
from fakes import CPU, needs_gpu, reject_waiting
from torch import Tensor

from augment.support.errors import UserError
from trainer.models.registry import parse_model
from trainer.tasks.instance_masks import object_masks
from trainer.tasks.meter import Meter
from trainer.tasks.registry import check_metrics, task_named

TASK = task_named("detect")
NAMES = ("background", "cat", "dog")
SIDE, SIZE = 28, 64  # of a grid, and of the images
MASKS = type("WithMasks", (), {"masks": True})()

pytest.importorskip("faster_coco_eval")
Batch = tuple[Tensor, list[dict[str, Tensor]]]


def ellipse(box: Tensor) -> Tensor:
    """Return the pixels of the largest ellipse in a box."""
    y, x = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    center, half = (box[:2] + box[2:] - 1) / 2, (box[2:] - box[:2]) / 2
    return (((x - center[0]) / half[0]) ** 2 + ((y - center[1]) / half[1]) ** 2 < 1).to(torch.uint8)


def row_of(mask: Tensor, box: Tensor, label: int, score: float) -> Tensor:
    """Return what a detector would return if it had learned this mask perfectly."""
    from torchvision.models.detection.roi_heads import project_masks_on_boxes

    grid = project_masks_on_boxes(mask[None].float(), box[None], torch.tensor([0]), SIDE)
    return torch.cat([box, torch.tensor([label, score]), grid.flatten()])


@pytest.fixture(scope="module")
def batches() -> list[Batch]:
    """True masks that are found with errors, among wrong ones. Some are crowds or difficult, some images have none."""
    random, made = torch.Generator().manual_seed(1), []
    for size in (3, 1, 4):
        outputs, targets = torch.zeros(size, 8, 6 + SIDE * SIDE), []
        for output in outputs:
            count = int(torch.randint(0, 4, (1,), generator=random))
            corners = torch.randint(0, 34, (count, 2), generator=random)
            boxes = torch.cat([corners, corners + torch.randint(8, 30, (count, 2), generator=random)], dim=1).float()
            labels = torch.randint(1, 3, (count,), generator=random)
            crowd, difficult = (torch.rand(count, generator=random) < 0.15 for _ in range(2))
            masks = torch.stack([ellipse(box) for box in boxes]) if count else torch.zeros(0, SIZE, SIZE).byte()
            targets.append({"boxes": boxes, "labels": labels, "iscrowd": crowd, "difficult": difficult, "masks": masks})
            for number in range(2 * count):
                box = boxes[number // 2] + torch.randint(-2, 3, (4,), generator=random)
                score = 0.05 + 0.9 * float(torch.rand(1, generator=random))
                output[number] = row_of(ellipse(box), box, int(labels[number // 2]), score)
        made.append((outputs, targets))
    return made


def measured(batches: list[Batch]) -> Meter:
    meter, start = Meter(TASK, TASK.measured(NAMES, (), MASKS), CPU, keep=True), 0
    for outputs, targets in batches:
        index = torch.arange(start, start := start + len(targets))
        frames = torch.eye(3, dtype=torch.float64).repeat(len(targets), 1, 1)
        meter.update(torch.tensor(0.0), outputs, targets, index, frames=frames)
    return meter


def coco_score(batches: list[Batch], folder: Path) -> float:
    """Return the mAP of masks, as pycocotools computes it from files."""
    coco = pytest.importorskip("pycocotools.coco")
    from pycocotools import mask as codes
    from pycocotools.cocoeval import COCOeval

    def code(mask: Tensor) -> dict[str, object]:
        found = codes.encode(np.asfortranarray(mask.numpy().astype(np.uint8)))
        return {"size": found["size"], "counts": found["counts"].decode()}

    categories = [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
    truth: dict[str, list[dict[str, object]]] = {"images": [], "annotations": [], "categories": categories}
    results = []
    pairs = [pair for outputs, targets in batches for pair in zip(outputs, targets, strict=True)]
    for image, (output, target) in enumerate(pairs, 1):
        truth["images"].append({"id": image, "width": SIZE, "height": SIZE})
        skipped = target["iscrowd"] | target["difficult"]
        for mask, label, ignored in zip(target["masks"], target["labels"].tolist(), skipped.tolist(), strict=True):
            row = {"id": len(truth["annotations"]) + 1, "image_id": image, "category_id": label, "bbox": [0, 0, 9, 9]}
            row |= {"segmentation": code(mask), "area": int(mask.sum()), "iscrowd": int(ignored)}
            truth["annotations"].append(row)
        masks = object_masks(output, torch.eye(3), (0, 0, SIZE, SIZE))
        for row, mask in zip(output.tolist(), masks, strict=True):
            if row[5]:
                found = {"image_id": image, "category_id": int(row[4]), "segmentation": code(mask), "score": row[5]}
                results.append(found)
    for name, content in (("truth", truth), ("results", results)):
        (folder / f"{name}.json").write_text(json.dumps(content))
    with redirect_stdout(StringIO()):
        loaded = coco.COCO(str(folder / "truth.json"))
        judged = COCOeval(loaded, loaded.loadRes(str(folder / "results.json")), "segm")
        judged.evaluate()
        judged.accumulate()
        judged.summarize()
    return float(judged.stats[0])


def test_mask_map_is_that_of_coco(batches: list[Batch], tmp_path: Path) -> None:
    scores, expected = measured(batches).scores(), coco_score(batches, tmp_path)
    assert scores["mask_map"] == pytest.approx(expected, abs=1e-9)
    assert 0.2 < expected < 0.95
    assert scores["mask_map"] != scores["map"]


def test_mask_map_does_not_depend_on_batches_and_ranks(batches: list[Batch]) -> None:
    whole = measured(batches)
    first, second = measured(batches[:2]), measured(batches[2:])
    parts = {"samples": second.samples, "sums": second._sums, "kept": second._joined()}
    assert first.merged(lambda own: [own, parts]).scores() == whole.scores()
    images = [(outputs[i : i + 1], targets[i : i + 1]) for outputs, targets in batches for i in range(len(targets))]
    assert measured(images).scores() == whole.scores()


def test_checkpoints_hold_no_masks(batches: list[Batch]) -> None:
    samples = measured(batches).kept()
    assert samples is not None
    assert (samples.target.shape[2], samples.output.shape[2], samples.target.dtype) == (6, 6, torch.float32)


def test_without_true_masks_there_is_no_score(batches: list[Batch]) -> None:
    boxes = [(outputs, [{**target} for target in targets]) for outputs, targets in batches]
    for _, targets in boxes:
        for target in targets:
            del target["masks"]
    scores = measured(boxes).scores()
    assert math.isnan(scores["mask_map"])
    assert scores["map"] == measured(batches).scores()["map"]


def test_a_mask_is_placed_where_training_cut_it_out() -> None:
    for box in ([10, 12, 40, 50], [3, 30, 20, 41], [0, 0, 64, 64]):
        mask = ellipse(torch.tensor(box).float())
        found = object_masks(row_of(mask, torch.tensor(box).float(), 1, 1.0)[None], torch.eye(3), (0, 0, SIZE, SIZE))[0]
        assert (found & (mask > 0)).sum() / (found | (mask > 0)).sum() > 0.96
        left, top, right, bottom = box
        part = object_masks(row_of(mask, torch.tensor(box).float(), 1, 1.0)[None], torch.eye(3), tuple(box))[0]
        assert torch.equal(part, found[top:bottom, left:right])


def test_only_detectors_with_masks_measure_them() -> None:
    boxes, masks = (parse_model({"kind": "detector", "name": f"{name}_resnet50_fpn"}) for name in ("fcos", "maskrcnn"))
    assert "mask_map" not in [metric.name for metric in TASK.measured(NAMES, None, boxes)]
    assert "mask_map" in [metric.name for metric in TASK.measured(NAMES, (), masks)]
    assert not parse_model({"kind": "detector"}).build(3, (64, 64)).masks
    check_metrics(TASK, NAMES, ["mask_map"], masks)
    with pytest.raises(UserError, match=r"^fit\.metrics: .*'mask_map'"):
        check_metrics(TASK, NAMES, ["mask_map"], boxes)


@needs_gpu
def test_overlaps_do_not_wait_for_the_gpu(batches: list[Batch]) -> None:
    for outputs, targets in batches:
        given = outputs.cuda(), [{name: value.cuda() for name, value in target.items()} for target in targets]
        TASK.keep_matches(*given)  # the first call may load kernels
        with reject_waiting():
            found = TASK.keep_matches(*given)["target"]
        # A few pixels at the edges of masks may differ.
        expected = TASK.keep_matches(outputs, targets)["target"]
        torch.testing.assert_close(found.cpu(), expected, atol=0.03, rtol=0, equal_nan=True)
