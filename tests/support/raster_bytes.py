"""Encoded images with any number of channels."""

from io import BytesIO
from typing import Any

import imagecodecs
import numpy as np
import tifffile
from numpy.typing import NDArray


def pixels(channels: int = 10, dtype: str = "uint16", seed: int = 0, size: tuple[int, int] = (5, 7)) -> NDArray[Any]:
    """Return random pixels, (height, width, channels), in the default range of the data type."""
    rng = np.random.default_rng(seed)
    if dtype == "float32":
        return rng.random((*size, channels), np.float32)
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, (*size, channels), dtype, endpoint=True)


def npy(image: NDArray[Any]) -> bytes:
    stream = BytesIO()
    np.save(stream, image)
    return stream.getvalue()


def npz(*images: NDArray[Any]) -> bytes:
    stream = BytesIO()
    np.savez_compressed(stream, *images)
    return stream.getvalue()


def tiff(image: NDArray[Any], **settings: Any) -> bytes:
    """Encode an image, (height, width, channels), as TIFF, interleaved, planar or with a page per channel."""
    given: dict[str, Any] = {"photometric": "minisblack", "metadata": None, "planarconfig": "contig"} | settings
    if image.shape[2] == 1 or not given["planarconfig"]:
        del given["planarconfig"]
    if given.get("planarconfig") != "contig":
        image = np.moveaxis(image, 2, 0)
    stream = BytesIO()
    tifffile.imwrite(stream, image[0] if image.shape[0] == 1 else image, **given)
    return stream.getvalue()


def png(image: NDArray[Any]) -> bytes:
    return bytes(imagecodecs.png_encode(image.copy()))


def dicom(image: NDArray[Any], **tags: Any) -> bytes:
    """Encode integers, (height, width), as uncompressed DICOM."""
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian

    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = CTImageStorage, "1.2.3"
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    header = FileDataset("", {}, file_meta=meta, preamble=bytes(128))
    header.Rows, header.Columns = image.shape[:2]
    header.SamplesPerPixel = 1 if image.ndim == 2 else image.shape[2]
    header.PhotometricInterpretation = "MONOCHROME2" if image.ndim == 2 else "RGB"
    header.BitsAllocated = header.BitsStored = 8 * image.dtype.itemsize
    header.HighBit, header.PixelRepresentation = header.BitsStored - 1, int(image.dtype.kind == "i")
    if image.ndim == 3:
        header.PlanarConfiguration = 0
    header.PixelData = image.tobytes()
    for name, value in tags.items():
        setattr(header, name, value)
    stream = BytesIO()
    header.save_as(stream, enforce_file_format=True)
    return stream.getvalue()


def of_set(image: NDArray[Any], number: int = 0) -> bytes:
    """Return a file of a set of two OME-TIFF files, 0.tif and 1.tif, with one 16-bit channel each."""
    height, width = image.shape[:2]
    planes = [
        f'<TiffData FirstC="{c}" IFD="0" PlaneCount="1"><UUID FileName="{c}.tif">urn:uuid:{c}</UUID></TiffData>'
        for c in range(2)
    ]
    size = f'Type="uint16" SizeX="{width}" SizeY="{height}" SizeC="2" SizeZ="1" SizeT="1"'
    schema = f'xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06" UUID="urn:uuid:{number}"'
    text = f'<Pixels ID="Pixels:0" DimensionOrder="XYCZT" {size}>{"".join(planes)}</Pixels>'
    stream = BytesIO()
    description = f'<OME {schema}><Image ID="Image:0">{text}</Image></OME>'
    tifffile.imwrite(stream, image[..., 0], description=description, metadata=None)
    return stream.getvalue()
