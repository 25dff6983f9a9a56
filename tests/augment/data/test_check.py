import io
import json
import logging
import os
import socket
import struct
import threading
import time
import warnings
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile, features
from rich.progress import Progress, ProgressColumn

import augment.support.console
from augment.data import check, decoding, faults
from augment.data.check import Problem, check_files, require_readable
from augment.data.dataset import Split
from augment.data.faults import MAX_PIXELS
from augment.support.errors import UserError

SOF = b"\xff\xc0\x00"  # baseline frame header: length (2), bits (1), height (2), width (2)


def image(mode: str = "RGB", size: tuple[int, int] = (60, 40)) -> Image.Image:
    noise = np.random.default_rng(0).integers(0, 256, (size[1] // 4, size[0] // 4, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize(size).convert(mode)


def encoded(form: str, mode: str = "RGB", **options: object) -> bytes:
    stream = io.BytesIO()
    image(mode).save(stream, form, **options)
    return stream.getvalue()


def jpeg_with(offset: int, value: bytes) -> bytes:
    """Return a JPEG with bytes of its frame header replaced."""
    data = encoded("JPEG")
    start = data.index(SOF) + offset
    return data[:start] + value + data[start + len(value) :]


def jpeg_pillow_warns_of() -> bytes:
    """Return a JPEG with a broken index of further images, which Pillow passes over with a warning."""
    data, index = encoded("JPEG"), b"MPF\x00broken"
    return data[:2] + b"\xff\xe2" + struct.pack(">H", len(index) + 2) + index + data[2:]


def png_that_claims(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def half(data: bytes) -> bytes:
    return data[: len(data) // 2]


def bytes_of_16_bit_png() -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.arange(2400, dtype=np.uint16).reshape(40, 60) * 27).save(stream, "PNG")
    return stream.getvalue()


def webp_with(profile: bytes, *, exif: bool = True) -> bytes:
    """A WebP with a color profile before the image and, where asked, a note behind it that turns it."""
    frame = encoded("WEBP")[12:]
    note = Image.Exif()
    note[0x0112] = 6
    size = b"".join((side - 1).to_bytes(3, "little") for side in (60, 40))
    flags = bytes([0x20 | 8 * exif, 0, 0, 0])
    parts = [part(b"VP8X", flags + size), part(b"ICCP", profile), frame, part(b"EXIF", note.tobytes()) if exif else b""]
    return part(b"RIFF", b"WEBP" + b"".join(parts))


def part(name: bytes, content: bytes) -> bytes:
    return name + len(content).to_bytes(4, "little") + content + bytes(len(content) % 2)


GOOD: dict[str, Callable[[], bytes]] = {
    "rgb.jpg": lambda: encoded("JPEG"),
    "gray.jpg": lambda: encoded("JPEG", "L"),
    "cmyk.jpg": lambda: encoded("JPEG", "CMYK"),
    "progressive.jpg": lambda: encoded("JPEG", progressive=True),
    "garbage_after_the_end.jpg": lambda: encoded("JPEG") + bytes(range(200)) * 5,
    "multi_image.jpg": lambda: encoded("MPO", save_all=True, append_images=[image()]),
    "rgb.png": lambda: encoded("PNG"),
    "gray_alpha.png": lambda: encoded("PNG", "LA"),
    "rgba.png": lambda: encoded("PNG", "RGBA"),
    "palette.png": lambda: encoded("PNG", "P"),
    "16_bit.png": bytes_of_16_bit_png,
    "garbage_after_the_end.png": lambda: encoded("PNG") + b"garbage" * 20,
    "broken_image_index.jpg": jpeg_pillow_warns_of,
    "png_named.jpg": lambda: encoded("PNG"),
    "lossy.webp": lambda: encoded("WEBP"),
    "lossless.webp": lambda: encoded("WEBP", lossless=True),
    "webp_named.JPEG": lambda: encoded("WEBP"),
    "turned.webp": lambda: webp_with(b"even"),
    "odd_without_exif.webp": lambda: webp_with(b"odd", exif=False),
    "rgb.bmp": lambda: encoded("BMP"),
    "rgb.tiff": lambda: encoded("TIFF"),
    "lzw.tiff": lambda: encoded("TIFF", compression="tiff_lzw"),
    "rgb.ppm": lambda: encoded("PPM"),
    "gray.ppm": lambda: encoded("PPM", "L"),
    "16_bit.ppm": lambda: b"P5 60 40 65535\n" + bytes(4800),
    "almost_all_levels.ppm": lambda: b"P5 60 40 240\n" + bytes(2400),
    "bits.ppm": lambda: encoded("PPM", "1"),
    "rgb.jp2": lambda: encoded("JPEG2000"),
}

BAD: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty.jpg": (lambda: b"", "is empty"),
    "one_byte.jpg": (lambda: b"\xff", "is no image"),
    "page.jpg": (lambda: b"<html>404 Not Found</html>", "is no image that DALI decodes; allowed: JPEG, PNG"),
    "gif.gif": (lambda: encoded("GIF", "P"), "is a GIF, which DALI does not decode; allowed: JPEG, PNG"),
    "gif_named.jpg": (lambda: encoded("GIF", "P"), "is a GIF"),
    "avif_named.jpg": (lambda: b"\x00\x00\x00\x20ftypavif" + bytes(500), "is an AVIF"),
    "cut.jpg": (lambda: half(encoded("JPEG")), "truncated"),
    "cut_progressive.jpg": (lambda: half(encoded("JPEG", progressive=True)), "truncated"),
    "cut_multi_image.jpg": (lambda: encoded("MPO", save_all=True, append_images=[image()])[:900], "truncated"),
    "without_end.jpg": (lambda: encoded("JPEG")[:-2], "truncated"),
    "filled_up_with_zeros.jpg": (lambda: half(encoded("JPEG")) + bytes(1000), "truncated"),
    "header_only.jpg": (lambda: encoded("JPEG")[:100], "is broken"),
    "without_scan.jpg": (lambda: encoded("JPEG").split(b"\xff\xda")[0] + b"\xff\xd9", "broken"),
    "12_bit.jpg": (lambda: jpeg_with(4, b"\x0c"), "12 bits a channel"),
    "without_height.jpg": (lambda: jpeg_with(5, b"\x00\x00"), "broken header"),
    "bomb.jpg": (lambda: jpeg_with(5, b"\xff\xff\xff\xff"), "claims 65535 x 65535 pixels; allowed are 178,956,970"),
    "too_wide.jpg": (lambda: jpeg_with(5, b"\x00\x0a\xff\xff"), "is broken"),
    "bomb.png": (lambda: png_that_claims(20_000, 20_000), "claims 20000 x 20000 pixels"),
    "cut.png": (lambda: half(encoded("PNG")), "is broken"),
    "cut_by_a_byte.png": (lambda: encoded("PNG")[:-1], "ends early"),
    "cut_before_the_end.png": (lambda: encoded("PNG")[:-12], "is broken"),
    "flipped_bit.png": (lambda: encoded("PNG")[:500] + b"\x55" + encoded("PNG")[501:], "is broken"),
    "cut.webp": (lambda: encoded("WEBP")[:-4], "is broken"),
    "odd_part.webp": (lambda: webp_with(b"odd"), "of a kind that DALI does not decode (its EXIF block"),
    "10_bit.ppm": (lambda: b"P5 60 40 1023\n" + bytes(4800), "DALI does not decode (levels from 0 to 1023)"),
    "4_bit.ppm": (lambda: b"P6 60 40 15\n" + bytes(7200), "DALI does not decode (levels from 0 to 15)"),
    "cut.bmp": (lambda: encoded("BMP")[:-50], "truncated"),
    "cut.tiff": (lambda: encoded("TIFF")[:-50], "is "),
    "cut.ppm": (lambda: encoded("PPM")[:-50], "truncated"),
    "cut.jp2": (lambda: half(encoded("JPEG2000")), "is broken"),
    "float.ppm": (lambda: encoded("PPM", "F"), "of a kind that DALI does not decode (float)"),
    "32_bit.tiff": (lambda: encoded("TIFF", "I"), "of a kind that DALI does not decode (32 bit a channel)"),
    "bilevel.tiff": (lambda: encoded("TIFF", "1"), "of a kind that DALI does not decode (without bits per sample)"),
    "lzma.tiff": (lambda: encoded("TIFF", compression="lzma"), "of a kind that DALI does not decode (lzma compressed)"),
    "gray_alpha.jp2": (lambda: encoded("JPEG2000", "LA"), "of a kind that DALI does not decode (gray with alpha)"),
}


def write(folder: Path, name: str, data: bytes) -> Path:
    if name.endswith(".jp2") and not features.check("jpg_2000"):
        pytest.skip("this Pillow has no JPEG 2000")
    (folder / name).write_bytes(data)
    return folder / name


def stamp(file: Path, seconds: int) -> None:
    os.utime(file, (seconds, seconds))


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that were opened."""
    names: list[str] = []
    examine = check._examine

    def spy(file: Path) -> object:
        names.append(file.name)
        return examine(file)

    monkeypatch.setattr(check, "_examine", spy)
    return names


@pytest.mark.parametrize("name", GOOD)
def test_good_files_pass(tmp_path: Path, name: str) -> None:
    assert check_files([write(tmp_path, name, GOOD[name]())]) == []


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_reported_with_a_reason(tmp_path: Path, name: str) -> None:
    make, reason = BAD[name]
    file = write(tmp_path, name, make())
    problems = check_files([file])
    assert [problem.file for problem in problems] == [file]
    assert reason in problems[0].reason


def with_broken_pixels() -> bytes:
    """Return a PNG with right checksums whose pixels cannot be unpacked."""
    data = encoded("PNG")
    start = data.index(b"IDAT")
    length = int.from_bytes(data[start - 4 : start])
    body = b"IDAT" + data[start + 4 : start + 4 + length - 40] + bytes(40)
    return data[:start] + body + struct.pack(">I", zlib.crc32(body)) + data[start + 8 + length :]


DAMAGED: dict[str, Callable[[], bytes]] = {
    "pixels.png": with_broken_pixels,
    "tables.jpg": lambda: flip(encoded("JPEG"), range(start := encoded("JPEG").index(b"\xff\xc4") + 5, start + 8)),
    "body.webp": lambda: flip(encoded("WEBP"), range(40, 200)),
    "lossless.webp": lambda: flip(encoded("WEBP", lossless=True), range(40, 200)),
}


def flip(data: bytes, where: range) -> bytes:
    return bytes(byte ^ 0xFF if number in where else byte for number, byte in enumerate(data))


@pytest.mark.parametrize("name", DAMAGED)
def test_damage_behind_a_good_header_is_found(tmp_path: Path, name: str) -> None:
    content = DAMAGED[name]()
    assert faults.find_fault_of_header(content)[0] is None
    (problem,) = check_files([write(tmp_path, name, content), write(tmp_path, "good.jpg", encoded("JPEG"))])
    assert problem.file.name == name
    assert problem.reason.startswith("is broken: ")


@pytest.mark.parametrize("seed", range(7))
def test_what_passes_never_fails_in_dali(tmp_path: Path, seed: int) -> None:
    """Bit flips, truncations and wrong checksums in seven formats, decoded in full and cropped."""
    fn = pytest.importorskip("nvidia.dali.fn")
    pipeline_def = pytest.importorskip("nvidia.dali").pipeline_def
    form = faults.FORMATS[seed]
    rng = np.random.default_rng(seed)
    files = []
    for number in range(30):
        data = bytearray(encoded(form))
        for at in rng.integers(0, len(data), (1, 20, 0)[number % 3]):
            data[at] ^= 1 << int(rng.integers(8))
        cut = int(rng.integers(1, len(data))) if number % 3 == 2 else len(data)
        files.append(write(tmp_path, f"{number}.{'jp2' if form == 'JPEG2000' else form}", bytes(data[:cut])))
    bad = {problem.file for problem in check_files(files)}
    good = [file for file in files if file not in bad]
    assert bad

    @pipeline_def(batch_size=1, num_threads=1, device_id=None)  # type: ignore[untyped-decorator]
    def decode() -> object:
        data, _ = fn.readers.file(files=[str(file) for file in good])
        return fn.decoders.image(data, device="cpu"), fn.decoders.image_random_crop(data, device="cpu", seed=seed)

    if good:
        pipeline = decode()
        pipeline.build()
        for _ in good:
            pipeline.run()


@pytest.mark.parametrize("kind", ["pipe", "device", "socket"])
def test_what_never_ends_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "a.jpg"
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "device":
        file.symlink_to("/dev/zero")
    else:
        with socket.socket(socket.AF_UNIX) as end:
            end.bind(str(file))
    (problem,) = check_files([file])
    assert problem.reason.startswith("cannot be read: ")


def test_names_that_no_file_can_have(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("nul\0.jpg", "a" * 100_000)]
    reasons = ["cannot be read: embedded null byte", "cannot be read: File name too long"]
    assert [problem.reason for problem in check_files(files)] == reasons


def test_few_pixels_are_decoded_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "MAX_PIXELS_AT_ONCE", 5000)
    decoder, busy, most = decoding.Decoder(), 0, 0
    lock = threading.Lock()

    def decode(images: list[bytes]) -> list[bool]:
        nonlocal busy, most
        with lock:
            busy += 1
            most = max(most, busy)
        time.sleep(0.01)
        with lock:
            busy -= 1
        return [True] * len(images)

    monkeypatch.setattr(decoder, "_decode", decode)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda pixels: decoder.find_faults([b""], pixels), [2000] * 12 + [9000] * 2))
    assert most == 2


def test_an_interrupted_check_keeps_its_verdicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [write(tmp_path, f"{number}.jpg", b"") for number in range(70)]
    cache = tmp_path / "check.json"
    examine = check._examine

    def interrupt(file: Path) -> object:
        if file.name == "69.jpg":
            raise KeyboardInterrupt
        return examine(file)

    monkeypatch.setattr(check, "_examine", interrupt)
    with pytest.raises(KeyboardInterrupt):
        check_files(files, cache=cache)
    assert len(json.loads(cache.read_text())["files"]) == 64  # the first chunk


def test_dali_decodes_what_passes(tmp_path: Path) -> None:
    fn = pytest.importorskip("nvidia.dali.fn")
    pipeline_def = pytest.importorskip("nvidia.dali").pipeline_def
    files = [write(tmp_path, name, make()) for name, make in GOOD.items()]

    @pipeline_def(batch_size=len(files), num_threads=1, device_id=None)  # type: ignore[untyped-decorator]
    def decode() -> object:
        data, _ = fn.readers.file(files=[str(file) for file in files])
        return fn.decoders.image(data, device="cpu")

    pipeline = decode()
    pipeline.build()
    (images,) = pipeline.run()
    assert {tuple(shape) for shape in images.shape()} == {(40, 60, 3)}


def test_missing_and_unreadable_files(tmp_path: Path) -> None:
    (tmp_path / "folder.jpg").mkdir()
    (tmp_path / "link.jpg").symlink_to(tmp_path / "gone.jpg")
    names = ("missing.jpg", "folder.jpg", "link.jpg")
    reasons = [problem.reason for problem in check_files([tmp_path / name for name in names])]
    assert [reason.split(": ")[1] for reason in reasons] == [
        "No such file or directory",
        "Is a directory",
        "No such file or directory",
    ]


def test_order_and_repetitions_are_those_of_the_files(tmp_path: Path, judged: list[str]) -> None:
    good = write(tmp_path, "good.jpg", encoded("JPEG"))
    bad = [write(tmp_path, f"bad{i}.jpg", b"") for i in range(200)]
    files = [bad[7], good, *bad, bad[7]]
    assert [problem.file for problem in check_files(files)] == [bad[7], *bad, bad[7]]
    assert len(judged) == 201


def test_size_limit_is_inclusive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path, "a.png", encoded("PNG"))
    monkeypatch.setattr(faults, "MAX_PIXELS", 60 * 40)
    assert check_files([file]) == []
    monkeypatch.setattr(faults, "MAX_PIXELS", 60 * 40 - 1)
    assert check_files([file]) == [Problem(file, "claims 60 x 40 pixels; allowed are 2,399")]


def test_large_images_pass_without_a_warning(tmp_path: Path) -> None:
    size = (12_000, 14_000)
    assert size[0] * size[1] < MAX_PIXELS
    file = write(tmp_path, "large.jpg", jpeg_with(5, struct.pack(">HH", *size)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert check_files([file]) == []
    assert caught == []


def test_global_settings_of_pillow_are_ignored_and_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    good = write(tmp_path, "good.jpg", encoded("JPEG"))
    cut = write(tmp_path, "cut.jpg", half(encoded("JPEG")))
    filters = list(warnings.filters)
    assert [problem.file for problem in check_files([good, cut])] == [cut]
    assert (ImageFile.LOAD_TRUNCATED_IMAGES, Image.MAX_IMAGE_PIXELS) == (True, 100)
    assert list(warnings.filters) == filters


def test_cached_files_are_not_opened_again(tmp_path: Path, judged: list[str]) -> None:
    cache = tmp_path / "new" / "folder" / "check.json"
    files = [write(tmp_path, "good.jpg", encoded("JPEG")), write(tmp_path, "bad.jpg", b"")]
    first = check_files(files, cache=cache)
    assert sorted(judged) == ["bad.jpg", "good.jpg"]
    judged.clear()
    assert check_files(files, cache=cache) == first == [Problem(files[1], "is empty (0 bytes)")]
    assert judged == []


def test_cache_knows_a_file_by_any_path(tmp_path: Path, judged: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "good.jpg", encoded("JPEG"))
    check_files([tmp_path / "good.jpg"], cache=tmp_path / "check.json")
    judged.clear()
    monkeypatch.chdir(tmp_path)
    assert check_files([Path("good.jpg")], cache=tmp_path / "check.json") == []
    assert judged == []


def test_changed_files_are_checked_again(tmp_path: Path, judged: list[str]) -> None:
    cache = tmp_path / "check.json"
    files = [write(tmp_path, f"{name}.jpg", encoded("JPEG")) for name in ("same", "shorter", "newer", "gone")]
    for file in files:
        stamp(file, 1000)
    assert check_files(files, cache=cache) == []
    judged.clear()

    files[1].write_bytes(half(encoded("JPEG")))
    stamp(files[1], 1000)
    files[2].write_bytes(bytes(len(encoded("JPEG"))))
    stamp(files[2], 1001)
    files[3].unlink()
    assert [problem.file for problem in check_files(files, cache=cache)] == files[1:]
    assert sorted(judged) == ["gone.jpg", "newer.jpg", "shorter.jpg"]


def test_cache_keeps_verdicts_of_other_calls(tmp_path: Path, judged: list[str]) -> None:
    cache = tmp_path / "check.json"
    train, val = (write(tmp_path, name, encoded("JPEG")) for name in ("train.jpg", "val.jpg"))
    for files in ([train], [val], [train], [val]):
        check_files(files, cache=cache)
    assert judged == ["train.jpg", "val.jpg"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe\x00",
        b"[]",
        b"[" * 100_000,
        b'{"version": 0, "files": {}}',
        b'{"version": 1, "files": []}',
        b'{"version": 1, "files": {"FILE": 3}}',
        b'{"version": 1, "files": {"FILE": ""}}',
        b'{"version": 1, "files": {"FILE": "0"}}',
    ],
)
def test_damaged_cache_is_ignored_and_replaced(tmp_path: Path, judged: list[str], content: bytes) -> None:
    cache = tmp_path / "check.json"
    file = write(tmp_path, "bad.jpg", b"")
    cache.write_bytes(content.replace(b"FILE", str(file).encode()))
    for _ in range(2):
        assert check_files([file], cache=cache) == [Problem(file, "is empty (0 bytes)")]
    assert judged == ["bad.jpg"]


def test_cache_of_another_version_is_ignored(tmp_path: Path, judged: list[str]) -> None:
    cache = tmp_path / "check.json"
    file = write(tmp_path, "good.jpg", encoded("JPEG"))
    check_files([file], cache=cache)
    cache.write_text(json.dumps(json.loads(cache.read_text()) | {"version": 0}))
    check_files([file], cache=cache)
    assert judged == ["good.jpg", "good.jpg"]


def test_cache_is_written_atomically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache" / "check.json"
    check_files([write(tmp_path, "a.jpg", b"")], cache=cache)
    before = cache.read_bytes()

    def interrupt(source: Path, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        check_files([write(tmp_path, "b.jpg", b"")], cache=cache)
    assert cache.read_bytes() == before
    assert [path.name for path in cache.parent.iterdir()] == ["check.json"]


def test_cache_that_cannot_be_written_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    file = write(tmp_path, "bad.jpg", b"")
    (tmp_path / "file").write_text("")
    assert len(check_files([file], cache=tmp_path / "file" / "check.json")) == 1
    assert "not written" in caplog.text


def test_file_that_could_not_be_read_is_not_cached(tmp_path: Path) -> None:
    cache = tmp_path / "check.json"
    file = tmp_path / "late.jpg"
    assert len(check_files([file], cache=cache)) == 1
    write(tmp_path, "late.jpg", encoded("JPEG"))
    assert check_files([file], cache=cache) == []


def test_progress_is_shown_for_many_files_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[bool] = []

    class Spy(Progress):
        def __init__(self, *columns: ProgressColumn, disable: bool, **options: object) -> None:
            shown.append(not disable)
            super().__init__(*columns, disable=True)

    monkeypatch.setenv("FORCE_COLOR", "1")  # makes standard error a terminal in Rich's eyes
    monkeypatch.setattr(augment.support.console, "Progress", Spy)
    monkeypatch.setattr(check, "_PROGRESS_FROM", 3)
    files = [write(tmp_path, f"{i}.jpg", b"") for i in range(4)]
    cache = tmp_path / "check.json"
    check_files(files[:3], cache=cache)
    check_files(files)
    check_files(files, cache=cache)  # one is new
    assert shown == [False, True, False]


def split_of(tmp_path: Path, good: int, bad: int) -> Split:
    """Return good files of class 1 that alternate with bad ones of class 0 as long as there are any."""
    names = sorted([f"{i:02d}_good.jpg" for i in range(good)] + [f"{i:02d}_bad.jpg" for i in range(bad)])
    files = tuple(write(tmp_path, name, encoded("JPEG") if "good" in name else b"") for name in names)
    return Split(files, tuple(int("good" in name) for name in names))


def test_a_readable_split_is_returned_unchanged(tmp_path: Path) -> None:
    split = split_of(tmp_path, 3, 0)
    assert require_readable(split, "train", skip_bad=False) is split


def test_a_long_list_is_completed_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "_SHOWN", 5)
    split, cache = split_of(tmp_path, 2, 7), tmp_path / "outputs" / "check.json"
    listing = tmp_path / "outputs" / "check-bad-train.txt"
    with pytest.raises(UserError, match=rf"  and 2 more; all are listed in {listing}\n"):
        require_readable(split, "train", skip_bad=False, cache=cache)
    assert listing.read_text() == "".join(f"{tmp_path}/{i:02d}_bad.jpg is empty (0 bytes)\n" for i in range(7))


def test_bad_files_raise_with_count_reasons_and_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "_SHOWN", 5)
    with pytest.raises(UserError) as caught:
        require_readable(split_of(tmp_path, 2, 7), "train", skip_bad=False)
    first, *listed, more, advice = str(caught.value).splitlines()
    assert first == "data: 7 of 9 train images cannot be used:"
    assert listed == [f"  {tmp_path}/{i:02d}_bad.jpg is empty (0 bytes)" for i in range(5)]
    assert more == "  and 2 more"
    assert "data.skip_bad=true" in advice


def test_skip_bad_keeps_the_others_and_names_the_bad_ones(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept = require_readable(split_of(tmp_path, 3, 2), "val", skip_bad=True)
    assert [file.name for file in kept.files] == ["00_good.jpg", "01_good.jpg", "02_good.jpg"]
    assert kept.targets == (1, 1, 1)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 3
    first, *named = caplog.messages
    assert first == "data.skip_bad=true: left out 2 of 5 val images:"
    assert named == [f"  {tmp_path}/{i:02d}_bad.jpg is empty (0 bytes)" for i in range(2)]


def test_skip_bad_with_nothing_left_raises(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"2 of 2 val images cannot be used, so none is left"):
        require_readable(split_of(tmp_path, 0, 2), "val", skip_bad=True)


def test_require_readable_uses_the_cache(tmp_path: Path, judged: list[str]) -> None:
    split = split_of(tmp_path, 2, 0)
    for _ in range(2):
        require_readable(split, "train", skip_bad=False, cache=tmp_path / "check.json")
    assert len(judged) == 2
