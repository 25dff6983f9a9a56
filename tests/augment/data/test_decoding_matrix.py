"""Every layout of every format: the check rejects the file, or all readers agree on its pixels, size and orientation.

Levels may differ by 2 of 255, as decoders round differently.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_formats import MATRIX, levels
from nvidia.dali import fn
from nvidia.dali.pipeline import Pipeline
from PIL import Image

from augment import Transform, load_recipe
from augment.data.check import check_files
from augment.data.formats.annotations import read_headers
from augment.data.image_faults import DIFFERS, NOT_DECODED, TOLERANCE, strict_pillow
from augment.data.images import open_image, orientation_of, reader_source, to_rgb, turn_back, upright_size
from augment.support.errors import UserError
from augment.tools.info.scan import scan_images

pytestmark = pytest.mark.filterwarnings("ignore")  # of Pillow, about damaged metadata


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    folder = tmp_path_factory.mktemp("matrix")
    for number, data in enumerate(MATRIX.values()):
        (folder / f"{number}.jpg").write_bytes(data)
    return {name: folder / f"{number}.jpg" for number, name in enumerate(MATRIX)}


@pytest.fixture(scope="module")
def faults(files: Mapping[str, Path]) -> Mapping[str, str]:
    found = check_files(list(files.values()))
    return {name: found[file] for name, file in files.items() if file in found}


@pytest.fixture(scope="module")
def good(files: Mapping[str, Path], faults: Mapping[str, str]) -> list[str]:
    return [name for name in files if name not in faults]


@pytest.fixture(scope="module")
def decoded(files: Mapping[str, Path], good: list[str]) -> Mapping[str, tuple[np.ndarray, np.ndarray]]:
    """What a pipeline decodes, of the whole image and of its center."""
    pipeline = Pipeline(len(good), 1, None, prefetch_queue_depth=1, exec_dynamic=True)
    with pipeline:
        encoded, _ = fn.readers.file(files=[str(files[name]) for name in good])
        crop = fn.decoders.image_slice(encoded, [0.25, 0.25], [0.5, 0.5], axis_names="HW")
        pipeline.set_outputs(fn.decoders.image(encoded), crop)
    whole, crops = pipeline.run()
    return {name: (np.array(whole.at(n)), np.array(crops.at(n))) for n, name in enumerate(good)}


def far(one: Any, other: Any, most: float = TOLERANCE) -> bool:
    one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
    return one.shape != other.shape or np.abs(one - other).max() > most


def test_the_check_names_what_it_rejects(faults: Mapping[str, str], good: list[str]) -> None:
    assert len(MATRIX) >= 400
    assert len(good) >= 300
    odd = [name for name, fault in faults.items() if "EXIF" not in fault and not fault.startswith("is broken")]
    kinds = (DIFFERS, NOT_DECODED, "variant that DALI does not decode")
    assert [name for name in odd if not any(kind in faults[name] for kind in kinds)] == []


@pytest.mark.parametrize(
    "name", ["16 False.bmp", "gray 2 1.tif", "gray 4 1.tif", "sample 2 8 1.tif", "6 254.pnm", "cmyk_without_adobe.jpg"]
)
def test_layouts_that_only_some_programs_decode_are_rejected(faults: Mapping[str, str], name: str) -> None:
    assert name in faults


@pytest.mark.parametrize("name", ["gray 12 1.tif", "2 16 False.png", "8 True.bmp", "ycck.jpg", "JPEG 6", "TIFF 6"])
def test_usual_layouts_are_allowed(good: list[str], name: str) -> None:
    assert name in good


def test_all_readers_see_the_same_pixels(
    files: Mapping[str, Path], decoded: Mapping[str, tuple[np.ndarray, np.ndarray]]
) -> None:
    exported: dict[str, Any] = {"np": np, "Image": Image}
    exec(reader_source(), exported)
    differing = []
    with strict_pillow():
        for name, (whole, crop) in decoded.items():
            with open_image(files[name]) as ours, Image.open(files[name]) as theirs:
                readers = {"ours": to_rgb(ours), "exported": exported["to_rgb"](theirs)}
            differing += [(name, reader) for reader, pixels in readers.items() if far(whole, pixels)]
            y, x = (side // 4 for side in whole.shape[:2])
            differing += [(name, "crop")] if far(whole[y : 3 * y, x : 3 * x], crop) else []
    assert differing == []


def test_a_transform_sees_the_same_pixels(decoded: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> None:
    names = [name for name, (whole, _) in decoded.items() if whole.shape == (24, 40, 3)]
    recipe = load_recipe({"size": [24, 40], "mean": [0, 0, 0], "std": [1, 1, 1], "val": {"resize": {}}})
    images = Transform(recipe, split="val", device="cpu")([MATRIX[name] for name in names])
    pixels = 255 * images.permute(0, 2, 3, 1).numpy()
    assert [name for name, image in zip(names, pixels, strict=True) if far(image, decoded[name][0])] == []


def test_all_readers_see_the_same_size_and_orientation(
    files: Mapping[str, Path],
    decoded: Mapping[str, tuple[np.ndarray, np.ndarray]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)  # where headers are cached
    headers = read_headers([files[name] for name in decoded])
    facts = scan_images([files[name] for name in decoded])
    differing = []
    for fact, (name, (whole, _)) in zip(facts, decoded.items(), strict=True):
        with open_image(files[name]) as image:
            size, orientation = upright_size(image), orientation_of(image)
        header = headers[files[name]]
        sizes = {whole.shape[:2], size[::-1], header.upright_size, (int(fact["height"]), int(fact["width"]))}
        if len(sizes) > 1 or header.orientation != orientation or fact["fault"]:
            differing.append(name)
        # What the decoder has turned is as it was stored after it is turned back.
        stored = np.rint(levels(8, 3)[..., 0])
        if name.startswith(("JPEG ", "PNG ", "WEBP ", "TIFF ")) and far(
            turn_back(whole[..., 0], orientation), stored, 24
        ):
            differing.append(name)
    assert differing == []


def test_info_rejects_what_the_check_rejects(files: Mapping[str, Path], faults: Mapping[str, str]) -> None:
    facts = scan_images([files[name] for name in faults])
    assert [name for fact, name in zip(facts, faults, strict=True) if not fact["fault"]] == []


def test_a_transform_rejects_what_the_check_rejects(faults: Mapping[str, str]) -> None:
    transform = Transform(load_recipe({"size": 8, "val": {"resize": {}}}), split="val", device="cpu")
    for name in faults:
        with pytest.raises(UserError, match=r"images\[0\]"):
            transform([MATRIX[name]])
