"""The check of images by format: what DALI decodes passes, and what is damaged is named."""

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from image_bytes import encoded, half, image, jpeg_with, write
from PIL import Image

from augment.data import image_faults
from augment.data.check import check_files
from augment.data.images import open_with_pillow, to_rgb


def jpeg_pillow_warns_of() -> bytes:
    """Return a JPEG with a broken index of further images, which Pillow passes over with a warning."""
    data, index = encoded("JPEG"), b"MPF\x00broken"
    return data[:2] + b"\xff\xe2" + struct.pack(">H", len(index) + 2) + index + data[2:]


def png_that_claims(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def tiff_with_shared_bytes() -> bytes:
    """Return a TIFF with 100 tags that all refer to the same bytes, which Pillow would read 100 times."""
    tags = [(256, 3, 1, 8), (257, 3, 1, 8), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1)]
    tags += [(273, 4, 1, 8), (277, 3, 1, 1), (278, 3, 1, 8), (279, 4, 1, 64)]
    tags += [(1000 + number, 1, 20_000, 8) for number in range(100)]
    listed = b"".join(struct.pack("<HHII", *tag) for tag in tags)
    return struct.pack("<2sHI20000xH", b"II", 42, 20_008, len(tags)) + listed + bytes(4)


def test_a_tiff_of_one_pixel_is_accepted() -> None:
    """Its values are in its list of tags. Together with the list, they would exceed the size of the file."""
    tags = [(256, 4, 1, 1), (257, 4, 1, 1), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1)]
    tags += [(273, 4, 1, 8), (277, 3, 1, 1), (278, 4, 1, 1), (279, 4, 1, 1)]
    listed = b"".join(struct.pack("<HHII", *tag) for tag in tags)
    content = struct.pack("<2sHIHH", b"II", 42, 10, 7, len(tags)) + listed + bytes(4)
    with open_with_pillow(io.BytesIO(content)) as image:
        assert image.getpixel((0, 0)) == 7


def gray(levels: np.ndarray, form: str) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(levels.reshape(40, 60)).save(stream, form)
    return stream.getvalue()


ROTATED = Image.Exif()
ROTATED[274] = 6


def animated_png(**options: object) -> bytes:
    return encoded("PNG", save_all=True, append_images=[image().rotate(180), image()], **options)


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
    "animated.png": lambda: animated_png(),
    "16_bit.png": lambda: gray(np.arange(2400, dtype=np.uint16) * 27, "PNG"),
    "garbage_after_the_end.png": lambda: encoded("PNG") + b"garbage" * 20,
    "broken_image_index.jpg": jpeg_pillow_warns_of,
    "png_named.jpg": lambda: encoded("PNG"),
    "lossy.webp": lambda: encoded("WEBP"),
    "lossless.webp": lambda: encoded("WEBP", lossless=True),
    "webp_named.JPEG": lambda: encoded("WEBP"),
    "rgb.bmp": lambda: encoded("BMP"),
    "rgb.tiff": lambda: encoded("TIFF"),
    "lzw.tiff": lambda: encoded("TIFF", compression="tiff_lzw"),
    "float.tiff": lambda: gray(np.linspace(0, 1, 2400, dtype=np.float32), "TIFF"),
    "rgb.ppm": lambda: encoded("PPM"),
    "gray.ppm": lambda: encoded("PPM", "L"),
    "16_bit.ppm": lambda: b"P5 60 40 65535\n" + bytes(4800),
    "bits.ppm": lambda: encoded("PPM", "1"),
    "rgb.jp2": lambda: encoded("JPEG2000"),
}

BAD: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty.jpg": (lambda: b"", "is empty"),
    "page.jpg": (lambda: b"<html>404 Not Found</html>", "is not an image that DALI decodes. Allowed: JPEG, PNG"),
    "gif.gif": (lambda: encoded("GIF", "P"), "is not an image that DALI decodes. Allowed: JPEG, PNG"),
    "cut.jpg": (lambda: half(encoded("JPEG")), "truncated"),
    "cut_progressive.jpg": (lambda: half(encoded("JPEG", progressive=True)), "truncated"),
    "cut_multi_image.jpg": (lambda: encoded("MPO", save_all=True, append_images=[image()])[:900], "truncated"),
    "without_end.jpg": (lambda: encoded("JPEG")[:-2], "truncated"),
    "header_only.jpg": (lambda: encoded("JPEG")[:100], "is broken"),
    "without_scan.jpg": (
        lambda: encoded("JPEG").split(b"\xff\xda")[0] + b"\xff\xd9",
        "is not an image that DALI decodes",
    ),
    "12_bit.jpg": (lambda: jpeg_with(4, b"\x0c"), "is not an image that DALI decodes"),
    "without_height.jpg": (lambda: jpeg_with(5, b"\x00\x00"), "is not an image that DALI decodes"),
    "bomb.jpg": (lambda: jpeg_with(5, b"\xff\xff\xff\xff"), "claims more than the limit of 178,956,970 pixels"),
    "too_wide.jpg": (lambda: jpeg_with(5, b"\x00\x0a\xff\xff"), "is broken"),
    "shared_bytes.tif": (tiff_with_shared_bytes, "is broken: its tags claim more bytes than the file has"),
    "bomb.png": (lambda: png_that_claims(20_000, 20_000), "claims more than the limit of 178,956,970 pixels"),
    "cut.png": (lambda: half(encoded("PNG")), "is broken"),
    "cut_before_the_end.png": (lambda: encoded("PNG")[:-12], "is broken"),
    "animated_and_rotated.png": (lambda: animated_png(exif=ROTATED), "is a PNG of mode RGB that programs decode diff"),
    "not_in_the_animation.png": (lambda: animated_png(default_image=True), "that programs decode differently"),
    "flipped_bit.png": (lambda: encoded("PNG")[:500] + b"\x55" + encoded("PNG")[501:], "is broken"),
    "cut.webp": (lambda: encoded("WEBP")[:-4], "is broken"),
    "almost_all_levels.ppm": (lambda: b"P5 60 40 240\n" + bytes(2400), "(levels from 0 to 240)"),
    "10_bit.ppm": (lambda: b"P5 60 40 1023\n" + bytes(4800), "DALI does not decode (levels from 0 to 1023)"),
    "cut.bmp": (lambda: encoded("BMP")[:-50], "truncated"),
    "cut.tiff": (lambda: encoded("TIFF")[:-50], "is "),
    "cut.ppm": (lambda: encoded("PPM")[:-50], "truncated"),
    "cut.jp2": (lambda: half(encoded("JPEG2000")), "is broken"),
    "float.ppm": (lambda: encoded("PPM", "F"), "or a PPM variant that DALI does not decode"),
    "32_bit.tiff": (lambda: encoded("TIFF", "I"), "is a TIFF variant that DALI does not decode (mode I)"),
    "gray_alpha.tiff": (lambda: encoded("TIFF", "LA"), "is a TIFF variant that DALI does not decode (mode LA)"),
    "float.tiff": (lambda: encoded("TIFF", "F"), "Scale them to 0 (black) to 1 (white)"),
    "lzma.tiff": (lambda: encoded("TIFF", compression="lzma"), "or a TIFF variant that DALI does not decode"),
    "gray_alpha.jp2": (lambda: encoded("JPEG2000", "LA"), "or a JPEG2000 variant that DALI does not decode"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_reported_with_a_reason(tmp_path: Path, name: str) -> None:
    make, reason = BAD[name]
    file = write(tmp_path, name, make())
    problems = check_files([file])
    assert list(problems) == [file]
    assert reason in problems[file]


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
    assert image_faults.find_fault_of_header(content)[0] is None
    ((file, fault),) = check_files(
        [write(tmp_path, name, content), write(tmp_path, "good.jpg", encoded("JPEG"))]
    ).items()
    assert file.name == name
    assert fault.startswith("is broken")


@pytest.mark.parametrize("seed", range(7))
def test_what_passes_never_fails_in_dali(tmp_path: Path, seed: int) -> None:
    """Bit flips, truncations and wrong checksums in seven formats, decoded in full and cropped."""
    fn = pytest.importorskip("nvidia.dali.fn")
    pipeline_def = pytest.importorskip("nvidia.dali").pipeline_def
    form = image_faults.DECODABLE_FORMATS[seed]
    rng = np.random.default_rng(seed)
    files = []
    for number in range(30):
        data = bytearray(encoded(form))
        for at in rng.integers(0, len(data), (1, 20, 0)[number % 3]):
            data[at] ^= 1 << int(rng.integers(8))
        cut = int(rng.integers(1, len(data))) if number % 3 == 2 else len(data)
        files.append(write(tmp_path, f"{number}.{'jp2' if form == 'JPEG2000' else form}", bytes(data[:cut])))
    bad = check_files(files).keys()
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


def test_good_files_pass_and_dali_decodes_them_as_pillow(tmp_path: Path) -> None:
    fn = pytest.importorskip("nvidia.dali.fn")
    pipeline_def = pytest.importorskip("nvidia.dali").pipeline_def
    files = [write(tmp_path, name, make()) for name, make in GOOD.items()]
    assert check_files(files) == {}

    @pipeline_def(batch_size=len(files), num_threads=1, device_id=None)  # type: ignore[untyped-decorator]
    def decode() -> object:
        data, _ = fn.readers.file(files=[str(file) for file in files])
        return fn.decoders.image(data, device="cpu")

    pipeline = decode()
    pipeline.build()
    (images,) = pipeline.run()
    with image_faults.strict_pillow():
        for number, file in enumerate(files):
            difference = images.at(number) - np.asarray(to_rgb(Image.open(file)), np.float32)
            assert np.abs(difference).max() <= 1, file
