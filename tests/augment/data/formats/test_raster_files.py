"""Files with any number of channels: exact round trips, and the faults of other files."""

import io
import struct
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

import imagecodecs
import numpy as np
import pydicom
import pytest
import tifffile
from image_bytes import encoded as image_bytes
from numpy.typing import NDArray
from PIL import Image
from raster_bytes import dicom, npy, npz, of_set, pixels, png, tiff

from augment.data.formats.raster_files import is_ordinary, open_raster
from augment.data.image_faults import PixelsError, strict_pillow
from augment.data.images import to_rgb

CHANNELS = (1, 2, 3, 4, 10)
DTYPES = ("uint8", "uint16", "int16", "float32")


def read(content: bytes, channels: int = 3) -> NDArray[Any]:
    opened = open_raster(content, channels)
    found = opened.load()
    assert {*opened.shape[:2]} == {*found.shape[:2]}
    assert opened.shape[2] == found.shape[2]
    assert opened.dtype == found.dtype.name
    return found


def exact(content: bytes, expected: NDArray[Any]) -> None:
    found = read(content, expected.shape[2])
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "encode",
    [
        npy,
        npz,
        tiff,
        lambda image: tiff(image, byteorder=">"),
        lambda image: tiff(image, planarconfig="separate"),
        lambda image: tiff(image, planarconfig=None),
        lambda image: tiff(image, bigtiff=True, tile=(16, 16), compression="lzw"),
        lambda image: tiff(image, compression="deflate", predictor=True),
        lambda image: tiff(image, compression="deflate", planarconfig="separate"),
    ],
    ids=["npy", "npz", "interleaved", "big_endian", "planar", "pages", "tiles", "compressed", "compressed_planar"],
)
def test_round_trips_are_exact(encode: Callable[[NDArray[Any]], bytes], dtype: str) -> None:
    for channels in CHANNELS:
        image = pixels(channels, dtype)
        if dtype == "uint8" and channels == 3 and encode is not npy and is_ordinary(encode(image)):
            continue  # DALI reads these
        exact(encode(image), image)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_16_bit_png_keeps_all_bits(channels: int) -> None:
    exact(png(pixels(channels)), pixels(channels))


def test_float64_and_float16_become_float32() -> None:
    image = pixels(2, "float32")
    exact(npy(image.astype(np.float64)), image)
    exact(npy(image.astype(np.float16)), image.astype(np.float16).astype(np.float32))


@pytest.mark.parametrize("settings", [{"imagej": True}, {"ome": True}, {}], ids=["ImageJ", "OME", "shaped"])
def test_axes_in_the_metadata(settings: dict[str, Any]) -> None:
    image, stream = pixels(3), io.BytesIO()
    tifffile.imwrite(stream, np.moveaxis(image, 2, 0), photometric="minisblack", metadata={"axes": "CYX"}, **settings)
    exact(stream.getvalue(), image)


@pytest.mark.parametrize("channels", [5, 10])
@pytest.mark.parametrize("last", [False, True])
def test_arrays_that_tifffile_saves_without_settings(channels: int, last: bool) -> None:
    """By default, tifffile saves the first axis of an array as pages, also if this axis is the height."""
    image, stream = pixels(channels, size=(24, 16)), io.BytesIO()
    tifffile.imwrite(stream, image if last else np.moveaxis(image, 2, 0))
    exact(stream.getvalue(), image)


def test_12_bit_tiff() -> None:
    """Packed by hand, as `tifffile` does not write 12 bits."""
    image = pixels(1, size=(6, 8)) % 4096
    bits = "".join(f"{value:012b}" for value in image.ravel().tolist())
    packed = int(bits, 2).to_bytes(len(bits) // 8)
    tags = {256: 8, 257: 6, 258: 12, 259: 1, 262: 1, 273: 8, 277: 1, 278: 6, 279: len(packed)}
    fields = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    header = struct.pack("<2sHI", b"II", 42, 8 + len(packed))
    exact(header + packed + struct.pack("<H", len(tags)) + fields + bytes(4), image)


def test_white_is_zero_in_some_tiffs() -> None:
    exact(tiff(pixels(1), photometric="miniswhite"), 65535 - pixels(1))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientations(orientation: int) -> None:
    """16-bit TIFF and PNG, and gray 8-bit JPEG, turn like RGB images."""
    wide = pixels(1, "uint8", size=(16, 24))[..., 0]
    exif = Image.Exif()
    exif[0x112] = orientation
    stream = io.BytesIO()
    Image.fromarray(wide).save(stream, "PNG", exif=exif)
    with Image.open(stream) as image:
        expected = np.asarray(to_rgb(image))[..., :1]
    np.testing.assert_array_equal(read(stream.getvalue(), 1), expected)
    # As 16 bits, with the same chunk.
    chunk = stream.getvalue().partition(b"eXIf")
    size = int.from_bytes(chunk[0][-4:])
    block = chunk[0][-4:] + b"eXIf" + chunk[2][: size + 4]
    for channels in (1, 3, 4):
        encoded = png(np.repeat(wide.astype(np.uint16)[..., None], channels, 2))
        found = read(encoded[:33] + block + encoded[33:], channels)
        np.testing.assert_array_equal(found, np.repeat(expected, channels, 2))
    for channels, dtype in ((1, "uint16"), (4, "uint8"), (5, "uint16"), (3, "float32")):  # Pillow opens only the first
        stored = np.repeat(wide.astype(dtype)[..., None], channels, 2)
        turned = tiff(stored, extratags=[(274, "H", 1, orientation, True)])
        np.testing.assert_array_equal(read(turned, channels), np.repeat(expected, channels, 2))


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "P", "1", "LA"])
def test_8_bit_images_are_converted(mode: str) -> None:
    image, stream = Image.fromarray(pixels(4, "uint8"), "RGBA").convert(mode), io.BytesIO()
    image.save(stream, "PNG")
    assert is_ordinary(stream.getvalue())
    for channels, wanted in ((1, "L"), (3, "RGB"), (4, "RGBA")):
        found = read(stream.getvalue(), channels)
        assert found.shape == (5, 7, channels)
        np.testing.assert_array_equal(found.squeeze(), np.asarray(image.convert(wanted)))


def test_a_tiff_keeps_its_fourth_channel() -> None:
    """A fourth channel may be near infrared instead of transparency."""
    stream, image = io.BytesIO(), pixels(4, "uint8")
    tifffile.imwrite(stream, image, photometric="rgb", extrasamples=["unspecified"])
    assert is_ordinary(stream.getvalue())
    exact(stream.getvalue(), image)


@pytest.mark.parametrize("channels", [5, 6])
def test_a_tiff_keeps_all_channels_after_red_green_and_blue(channels: int) -> None:
    """Pillow and DALI ignore them."""
    extra = ["unspecified"] * (channels - 3)
    exact(tiff(pixels(channels, "uint8"), photometric="rgb", extrasamples=extra), pixels(channels, "uint8"))


def test_dicom() -> None:
    unsigned, signed, color = pixels(1), pixels(1, "int16") // 4, pixels(3, "uint8")
    exact(dicom(unsigned[..., 0]), unsigned)
    exact(dicom(color), color)
    exact(dicom(unsigned[..., 0], PhotometricInterpretation="MONOCHROME1"), 65535 - unsigned)
    exact(dicom(signed[..., 0], RescaleSlope="2", RescaleIntercept="-1024"), 2 * signed - 1024)
    scaled = np.float32(signed.astype(np.float64) * 0.25 + 1)
    exact(dicom(signed[..., 0], RescaleSlope="0.25", RescaleIntercept="1"), scaled)
    padded = np.array([[-32768, 0], [5, 6]], np.int16)
    found = np.array([[-32768, -1024], [-1019, -1018]], np.int16)[..., None]
    exact(dicom(padded, RescaleSlope="1", RescaleIntercept="-1024", PixelPaddingValue=-32768), found)


def enhanced(image: NDArray[Any], group: str) -> bytes:
    """Return a DICOM image whose rescale slope and intercept are in a functional group."""
    transformation, groups = pydicom.Dataset(), pydicom.Dataset()
    transformation.RescaleSlope, transformation.RescaleIntercept = "2", "-1024"
    groups.PixelValueTransformationSequence = [transformation]
    return dicom(image, **{group: [groups]})


@pytest.mark.parametrize("group", ["SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence"])
def test_an_enhanced_dicom_image_is_rescaled(group: str) -> None:
    signed = pixels(1, "int16") // 4
    exact(enhanced(signed[..., 0], group), 2 * signed - 1024)


def compressed(frame: bytes, syntax: str) -> bytes:
    """Return a DICOM image of 5 x 7 bytes with an encoded frame."""
    file = pydicom.dcmread(io.BytesIO(dicom(pixels(1, "uint8")[..., 0])))
    file.file_meta.TransferSyntaxUID = pydicom.uid.UID(syntax)
    file.PixelData = pydicom.encaps.encapsulate([frame])
    file["PixelData"].VR, file["PixelData"].is_undefined_length = "OB", True
    file.save_as(stream := io.BytesIO(), enforce_file_format=True)
    return stream.getvalue()


def test_compressed_dicom() -> None:
    image = pixels(1, "uint8")
    exact(compressed(imagecodecs.jpeg2k_encode(image[..., 0], level=0), pydicom.uid.JPEG2000Lossless), image)


@pytest.mark.parametrize("dtype", ["bool", "int32", "uint32", "int8", "complex64"])
@pytest.mark.parametrize("encode", [npy, tiff])
def test_other_data_types_are_rejected(encode: Callable[[NDArray[Any]], bytes], dtype: str) -> None:
    with pytest.raises(PixelsError, match=f"^has {dtype} pixels. Save it as one of uint8, uint16, int16, float32$"):
        open_raster(encode(np.zeros((5, 7, 2), dtype)))


def bomb() -> bytes:
    """Return an archive that claims a large array."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", npy(pixels(1)))
    content = bytearray(stream.getvalue())
    start = content.index(b"PK\x01\x02") + 24
    content[start : start + 4] = b"\xff" * 4
    return bytes(content)


def otherwise_compressed() -> bytes:
    """Return an archive whose array Python would unpack at once, whatever its size."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("x.npy", npy(pixels(1)))
    return stream.getvalue()


@pytest.mark.filterwarnings("ignore:The number of bytes of pixel data")  # of pydicom
@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "is empty"),
        (b"something else" * 20, "is not an image that DALI decodes"),
        (npy(pixels())[:-1], "is broken: it ends early"),
        (npy(np.zeros((2, 2))).replace(b"(2, 2)", b"(200000, 200000)"), "is broken: it ends early"),
        (npy(np.zeros((3, 90, 90), np.uint8)), "channels last"),
        (npy(np.zeros((3, 20, 20), np.uint8)), "channels last"),
        (npy(np.zeros((24, 24, 99), np.uint8)), r"has the shape \(24, 24, 99\). Allowed: .* 1 to 64 channels"),
        (npy(np.zeros((1, 3, 9, 9), np.uint8)), r"has the shape \(1, 3, 9, 9\)"),
        (npy(np.zeros((0, 9), np.uint8)), r"has the shape \(0, 9, 1\)"),
        (npz(pixels(), pixels()), "has 2 arrays. Save each image in its own file"),
        (bomb(), "contains more than one array"),
        (otherwise_compressed(), "compressed by a method that NumPy does not use"),
        (tiff(pixels(10), compression="deflate")[:-400], "is broken"),
        (tiff(pixels(1), photometric="palette", colormap=np.zeros((3, 65536), np.uint16)), "has a palette"),
        (tiff(pixels(4), photometric="separated"), "has CMYK colors. Save it as RGB"),
        (tiff(pixels(3), photometric="cielab"), "has CIELAB colors. Save it as RGB"),
        (png(pixels(3, size=(40, 40)))[:-2000], "is broken: it ends early"),
        (png(pixels(2)), "16-bit PNG with gray and transparency"),
        (dicom(pixels(1)[..., 0])[:-9], "is broken"),
        (dicom(pixels(1)[..., 0], NumberOfFrames="3"), "has 3 frames"),
        (dicom(pixels(1)[..., 0], PhotometricInterpretation="PALETTE COLOR"), "has a palette"),
        (dicom(pixels(1)[..., 0], RescaleIntercept="-1024"), "has values from .* to .* after its rescale slope"),
        (dicom(pixels(1)[..., 0], ModalityLUTSequence=[pydicom.Dataset()]), "lookup table"),
        (dicom(pixels(1)[..., 0], BitsStored=12), "in high bits"),
        (dicom(pixels(1)[..., 0], PixelData=bytes(210)), "more pixels than its header states"),
        (compressed(image_bytes("JPEG", "L"), pydicom.uid.JPEGBaseline8Bit), "the size in its header differs"),
        (compressed(imagecodecs.jpegls_encode(pixels(1)[..., 0]), pydicom.uid.JPEGLSLossless), "pylibjpeg"),
        (dicom(pixels(1)[..., 0], Rows=60_000, Columns=60_000), "claims 60000 x 60000 pixels"),
    ],
)  # fmt: skip
def test_faults(content: bytes, fault: str) -> None:
    with pytest.raises(PixelsError, match=fault):
        read(content)


def test_the_fourth_channel_of_cmyk_is_not_transparency() -> None:
    with pytest.raises(PixelsError, match="has CMYK colors"):
        read(tiff(pixels(4, "uint8"), photometric="separated"), 4)


def test_archives_are_not_unpacked_before_their_size_is_known() -> None:
    with zipfile.ZipFile(stream := io.BytesIO(), "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("0.npy", npy(pixels(3)) + bytes(10**6))
    with pytest.raises(PixelsError, match="more than one array"):
        open_raster(stream.getvalue())


def test_an_icon_contains_no_huge_image() -> None:
    """A size in an icon's list says nothing about the image behind it."""
    claims = png(pixels(1))[:16] + struct.pack(">IIBBBBB", 20_000, 20_000, 1, 0, 0, 0, 0)
    inner = claims + struct.pack(">I", zlib.crc32(claims[12:])) + png(pixels(1))[33:]
    icon = struct.pack("<HHHBBBBHHII", 0, 1, 1, 16, 16, 0, 0, 1, 32, len(inner), 22) + inner
    with strict_pillow(), pytest.raises(PixelsError, match="claims more than the limit of 178,956,970 pixels"):
        open_raster(icon, 4)


def test_a_tiff_lists_all_its_strips() -> None:
    """tifffile would fill the others with zeros, which takes minutes for an image of millions of rows."""
    content = bytearray(tiff(pixels(5), rowsperstrip=1))
    with tifffile.TiffFile(io.BytesIO(content)) as file:
        start = file.pages[0].tags["ImageLength"].valueoffset
    content[start : start + 4] = (5_000_000).to_bytes(4, "little")
    with pytest.raises(PixelsError, match="lacks strips"):
        read(bytes(content))


def test_deflated_dicom_is_rejected() -> None:
    """pydicom would unpack all of it, of any size, to read the header."""
    file = pydicom.dcmread(io.BytesIO(dicom(pixels(1)[..., 0])))
    file.file_meta.TransferSyntaxUID = pydicom.uid.DeflatedExplicitVRLittleEndian
    file.save_as(stream := io.BytesIO(), enforce_file_format=True)
    with pytest.raises(PixelsError, match="deflated"):
        open_raster(stream.getvalue())


@pytest.mark.parametrize("shape", ["(-1, 5, 3)", "(-5, -7, 3)"])
def test_negative_sizes_are_rejected(shape: str) -> None:
    with pytest.raises(PixelsError, match="has the shape"):
        open_raster(npy(pixels(3)).replace(b"(5, 7, 3)", shape.encode()))


def test_several_axes_besides_height_and_width_are_rejected() -> None:
    stream = io.BytesIO()
    tifffile.imwrite(stream, np.zeros((2, 3, 5, 7), np.uint16), ome=True, metadata={"axes": "ZCYX"})
    with pytest.raises(PixelsError, match="has the axes CZYX of 3 x 2 x 5 x 7"):
        open_raster(stream.getvalue())


def test_a_file_of_a_set_of_ome_tiffs_has_its_own_channels() -> None:
    """tifffile would fill the channels of the other files with zeros."""
    exact(of_set(pixels(1)), pixels(1))


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_no_image_is_decoded_by_another_program(channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *_: pytest.fail("Ghostscript was started"))
    head = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 12 8\n%%EndComments\n"
    with pytest.raises(PixelsError, match="is not an image that DALI decodes"):
        read(head + b"showpage\n%%EOF\n", channels)


def test_pickles_are_not_loaded() -> None:
    stream = io.BytesIO()
    np.save(stream, np.array([[print]], object), allow_pickle=True)
    with pytest.raises(PixelsError, match="has object pixels"):
        read(stream.getvalue())


@pytest.mark.parametrize("item", [b"\xfe\xff\x00\xe0", b"\xff\xfe\xe0\x00"])
def test_dicom_has_few_items(item: bytes) -> None:
    image = dicom(pixels(1)[..., 0])
    with pytest.raises(PixelsError, match="has more than 100,000 items"):
        open_raster(image + (item + bytes(4)) * 100_001)


def test_headers_in_archives_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", b"\x93NUMPY\x02\0" + struct.pack("<I", 2**24) + bytes(2**24))
    read, lengths = zipfile.ZipExtFile.read, []

    def counted(self: zipfile.ZipExtFile, size: int | None = -1) -> bytes:
        found = read(self, size)
        lengths.append(len(found))
        return found

    monkeypatch.setattr(zipfile.ZipExtFile, "read", counted)
    with pytest.raises(PixelsError, match="is broken"):
        open_raster(stream.getvalue())
    assert sum(lengths) <= 2**16


def with_tile(content: bytes, page: int, tile: bytes, compression: str) -> bytes:
    """Replace the only strip of a page of a TIFF."""
    changed = bytearray(content)
    with tifffile.TiffFile(io.BytesIO(content)) as file:
        tags = file.pages[page].tags
    struct.pack_into("<I", changed, tags["StripOffsets"].valueoffset, len(content))
    struct.pack_into("<I", changed, tags["StripByteCounts"].valueoffset, len(tile))
    struct.pack_into("<H", changed, tags["Compression"].valueoffset, tifffile.COMPRESSION[compression])
    return bytes(changed) + tile


@pytest.mark.parametrize(
    ("compression", "encode"),
    [
        ("JPEGXL", imagecodecs.jpegxl_encode),
        ("PNG", imagecodecs.png_encode),
        ("LERC", imagecodecs.lerc_encode),
        ("JPEG2000", imagecodecs.jpeg2k_encode),
    ],
)
def test_a_tile_has_at_most_the_pixels_of_the_tiff(compression: str, encode: Callable[[Any], bytes]) -> None:
    tile = encode(np.zeros((3000, 3000), np.uint16))
    with pytest.raises(PixelsError, match=f"is broken, or compressed as {compression}"):
        open_raster(with_tile(tiff(pixels(1)), 0, tile, compression))


def test_a_tile_of_a_later_page_has_at_most_the_pixels_of_the_tiff() -> None:
    tile = imagecodecs.jpeg2k_encode(np.zeros((3000, 3000), np.uint16))
    pages = tiff(pixels(2), planarconfig=None, compression="jpeg2000")
    with pytest.raises(PixelsError, match="is broken, or compressed as JPEG2000"):
        open_raster(with_tile(pages, 1, tile, "JPEG2000"))


def test_a_tiff_may_contain_jpeg_2000_tiles() -> None:
    image = pixels(2)
    exact(tiff(image, compression="jpeg2000"), image)


def test_a_tiff_has_a_limited_number_of_pages() -> None:
    stream = io.BytesIO()
    tifffile.imwrite(stream, np.zeros((3, 8, 7), np.uint16), metadata=None, photometric="minisblack")
    content = bytearray(stream.getvalue())
    with tifffile.TiffFile(io.BytesIO(content)) as file:
        first, *_, last = (page.offset for page in file.pages)
    (tags,) = struct.unpack_from("<H", content, last)
    struct.pack_into("<I", content, last + 2 + 12 * tags, first)  # the pages form a circle
    with pytest.raises(PixelsError, match="has more than 1,000 pages"):
        open_raster(bytes(content))


def test_pages_that_are_no_rows_are_limited() -> None:
    stream = io.BytesIO()
    shape = {"description": '{"shape": [1, 1]}', "metadata": None}
    tifffile.imwrite(stream, np.zeros((1001, 1, 1), np.uint16), photometric="minisblack", **shape)
    with pytest.raises(PixelsError, match="has more than 1,000 pages"):
        open_raster(stream.getvalue())


def test_reduced_images_are_limited() -> None:
    stream = io.BytesIO()
    with tifffile.TiffWriter(stream) as file:
        file.write(np.zeros((1, 1), np.uint16), photometric="minisblack", subifds=1001)
    with pytest.raises(PixelsError, match="has more than 1,000 reduced images"):
        open_raster(stream.getvalue())


def test_reduced_images_of_reduced_images_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.BytesIO()
    with tifffile.TiffWriter(stream) as file:
        file.write(np.zeros((1, 1), np.uint16), photometric="minisblack", subifds=2)
    content, read = bytearray(stream.getvalue()), []
    page = tifffile.TiffFile(io.BytesIO(content)).pages.first
    struct.pack_into("<II", content, page.tags["SubIFDs"].valueoffset, page.offset, page.offset)
    begin = tifffile.TiffPage.__init__
    monkeypatch.setattr(tifffile.TiffPage, "__init__", lambda *given, **named: read.append(begin(*given, **named)))
    assert open_raster(bytes(content)).shape == (1, 1, 1)
    assert len(read) < 10


def test_metadata_claim_no_further_pages() -> None:
    sizes = 'SizeX="7" SizeY="5" SizeC="1" SizeZ="50" SizeT="1" DimensionOrder="XYCZT"'
    text = f'<OME><Image><Pixels {sizes}><TiffData IFD="0"/></Pixels></Image></OME>'
    exact(tiff(pixels(1), description=text), pixels(1))


def test_a_tiff_may_have_a_page_for_each_of_many_rows() -> None:
    image = np.random.default_rng(0).integers(0, 2**16, (5000, 3, 5), np.uint16)
    stream = io.BytesIO()
    tifffile.imwrite(stream, image)
    exact(stream.getvalue(), image)
