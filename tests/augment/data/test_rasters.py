"""The pixel format of a dataset: how it is found, measured and cached, and what every image must have."""

import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from files_of_sources import write
from numpy.typing import NDArray
from PIL import Image
from raster_bytes import dicom, npy, npz, pixels, png, tiff
from stores import write_tar

from augment.data import format_detection, rasters
from augment.data.dataset import Dataset, Split
from augment.data.format_detection import measured
from augment.data.formats.folder import find_images
from augment.data.images import portable_name
from augment.data.rasters import Raster, in_format
from augment.data.sources import LOADED, load_dataset, parse_data
from augment.data.targets.spatial import IGNORE
from augment.params.pixel_format import RGB
from augment.support.errors import UserError

NAMES = ("a", "b")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, in which the program is started."""
    monkeypatch.chdir(tmp_path)
    LOADED.clear()
    return tmp_path


def put(images: Mapping[str, bytes]) -> None:
    """Write image files of two classes for both splits."""
    for split in ("train", "val"):
        for number, (name, content) in enumerate(images.items()):
            file = Path("set", split, NAMES[number % 2], name)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)


def arrays(dtype: str = "uint16", channels: int = 10, count: int = 6) -> list[NDArray[Any]]:
    return [pixels(channels, dtype, seed) for seed in range(count)]


def load(**settings: Any) -> Dataset:
    LOADED.clear()
    return load_dataset(parse_data({"source": "folder", "root": "set", **settings}))


def load_arrays(images: list[NDArray[Any]], **settings: Any) -> Dataset:
    put({f"{number}.npy": npy(image) for number, image in enumerate(images)})
    return load(**settings)


def notices(dataset: Dataset) -> list[str]:
    return [notice for notice in dataset.notices if "copies" not in notice]


def message(**settings: Any) -> str:
    with pytest.raises(UserError) as caught:
        load(**settings)
    return str(caught.value)


# --- finding the format ---


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16", "float32"])
def test_format_and_statistics_of_a_folder(dtype: str) -> None:
    images = arrays(dtype)
    dataset = load_arrays(images)
    of, levels = dataset.pixels, dataset.pixels.levels(np.stack(images)) / 255
    assert (of.channels, of.dtype, of.rgb, of.is_bytes) == (10, dtype, None, dtype == "uint8")
    np.testing.assert_allclose(of.mean, levels.mean(axis=(0, 1, 2), dtype=np.float64), rtol=1e-6)
    np.testing.assert_allclose(of.std, levels.std(axis=(0, 1, 2), dtype=np.float64), rtol=1e-6)
    files = sorted(dataset.train.files, key=portable_name)
    assert portable_name(files[0]) == "a/0.npy"
    np.testing.assert_array_equal(files[0].read_pixels(), images[0])
    assert not notices(dataset)
    assert pickle.loads(pickle.dumps(files[0])) == files[0]
    found = {key: image for part in Raster.begin(dict(enumerate(files))) for key, image in part.result().items()}
    assert [np.array_equal(found[key], file.read_pixels()) for key, file in enumerate(files)] == [True] * 6


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.npz", npz(pixels(2))),
        ("x.tif", tiff(pixels(2))),
        ("x.png", png(pixels(3))),
        ("x.dcm", dicom(pixels(1)[..., 0])),
    ],
)
def test_files_by_their_content(name: str, content: bytes) -> None:
    put({f"0{name}": content, f"1{name}": content})
    dataset = load()
    assert dataset.pixels.dtype == "uint16"
    assert dataset.pixels.rgb == ((0, 1, 2) if name == "x.png" else None)
    assert dataset.train.files[0].read_pixels().shape[2] == dataset.pixels.channels


def encoded(mode: str = "RGB", kind: str = "PNG", side: int = 16) -> bytes:
    Image.fromarray(pixels(4, "uint8", size=(side, side))).convert(mode).save("image", kind)
    return Path("image").read_bytes()


@pytest.mark.parametrize("name", ["x.jpg", "x.webp", "x.bmp"])
def test_ordinary_images_are_not_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = {"x.jpg": "JPEG", "x.webp": "WEBP", "x.bmp": "BMP"}[name]
    put({f"0{name}": encoded(kind=kind), f"1{name}": encoded(kind=kind)})
    monkeypatch.setattr(rasters, "read_encoded", lambda _: pytest.fail("an image is read"))
    dataset = load()
    assert dataset.pixels == RGB
    assert dataset.train.files == (Path(f"set/train/a/0{name}"), Path(f"set/train/b/1{name}"))


@pytest.mark.parametrize(("mode", "kind"), [("RGB", "PNG"), ("P", "PNG"), ("L", "TIFF"), ("RGBA", "TIFF")])
def test_8_bit_png_and_tiff_stay_rgb(mode: str, kind: str) -> None:
    name = "png" if kind == "PNG" else "tif"
    put({f"0.{name}": encoded(mode, kind), f"1.{name}": encoded(mode, kind)})
    dataset = load()
    assert dataset.pixels == RGB
    assert isinstance(dataset.train.files[0], Path)
    assert ("data.channels=4" in "".join(dataset.notices)) == ((mode, kind) == ("RGBA", "TIFF"))


def test_a_notice_names_an_ignored_channel_that_is_not_transparency() -> None:
    image = tiff(pixels(4, "uint8", size=(16, 16)), photometric="rgb", extrasamples=["unspecified"])
    put({"0.tif": image, "1.tif": image})
    assert "data.channels=4" in "".join(load().notices)


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (4, "RGBA")])
def test_8_bit_images_with_other_channels(channels: int, mode: str) -> None:
    put({"0.png": encoded("RGBA"), "1.png": encoded("RGBA")})
    dataset = load(channels=channels)
    assert (dataset.pixels.channels, dataset.pixels.is_bytes) == (channels, True)
    expected = np.asarray(Image.open("image").convert(mode)).reshape(16, 16, channels)
    np.testing.assert_array_equal(dataset.train.files[0].read_pixels(), expected)


def test_8_bit_images_with_a_range_or_nodata() -> None:
    put({"0.png": encoded(), "1.png": encoded()})
    assert load(range=[0, 255], channels=3, rgb=[0, 1, 2]).pixels == RGB
    assert load(range=[0, 128]).pixels.high == (128, 128, 128)
    first = load(nodata=int(np.asarray(Image.open("image"))[0, 0, 0])).train.files[0].read_pixels()
    assert first[0, 0, 0] == 0


def test_rgb_arrays_are_read_as_rgb_by_runs_on_other_data() -> None:
    dataset = load_arrays(arrays("uint8", 3))
    assert dataset.pixels == RGB
    split = Split(tuple(file.ref for file in dataset.train.files), dataset.train.targets)
    assert in_format(split, RGB).files == dataset.train.files
    put({"0.png": png(pixels(3)), "1.png": png(pixels(3))})
    files = (Path("set/train/a/0.png"), Path("set/train/b/1.png"))
    assert in_format(Split(files, (0, 1)), RGB).files == files


# --- range and statistics ---


def test_range_of_percentiles() -> None:
    images = [np.uint16(1000 + image % 3000) for image in arrays(channels=2)]
    images[0][0, 0] = 65535
    of = load_arrays(images, range="auto").pixels
    low, high = np.percentile(np.stack(images).reshape(-1, 2), (0.1, 99.9), axis=0)
    np.testing.assert_allclose((of.low, of.high), (low, high), rtol=1e-6)
    np.testing.assert_allclose(of.mean, (of.levels(np.stack(images)) / 255).mean(axis=(0, 1, 2)), rtol=1e-5)


def test_12_bits_in_16_are_reported() -> None:
    (notice,) = notices(load_arrays([np.uint16(image % 4001 + 33_000) for image in arrays()]))
    assert "from 33,003 to 37,000, a small part of the range from 0 to 65,535. Set data.range=auto" in notice
    assert not notices(load(range=[33_000, 37_000]))
    (notice,) = notices(load_arrays([image / 9 for image in arrays("float32")]))
    assert "to 0.111, a small part of the range from 0 to 1." in notice


@pytest.mark.parametrize(("scaled", "factor", "warns"), [(5, 16, True), (15, 16, True), (4, 16, False), (9, 4, False)])
def test_images_of_different_scales_are_reported(scaled: int, factor: int, warns: bool) -> None:
    images = arrays(count=20)
    images = [image // factor if number < scaled else image for number, image in enumerate(images)]
    images[10][:] = 7  # an image of a single value has no scale
    found = notices(load_arrays(images, range="auto"))
    assert [f"data: in {scaled - (scaled > 10)} of 19 images" in notice for notice in found] == [True] * warns


def test_floats_need_a_range() -> None:
    images = arrays("float32")
    images[4] = images[4] * 100 - 50
    put({f"{number}.npy": npy(image) for number, image in enumerate(images)})
    text = message()
    assert "set/train/a/4.npy has values from -" in text
    assert "data.range=auto" in text
    assert load(range="auto").pixels.low[0] < -40


def test_constant_channels_are_reported() -> None:
    images = arrays(channels=3)
    for image in images:
        image[..., 1] = 7
    dataset = load_arrays(images, range="auto")
    assert "channel 1 " in notices(dataset)[0]
    assert dataset.pixels.std[1] == 1
    assert dataset.pixels.low[1] < dataset.pixels.high[1]


def test_statistics_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    before = load_arrays(arrays(), range="auto")
    monkeypatch.setattr(format_detection, "sample_values", lambda *_: pytest.fail("the statistics are computed again"))
    assert load(range="auto").pixels == before.pixels
    with pytest.raises(pytest.fail.Exception):
        load()  # another range
    Path("set/train/a/0.npy").write_bytes(npy(pixels(10, seed=99)))
    with pytest.raises(pytest.fail.Exception):
        load(range="auto")


@pytest.mark.parametrize("damage", ["[", '["x",[]]', "[null,[]]", '[{"channels":9},[]]', "1e999"])
def test_damaged_statistics_are_computed_again(damage: str) -> None:
    before = load_arrays(arrays(), range="auto")
    (cache,) = Path("outputs/data").glob("pixels-*.txt")
    head = cache.read_bytes().partition(b"[")[0]
    cache.write_bytes(head + damage.encode() + b"\0\n")
    assert load(range="auto") == before


def test_rgb_images_are_measured_on_request() -> None:
    put({"0.png": encoded(), "1.png": encoded()})
    assert measured(load(), None, (0.5, 0.5, 0.5)) == RGB
    found = measured(load(), "auto", None)
    values = np.asarray(Image.open("image")) / 255
    np.testing.assert_allclose(found.mean, values.mean(axis=(0, 1)), rtol=1e-6)
    np.testing.assert_allclose(found.std, values.std(axis=(0, 1)), rtol=1e-6)


# --- settings that contradict the images ---


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"channels": 4}, "data.channels=4, but set/train/a/0.npy has 10 channels. Remove data.channels"),
        ({"rgb": [0, 1, 10]}, "data.rgb is [0, 1, 10], but images have 10 channels"),
        ({"colormap": "infern"}, "data.colormap=infern: unknown colormap. Did you mean 'inferno'?"),
        ({"rgb": [0, 1, 2], "colormap": "inferno"}, "data.colormap=inferno has no effect on color images. Remove it."),
        ({"rgb": [0, 1, 1]}, "Use three different numbers"),
        ({"rgb": [0, 1, 1.5]}, "Use three different numbers"),
        ({"range": [5, 5]}, "data.range=[5,5]: the first number must be smaller"),
        ({"nodata": -1}, "data.nodata=-1, but images have uint16 pixels"),
    ],
)
def test_settings_that_contradict_the_images(settings: dict[str, Any], text: str) -> None:
    put({f"{number}.npy": npy(image) for number, image in enumerate(arrays())})
    assert text in message(**settings)


def test_two_channels_have_no_rgb() -> None:
    put({f"{number}.npy": npy(image) for number, image in enumerate(arrays(channels=2))})
    assert "data.rgb is [0, 1, 0], but images have 2 channels." in message(rgb=[0, 1, 0])


def test_8_bit_images_have_1_3_or_4_channels() -> None:
    put({"0.png": encoded(), "1.png": encoded()})
    assert "Allowed: 1 (gray), 3, or 4" in message(channels=2)


@pytest.mark.parametrize("package", ["tifffile", "pydicom"])
def test_missing_packages(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, package, None)
    content = tiff(pixels()) if package == "tifffile" else dicom(pixels(1)[..., 0])
    ending = "tif" if package == "tifffile" else "dcm"
    put({f"0.{ending}": content, f"1.{ending}": content})
    assert f"Install it: pip install 'dali-trainer[{'tiff' if ending == 'tif' else 'dicom'}]'" in message()


# --- images that differ ---


def bad_arrays() -> list[bytes]:
    nan, infinite = pixels(10, "float32"), pixels(10, "float32")
    nan[0, 0, 0], infinite[0, 0, 0] = np.nan, np.inf
    return [
        npy(pixels(9, "float32")), npy(pixels(10)), npy(nan), npy(infinite), npy(pixels(10, "float32"))[:-1], b"",
        npy(np.zeros((5, 7, 10), np.int32)), encoded(),
    ]  # fmt: skip


def test_each_bad_image_is_named_and_can_be_skipped() -> None:
    good = {f"0{number}.npy": npy(image) for number, image in enumerate(arrays("float32"))}
    bad = {f"1{number}.npy": content for number, content in enumerate(bad_arrays())}
    put(good | bad)
    text = message()
    faults = [
        "has 9 channels of float32 instead of 10 channels of float32", "has 10 channels of uint16 instead",
        "has infinite values or NaN", "has infinite values or NaN", "is broken: it ends early", "is empty",
        "has int32 pixels", "is an ordinary 8-bit image instead",
    ]  # fmt: skip
    for name, fault in zip(bad, faults, strict=True):
        assert f"{name} {fault}" in text
    assert "data.skip_bad=true" in text
    dataset = load(skip_bad=True)
    assert (len(dataset.train), len(dataset.train.left_out)) == (6, 8)
    assert load(skip_bad=True) == dataset  # from the cache


def test_an_ordinary_image_does_not_seem_to_have_the_channels_of_the_others() -> None:
    put({f"0{number}.npy": npy(image) for number, image in enumerate(arrays(channels=4))} | {"1.npy": encoded()})
    assert "1.npy is an ordinary 8-bit image instead of 4 channels of uint16" in message()


def test_the_first_readable_image_decides() -> None:
    put({"00.npy": b"", "01.npy": b""} | {f"1{number}.npy": npy(image) for number, image in enumerate(arrays())})
    assert load(skip_bad=True).pixels.channels == 10
    put({f"1{number}.npy": b"" for number in range(6)})
    assert "set/train/a/00.npy is empty" in message(skip_bad=True)


@pytest.mark.parametrize("channels", [1, 10])
def test_images_with_an_unknown_data_type_only(channels: int) -> None:
    put({f"0{number}.tif": tiff(np.ones((5, 7, channels), np.int32)) for number in range(6)})
    assert "00.tif has int32 pixels. Save it as one of uint8, uint16, int16, float32" in message()


def test_an_image_that_changes_later_is_named() -> None:
    dataset = load_arrays(arrays())
    file = dataset.train.files[0]
    Path(str(file.name)).write_bytes(npy(pixels(3)))
    (future,) = Raster.begin({7: file})
    with pytest.raises(UserError, match=r"0\.npy has 3 channels of uint16 instead") as caught:
        future.result()
    assert caught.value.key == 7  # type: ignore[attr-defined]


# --- pixels without data ---


@pytest.mark.parametrize(("dtype", "nodata"), [("float32", -9999), ("int16", -9999), ("uint8", 255)])
def test_pixels_without_data_become_black(dtype: str, nodata: int) -> None:
    images = [np.clip(image, 0, 200) if dtype != "float32" else image for image in arrays(dtype, 2)]
    for image in images:
        image[0, :, 0] = nodata
    if dtype == "float32":
        images[0][1, 1, 1] = np.nan
    dataset = load_arrays(images, nodata=nodata, range="auto")
    of, found = dataset.pixels, dataset.train.files[0].read_pixels()
    assert (of.levels(found)[0, :, 0] == 0).all()
    np.testing.assert_array_equal(found[0, :, 1], images[0][0, :, 1])
    known = np.stack(images)[:, 1:, :, 0].astype(np.float64)
    np.testing.assert_allclose(of.low[0], np.percentile(known, 0.1), rtol=1e-5)
    level = ((known - of.low[0]) / (of.high[0] - of.low[0])).clip(0, 1)
    np.testing.assert_allclose((of.mean[0], of.std[0]), (level.mean(), level.std()), rtol=1e-4)


def test_masks_ignore_pixels_without_data() -> None:
    for split in ("train", "val"):
        for number, image in enumerate(arrays("float32", 2)):
            image[0, :3] = image[1, 1, 0] = -9999
            for kind, name in (("images", "npy"), ("masks", "png")):
                Path("set", kind, split).mkdir(parents=True, exist_ok=True)
                file = Path("set", kind, split, f"{number}.{name}")
                if name == "npy":
                    np.save(file, image)
                else:
                    Image.fromarray(np.eye(5, 7, dtype=np.uint8)).save(file)
    dataset = load(source="masks", nodata=-9999)
    expected = np.eye(5, 7, dtype=np.uint8)
    expected[0, :3] = IGNORE
    np.testing.assert_array_equal(dataset.train.targets[0].read(), expected)


# --- sources ---


def load_source(source: str, **settings: Any) -> Dataset:
    return load_dataset(parse_data({"source": source, **settings}))


def check(dataset: Dataset, images: list[NDArray[Any]]) -> None:
    assert (dataset.pixels.channels, dataset.pixels.dtype) == (10, "uint16")
    for split in (dataset.train, dataset.val):
        assert len(split) == len(images)
        for file, image in zip(split.files, images, strict=True):
            np.testing.assert_array_equal(file.read_pixels(), image)
            assert file.read_pixels().dtype == np.uint16  # in the byte order of the machine, as DALI expects
        (*futures,) = Raster.begin(dict(enumerate(split.files)))
        assert sum(len(future.result()) for future in futures) == len(images)


@pytest.mark.parametrize("source", ["tfrecord", "recordio", "lmdb", "parquet"])
def test_records(source: str) -> None:
    images = arrays()
    samples = [(npy(image), number % 3, "") for number, image in enumerate(images)]
    files = {split: str(write(source, Path("there"), split, samples)) for split in ("train", "val")}
    dataset = load_source(source, **files, window=1)
    check(dataset, images)
    assert [image.file for image in dataset.train.files] == [image.ref.file for image in dataset.train.files]


def test_tar_shards() -> None:
    images = arrays()
    members = {}
    for number, image in enumerate(images):
        members |= {f"{number}.tif": tiff(image), f"{number}.cls": b"0", f"{number}.extra.npy": b"no image"}
    file = str(write_tar(Path("a.tar"), members))
    check(load_source("webdataset", train=file, val=file), images)


def test_lists_and_boxes() -> None:
    images = arrays()
    for number, image in enumerate(images):
        np.save(f"{number}.npy", image)
    lines = "".join(f"{number}.npy {number % 2}\n" for number in range(6))
    Path("list.txt").write_text(lines)
    check(load_source("filelist", train="list.txt", val="list.txt"), images)
    boxes = [{"id": n, "image_id": n, "category_id": 1, "bbox": [1, 1, 3, 2]} for n in range(6)]
    listed = [{"id": n, "file_name": f"{n}.npy", "height": 5, "width": 7} for n in range(6)]
    found = {"images": listed, "annotations": boxes, "categories": [{"id": 1, "name": "thing"}]}
    Path("boxes.json").write_text(json.dumps(found))
    dataset = load_source("coco", train="boxes.json", val="boxes.json", train_images=".", val_images=".")
    check(dataset, images)
    np.testing.assert_array_equal(dataset.train.targets[0].boxes, [[1, 1, 4, 3]])


@pytest.mark.parametrize("dtype", ["<u2", ">u2"])
def test_arrays_of_images(dtype: str) -> None:
    images = arrays()
    np.save("x.npy", np.stack(images).astype(dtype))
    np.save("y.npy", np.arange(6) % 2)
    given = {"train": "x.npy", "train_targets": "y.npy", "val": "x.npy", "val_targets": "y.npy"}
    check(load_source("numpy", **given), images)


@pytest.mark.parametrize("workers", [0, 1])
def test_images_of_own_code(workers: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(folder))
    Path(f"own{workers}.py").write_text(
        "import numpy as np\n"
        "class Images:\n"
        "    def __len__(self): return 6\n"
        "    def __getitem__(self, index):\n"
        "        if index > 5: raise IndexError\n"
        "        return np.full((5, 7, 10), index, '>u2'), index % 2\n"
    )
    name = f"own{workers}.Images"
    dataset = load_source("own", train=name, val=name, workers=workers, range=[0, 10])
    check(dataset, [np.full((5, 7, 10), index, np.uint16) for index in range(6)])


def test_arrays_next_to_photos_are_other_data_but_not_those_next_to_folders() -> None:
    for name in ("images/0.npy", "masks/0.png", "photos/0.png", "photos/0.npy"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_bytes(b"")
    assert find_images(Path()) == [Path("images/0.npy"), Path("masks/0.png"), Path("photos/0.png")]
