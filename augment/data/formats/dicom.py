"""Read DICOM images of one frame."""

import logging
from contextlib import suppress
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import UnidentifiedImageError

from augment.data.formats.opened_raster import Content, OpenedRaster
from augment.data.image_faults import PixelsError
from augment.data.images import open_with_pillow
from augment.params.pixel_format import DTYPES
from augment.support.errors import import_extra

# Do not log faults, because errors report them with the name of the file.
logging.getLogger("pydicom").setLevel(logging.CRITICAL)

# The tag of an item in a DICOM file, little- and big-endian.
_DICOM_ITEM, _MAX_DICOM_ITEMS = (b"\xfe\xff\x00\xe0", b"\xff\xfe\xe0\x00"), 100_000


def open_dicom(content: Content) -> OpenedRaster:
    """Read the header of a DICOM file."""
    pydicom = import_extra("a DICOM image", "pydicom", "dicom")
    data = bytes(content)
    if b"1.2.840.10008.1.2.1.99" in data:  # pydicom would unpack the whole file, of any size
        raise PixelsError("is a deflated DICOM file. Save it with another transfer syntax")
    if max(map(data.count, _DICOM_ITEM)) > _MAX_DICOM_ITEMS:  # a million items take a minute
        raise PixelsError(f"has more than {_MAX_DICOM_ITEMS:,} items in its header. Save it without them")
    header = pydicom.dcmread(BytesIO(data))
    _reject_dicom_variants(header)
    colors, samples, size = header.PhotometricInterpretation, header.SamplesPerPixel, (header.Rows, header.Columns)
    slope, intercept = _rescaling(header)
    dtype = f"{'int' if header.PixelRepresentation else 'uint'}{header.BitsAllocated}"
    is_rescaled = (slope, intercept) != (1, 0)
    if is_rescaled:
        dtype = "int16" if slope.is_integer() and intercept.is_integer() else "float32"  # int16: Hounsfield units

    def load() -> NDArray[Any]:
        if (syntax := header.file_meta.TransferSyntaxUID).is_compressed:
            frame = pydicom.encaps.get_frame(header.PixelData, 0, number_of_frames=1)
            with suppress(UnidentifiedImageError), open_with_pillow(BytesIO(frame)) as image:
                if image.size != size[::-1]:  # a stranger's image may be much larger
                    raise PixelsError("is broken: the size in its header differs from the size of its pixels")
        try:
            found = header.pixel_array
        except (RuntimeError, NotImplementedError) as error:
            raise PixelsError(
                f"cannot be decoded. It is damaged, or {syntax.name} needs a decoder: pip install 'pylibjpeg[all]'"
            ) from error
        if found.shape[:2] != size:
            raise PixelsError("has more pixels than its header states. Save each frame in its own file")
        is_used = found != header.get("PixelPaddingValue")
        if colors == "MONOCHROME1":
            found = (-1 if header.PixelRepresentation else 2**header.BitsStored - 1) - found
        if not is_rescaled:
            return np.asarray(found)
        values = np.asarray(found * slope + intercept)
        return values if dtype == "float32" else _clip_to_int16(values, is_used)

    return OpenedRaster((*size, samples), dtype, load)


def _reject_dicom_variants(header: Any) -> None:
    if (frames := int(header.get("NumberOfFrames") or 1)) > 1:
        raise PixelsError(f"has {frames} frames. Save each frame in its own file")
    if header.PhotometricInterpretation == "PALETTE COLOR":
        raise PixelsError("has a palette. Save it as RGB")
    if "ModalityLUTSequence" in header or header.get("HighBit", header.BitsStored - 1) != header.BitsStored - 1:
        raise PixelsError("stores its values as a lookup table or in high bits. Save it with plain values")


def _rescaling(header: Any) -> tuple[float, float]:
    """Return the rescale slope and intercept of a DICOM file, which may be nested in its functional groups."""
    groups = [*header.get("SharedFunctionalGroupsSequence", []), *header.get("PerFrameFunctionalGroupsSequence", [])]
    nested = [item for group in groups for item in group.get("PixelValueTransformationSequence", [])]
    rescale = next((item for item in (header, *nested) if "RescaleSlope" in item), header)
    return float(rescale.get("RescaleSlope") or 1), float(rescale.get("RescaleIntercept") or 0)


def _clip_to_int16(values: NDArray[Any], is_used: NDArray[np.bool_]) -> NDArray[Any]:
    """Clip padding to the range of int16, and reject used values beyond this range."""
    low, high = DTYPES["int16"]
    used = values[is_used]
    if used.min(initial=0) < low or used.max(initial=0) > high:
        raise PixelsError(
            f"has values from {used.min():g} to {used.max():g} after its rescale slope and intercept. Save it as a "
            "float32 TIFF or .npy file"
        )
    return np.asarray(values.clip(low, high))
