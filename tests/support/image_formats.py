"""Encoded images of every layout that common writers produce, for the matrix of decoding."""

import io
import struct
import zlib
from collections.abc import Iterator
from itertools import product

import numpy as np
from PIL import Image, PngImagePlugin, features

HEIGHT, WIDTH = 24, 40

Files = Iterator[tuple[str, bytes]]


def levels(bits: int = 8, channels: int = 3) -> np.ndarray:
    """Return smooth levels that no turn leaves as they are, (HEIGHT, WIDTH, channels), up to 2**bits - 1."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    x, y = x / (WIDTH - 1), y / (HEIGHT - 1)
    planes = [x * 0.7 + y * 0.3, y, 0.2 + 0.6 * x * y, 0.5 + 0.5 * y][:channels]
    return np.rint(np.stack(planes, -1) * (2**bits - 1)).astype(np.int64)


def pack(values: np.ndarray, bits: int) -> bytes:
    """Return whole numbers, (height, row), as bits, the highest first; each row begins a byte."""
    return np.packbits(
        (values[..., None] >> np.arange(bits)[::-1] & 1).reshape(len(values), -1).astype(np.uint8), 1
    ).tobytes()


def save(image: Image.Image, form: str, **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


def pillow(mode: str = "RGB") -> Image.Image:
    return Image.fromarray(levels().astype(np.uint8)).convert(mode)


def jpegs() -> Files:
    for mode, progressive, subsampling in product(("L", "RGB", "CMYK"), (False, True), (0, 2)):
        yield (
            f"{mode} {progressive} {subsampling}.jpg",
            save(pillow(mode), "JPEG", quality=95, progressive=progressive, subsampling=subsampling),
        )
    plain = save(pillow(), "JPEG", quality=95, keep_rgb=True)
    yield "rgb.jpg", plain
    cmyk = save(pillow("CMYK"), "JPEG", quality=95)
    adobe = cmyk.index(b"Adobe")
    yield "ycck.jpg", cmyk[: adobe + 11] + b"\2" + cmyk[adobe + 12 :]
    yield "cmyk_without_adobe.jpg", cmyk[: adobe - 4] + cmyk[adobe + 12 :]
    yield "12_bits.jpg", plain.replace(b"\xff\xc0\0\x11\x08", b"\xff\xc0\0\x11\x0c")
    yield "restarts.jpg", save(pillow(), "JPEG", quality=95, restart_marker_rows=1)
    yield "several.jpg", save(pillow(), "MPO", quality=95, save_all=True, append_images=[pillow("L").convert("RGB")])


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(color: int, bits: int, *, interlaced: bool = False, extra: bytes = b"") -> bytes:
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[color]
    values = levels(bits, channels)
    passes = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]
    parts = [values[y::dy, x::dx] for y, x, dy, dx in passes] if interlaced else [values]
    rows = [b"\0" + pack(row.reshape(1, -1), bits) for part in parts if part.size for row in part]
    head = struct.pack(">IIBBBBB", WIDTH, HEIGHT, bits, color, 0, 0, interlaced)
    if color == 3:
        colors = np.random.default_rng(0).integers(0, 256, (2**bits, 3), np.uint8)
        extra = chunk(b"PLTE", colors.tobytes()) + extra
    body = chunk(b"IHDR", head) + extra + chunk(b"IDAT", zlib.compress(b"".join(rows)))
    return b"\x89PNG\r\n\x1a\n" + body + chunk(b"IEND", b"")


def pngs() -> Files:
    layouts = (
        [(0, b) for b in (1, 2, 4, 8, 16)]
        + [(c, b) for c in (2, 4, 6) for b in (8, 16)]
        + [(3, b) for b in (1, 2, 4, 8)]
    )
    for (color, bits), interlaced in product(layouts, (False, True)):
        yield f"{color} {bits} {interlaced}.png", png(color, bits, interlaced=interlaced)
        if color in (0, 2):
            clear = chunk(b"tRNS", struct.pack(">H", 1) * (1 if color == 0 else 3))
            yield f"{color} {bits} {interlaced} transparent.png", png(color, bits, interlaced=interlaced, extra=clear)
        if color == 3:
            yield (
                f"3 {bits} {interlaced} transparent.png",
                png(3, bits, interlaced=interlaced, extra=chunk(b"tRNS", b"\0\x80")),
            )
    for name, extra in {
        "gamma": chunk(b"gAMA", struct.pack(">I", 100000)),
        "srgb": chunk(b"sRGB", b"\0"),
        "background": chunk(b"bKGD", bytes(6)),
    }.items():
        yield f"{name}.png", png(2, 8, extra=extra)
    yield "animated.png", save(pillow(), "PNG", save_all=True, append_images=[pillow("L").convert("RGB")])


def bmp(
    bits: int, *, down: bool = False, masks: tuple[int, ...] = (), kind: int = 0, body: bytes = b"", header: int = 40
) -> bytes:
    colors = b""
    if bits <= 8:
        data = levels(bits, 1)[..., 0]
        colors = bytes(v for n in range(2**bits) for v in (n * 255 // (2**bits - 1), n * 100 // 255, 50, 0))
        raw = [pack(row[None], bits) for row in data]
    elif bits == 16:
        red, green, blue = np.moveaxis(levels(8), -1, 0)
        green_bits = 6 if masks and masks[1] == 0x7E0 else 5
        data = (red >> 3) << (5 + green_bits) | (green >> (8 - green_bits)) << 5 | blue >> 3
        raw = [row.astype("<u2").tobytes() for row in data]
    else:
        data = levels(8, bits // 8)[..., [2, 1, 0, 3][: bits // 8]]
        raw = [row.astype(np.uint8).tobytes() for row in data]
    rows = [row + bytes(-len(row) % 4) for row in raw]
    body = body or b"".join(rows if down else rows[::-1])
    info = struct.pack(
        "<IiiHHIIiiII", header, WIDTH, -HEIGHT if down else HEIGHT, 1, bits, kind, len(body), 2835, 2835, 0, 0
    )
    extra = b"".join(struct.pack("<I", m) for m in masks)
    if header > 40:
        extra = extra.ljust(header - 40, b"\0")
    start = 14 + len(info) + len(extra) + len(colors)
    return b"BM" + struct.pack("<IHHI", start + len(body), 0, 0, start) + info + extra + colors + body


def bmps() -> Files:
    for bits, down in product((1, 4, 8, 16, 24, 32), (False, True)):
        yield f"{bits} {down}.bmp", bmp(bits, down=down)
    yield "565.bmp", bmp(16, kind=3, masks=(0xF800, 0x7E0, 0x1F))
    yield "555.bmp", bmp(16, kind=3, masks=(0x7C00, 0x3E0, 0x1F))
    yield "masks.bmp", bmp(32, kind=3, masks=(0xFF0000, 0xFF00, 0xFF))
    yield "masks_swapped.bmp", bmp(32, kind=3, masks=(0xFF, 0xFF00, 0xFF0000))
    yield "v4_alpha.bmp", bmp(32, kind=3, masks=(0xFF0000, 0xFF00, 0xFF, 0xFF000000), header=108)
    yield "v5_alpha.bmp", bmp(32, kind=3, masks=(0xFF0000, 0xFF00, 0xFF, 0xFF000000), header=124)
    runs = b"".join(bytes((WIDTH, 10 * (HEIGHT - n))) + b"\0\0" for n in range(HEIGHT)) + b"\0\1"
    yield "rle8.bmp", bmp(8, kind=1, body=runs)
    yield (
        "rle4.bmp",
        bmp(
            4, kind=2, body=b"".join(bytes((WIDTH, 16 * (n % 16) + n % 16)) + b"\0\0" for n in range(HEIGHT)) + b"\0\1"
        ),
    )
    core = bmp(24)
    yield (
        "os2.bmp",
        b"BM"
        + struct.pack("<IHHI", len(core) - 28, 0, 0, 26)
        + struct.pack("<IHHHH", 12, WIDTH, HEIGHT, 1, 24)
        + core[54:],
    )


def pnms() -> Files:
    for top in (1, 15, 100, 254, 255, 256, 1023, 4095, 40000, 65535):
        for kind, channels in ((2, 1), (3, 3), (5, 1), (6, 3)):
            values = levels(16, channels) * top // 65535
            if kind in (2, 3):
                body = "\n".join(" ".join(map(str, row.ravel())) for row in values).encode() + b"\n"
            else:
                body = values.astype(np.uint8 if top < 256 else ">u2").tobytes()
            yield f"{kind} {top}.pnm", b"P%d\n# text\n%d %d\n%d\n" % (kind, WIDTH, HEIGHT, top) + body
    bits = levels(1, 1)[..., 0]
    yield (
        "1.pnm",
        b"P1\n%d %d\n" % (WIDTH, HEIGHT) + "\n".join(" ".join(map(str, row)) for row in bits).encode() + b"\n",
    )
    yield "4.pnm", b"P4\n%d %d\n" % (WIDTH, HEIGHT) + pack(bits, 1)
    yield "float.pfm", save(pillow("F"), "PPM")
    yield (
        "7.pam",
        b"P7\nWIDTH %d\nHEIGHT %d\nDEPTH 3\nMAXVAL 255\nTUPLTYPE RGB\nENDHDR\n" % (WIDTH, HEIGHT)
        + levels().astype(np.uint8).tobytes(),
    )


def tiff(
    bits: int, photometric: int, channels: int, sample: int = 1, *, order: str = "<", planar: bool = False,
    deflate: bool = False, tiled: bool = False, big: bool = False, extra: tuple[tuple[int, int, int | bytes], ...] = (),
) -> bytes:  # fmt: skip
    values = levels(bits if sample == 1 else 7, channels)
    height, width = 32 if tiled else HEIGHT, 48 if tiled else WIDTH
    values = np.pad(values, ((0, height - HEIGHT), (0, width - WIDTH), (0, 0)))
    planes = [values[..., c] for c in range(channels)] if planar else [values.reshape(height, -1)]
    kinds = {
        (1, 8): "u1",
        (1, 16): "u2",
        (1, 32): "u4",
        (2, 8): "i1",
        (2, 16): "i2",
        (2, 32): "i4",
        (3, 16): "f2",
        (3, 32): "f4",
        (3, 64): "f8",
    }
    if (kind := kinds.get((sample, bits))) is None:
        strips = [pack(plane, bits) for plane in planes]
    else:
        strips = [(plane / 127 if sample == 3 else plane).astype(order + kind).tobytes() for plane in planes]
    if deflate:
        strips = [zlib.compress(strip) for strip in strips]
    number, wide = (16, "Q") if big else (4, "I")
    tags: dict[int, tuple[int, list[int] | bytes]] = {
        256: (4, [WIDTH]), 257: (4, [HEIGHT]), 258: (3, [bits] * channels), 259: (3, [8 if deflate else 1]),
        262: (3, [photometric]), 277: (3, [channels]), 284: (3, [2 if planar else 1]), 339: (3, [sample] * channels),
    }  # fmt: skip
    if tiled:
        tags |= {322: (4, [width]), 323: (4, [height]), 324: (number, []), 325: (number, list(map(len, strips)))}
    else:
        tags |= {273: (number, []), 278: (4, [HEIGHT]), 279: (number, list(map(len, strips)))}
    usual = {0: 1, 1: 1, 2: 3, 3: 1, 5: 4, 6: 3, 8: 3}[photometric]
    if channels > usual:
        tags[338] = (3, [2] * (channels - usual))
    if photometric == 3:
        tags[320] = (3, [int(v) for v in np.random.default_rng(1).integers(0, 65536, 3 * 2**bits)])
    if photometric == 6:
        tags[530] = (3, [1, 1])
    tags |= {tag: (kind, [value] if isinstance(value, int) else value) for tag, kind, value in extra}
    where = 324 if tiled else 273
    head = (b"II" if order == "<" else b"MM") + (
        struct.pack(order + "HHHQ", 43, 8, 0, 16) if big else struct.pack(order + "HI", 42, 8)
    )
    inline = 8 if big else 4
    size = len(head) + (8 if big else 2) + len(tags) * (20 if big else 12) + inline
    formats = {1: "B", 3: "H", 4: "I", 16: "Q", 7: "B"}
    length = 0
    for _ in range(2):  # the second time with the places of the strips
        entries, tail = b"", b""
        for tag, (kind_, found) in sorted(tags.items()):
            given = found
            if tag == where:
                at = size + length
                given = [at + sum(map(len, strips[:n])) for n in range(len(strips))]
            data = (
                bytes(given)
                if isinstance(given, bytes)
                else struct.pack(f"{order}{len(given)}{formats[kind_]}", *given)
            )
            value = data.ljust(inline, b"\0")
            if len(data) > inline:
                value, tail = (
                    struct.pack(order + wide, size + len(tail)),
                    tail + data + b"\0" * (len(data) % 2),
                )
            entries += struct.pack(order + "HH" + wide, tag, kind_, len(given)) + value
        length = len(tail)
    count = struct.pack(order + ("Q" if big else "H"), len(tags))
    return head + count + entries + bytes(inline) + tail + b"".join(strips)


def tiffs() -> Files:
    for bits, white in product((1, 2, 4, 6, 8, 10, 12, 14, 16, 24, 32), (0, 1)):
        yield f"gray {bits} {white}.tif", tiff(bits, white, 1)
    for bits in (2, 4, 8, 12, 16, 32):
        yield f"rgb {bits}.tif", tiff(bits, 2, 3)
    for sample, bits, (photometric, channels) in product((2, 3), (8, 16, 32, 64), ((1, 1), (2, 3))):
        if (sample, bits) not in ((2, 64), (3, 8)):
            yield f"sample {sample} {bits} {channels}.tif", tiff(bits, photometric, channels, sample)
    for bits in (1, 2, 4, 8):
        yield f"palette {bits}.tif", tiff(bits, 3, 1)
    for bits in (8, 16):
        for name, photometric, channels in (
            ("cmyk", 5, 4),
            ("ycbcr", 6, 3),
            ("lab", 8, 3),
            ("gray_alpha", 1, 2),
            ("white_alpha", 0, 2),
            ("rgba", 2, 4),
        ):
            yield f"{name} {bits}.tif", tiff(bits, photometric, channels)
        for order, planar, deflate, tiled, big in product(
            "<>", (False, True), (False, True), (False, True), (False, True)
        ):
            options = {"order": order, "planar": planar, "deflate": deflate, "tiled": tiled, "big": big}
            yield f"{bits} {options}.tif", tiff(bits, 2, 3, **options)
    for channels in (1, 3, 4):
        yield (
            f"premultiplied {channels}.tif",
            tiff(8, 2 if channels > 2 else 1, channels, extra=((338, 3, 1),) if channels == 4 else ()),
        )
    yield "12 big endian.tif", tiff(12, 1, 1, order=">")
    yield "16 big endian.tif", tiff(16, 1, 1, order=">")
    yield "8 reversed bits.tif", tiff(8, 1, 1, extra=((266, 3, 2),))
    for compression in ("tiff_lzw", "packbits", "jpeg", "tiff_adobe_deflate"):
        for mode in ("L", "RGB"):
            yield f"{compression} {mode}.tif", save(pillow(mode), "TIFF", compression=compression)
    for compression in ("group3", "group4", "tiff_ccitt"):
        yield f"{compression}.tif", save(pillow("1"), "TIFF", compression=compression)
    yield "pages.tif", save(pillow(), "TIFF", save_all=True, append_images=[pillow("L")])


def others() -> Files:
    for mode, lossless in product(("RGB", "RGBA", "L"), (False, True)):
        yield f"{mode} {lossless}.webp", save(pillow(mode), "WEBP", lossless=lossless, quality=95)
    yield "animated.webp", save(pillow(), "WEBP", save_all=True, append_images=[pillow("L")], lossless=True)
    if features.check("jpg_2000"):
        for mode, lossy, raw in product(("L", "RGB", "RGBA", "LA", "I;16"), (False, True), (False, True)):
            image = Image.fromarray(levels(16, 1)[..., 0].astype(np.uint16)) if mode == "I;16" else pillow(mode)
            yield f"{mode} {lossy} {raw}.jp2", save(image, "JPEG2000", irreversible=lossy, no_jp2=raw)
    for form in ("GIF", "ICO", "TGA", "PCX", "DDS", "SGI", "AVIF", "DIB", "ICNS"):
        if form in ("AVIF",) and not features.check("avif"):
            continue
        yield form.lower(), save(pillow(), form)


def exif(kind: int = 3, value: int = 6, order: str = ">", entries: bytes = b"", count: int = 1) -> bytes:
    """Return an EXIF block with an orientation of a type, and perhaps other entries after it."""
    body = struct.pack(order + {1: "B", 3: "H", 4: "I", 7: "B", 8: "h", 9: "i", 11: "f"}[kind], value).ljust(4, b"\0")
    own = struct.pack(order + "HHI", 0x112, kind, count) + body
    start = b"MM\0*" if order == ">" else b"II*\0"
    return start + struct.pack(order + "IH", 8, 1 + len(entries) // 12) + own + entries + bytes(4)


XMP = (
    b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">'
    b'<rdf:Description rdf:about="" xmlns:tiff="http://ns.adobe.com/tiff/1.0/" tiff:Orientation="6"/>'
    b"</rdf:RDF></x:xmpmeta>"
)


def with_exif(form: str, *blocks: bytes, prefix: bytes = b"Exif\0\0") -> bytes:
    """Return an image with EXIF blocks as they are."""
    if form == "JPEG":
        data = save(pillow(), form, quality=95)
        return (
            data[:2]
            + b"".join(b"\xff\xe1" + struct.pack(">H", len(prefix + block) + 2) + prefix + block for block in blocks)
            + data[2:]
        )
    if form == "PNG":
        return png(2, 8, extra=b"".join(chunk(b"eXIf", block) for block in blocks))
    data = save(pillow(), form, quality=95, exif=exif())
    start = data.index(b"EXIF")
    data = data[:start] + b"".join(
        b"EXIF" + struct.pack("<I", len(block)) + block + bytes(len(block) % 2) for block in blocks
    )
    return b"RIFF" + struct.pack("<I", len(data) - 8) + data[8:]


def turned() -> Files:
    beyond = struct.pack(">HHII", 0x11A, 5, 1, 5000)
    foreign = struct.pack(">HHII", 0xA005, 4, 1, 5000)
    for form in ("JPEG", "PNG", "WEBP"):
        for value in range(10):
            yield f"{form} {value}", with_exif(form, exif(value=value))
        for kind, order in product((1, 3, 4, 7, 8, 9, 11), "<>"):
            yield f"{form} type {kind} {order}", with_exif(form, exif(kind, 6, order))
        yield f"{form} count", with_exif(form, exif(count=3))
        yield f"{form} twice", with_exif(form, exif(value=3), exif(value=6))
        yield f"{form} beyond", with_exif(form, exif(entries=beyond))
        yield f"{form} beyond upright", with_exif(form, exif(value=1, entries=beyond))
        yield f"{form} foreign", with_exif(form, exif(entries=foreign))
        yield f"{form} two tags", with_exif(form, exif(entries=exif(value=3)[10:22]))
        yield f"{form} prefix", with_exif(form, b"Exif\0\0" + exif())
        yield f"{form} cut", with_exif(form, exif()[:-6])
        yield f"{form} cut in the entry", with_exif(form, exif()[:-10])
        yield f"{form} fault", with_exif(form, b"MM\0*\xff\xff\xff\xff damaged")
        yield f"{form} empty", with_exif(form, b"")
    for value in range(1, 9):
        yield f"TIFF {value}", tiff(8, 2, 3, extra=((274, 3, value),))
        yield f"TIFF 16 {value}", tiff(16, 1, 1, extra=((274, 3, value),))
    yield "TIFF long", tiff(8, 2, 3, extra=((274, 4, 6),))
    yield "TIFF byte", tiff(8, 2, 3, extra=((274, 1, 6),))
    yield "TIFF XMP", tiff(8, 2, 3, extra=((700, 1, XMP),))
    for form, options in (("JPEG", {"quality": 95}), ("WEBP", {}), ("PNG", {})):
        if form != "PNG":
            yield f"{form} XMP", save(pillow(), form, xmp=XMP, **options)
            yield f"{form} XMP and EXIF", save(pillow(), form, xmp=XMP, exif=exif(value=3), **options)
    for name, text in {
        "Raw profile type exif": f"\nexif\n{len(exif()) + 6:8d}\n{(b'Exif' + bytes(2) + exif()).hex()}\n",
        "XML:com.adobe.xmp": XMP.decode(),
    }.items():
        info = PngImagePlugin.PngInfo()
        info.add_itxt(name, text) if "XML" in name else info.add_text(name, text, zip=True)
        yield f"PNG {name}", save(pillow(), "PNG", pnginfo=info)
    data = png(2, 8)
    yield "PNG late", data[:-12] + chunk(b"eXIf", exif()) + data[-12:]
    yield "PNG late and damaged", data[:-12] + chunk(b"eXIf", exif(entries=beyond)) + data[-12:]


MATRIX = {name: data for part in (jpegs, pngs, bmps, pnms, tiffs, others, turned) for name, data in part()}
