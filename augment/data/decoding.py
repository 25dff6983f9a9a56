"""Judge encoded images with DALI's CPU decoder: what it decodes here, it decodes in training, too.

It is the strictest one: DALI's decoder on the GPU turns many damaged JPEGs into pixels without an error. So the verdict
does not depend on the machine. Images are decoded by nvImageCodec, the library behind `fn.decoders.image`: it judges
each image of a batch, whereas a pipeline raises for all of them, and can crash if several JPEGs of a batch are damaged.
Outside `augment.pipeline`, only this module imports a part of DALI, and only when an image has to be judged.
"""

import os
from collections.abc import Sequence
from contextlib import nullcontext
from io import BytesIO
from threading import Lock, local
from typing import Any

from augment.data.faults import describe_damage

_LARGE = 2**26  # pixels, 0.2 GB as RGB, that only one thread decodes at a time


class Decoder:
    """Finds the images that DALI refuses; each thread that calls it gets a decoder of its own."""

    def __init__(self) -> None:
        self._own = local()
        self._large = Lock()

    def find_faults(self, images: Sequence[bytes | memoryview], pixels: int) -> list[str | None]:
        """Return for each image why it cannot be decoded, None if it can be.

        Args:
            images: encoded images with good headers.
            pixels: total number of their pixels; if there are many, the call waits for others that have many.
        """
        with self._large if pixels > _LARGE else nullcontext():
            good = self._decode(images) if images else []
            return [None if can else describe_damage(BytesIO(image)) for image, can in zip(images, good, strict=True)]

    def _decode(self, images: Sequence[bytes | memoryview]) -> list[bool]:
        """Return for each image whether it can be decoded."""
        os.environ.setdefault("PYNVIMGCODEC_VERBOSITY", "1")  # no warning for each bad image
        from nvidia import nvimgcodec as codec

        if not hasattr(self._own, "decoder"):
            backends = [codec.Backend(codec.CPU_ONLY)]
            self._own.decoder = codec.Decoder(codec.NVIMGCODEC_DEVICE_CPU_ONLY, 1, backends)
            # The parameters that `fn.decoders.image` uses.
            self._own.params = codec.DecodeParams(color_spec=codec.ColorSpec.SRGB, apply_exif_orientation=True)
        streams: dict[int, Any] = {}
        for index, image in enumerate(images):
            try:
                streams[index] = codec.CodeStream(image)
            except RuntimeError:  # its header cannot be read
                continue
        found = self._own.decoder.decode(list(streams.values()), params=self._own.params)
        decoded = {index for index, pixels in zip(streams, found, strict=True) if pixels is not None}
        return [index in decoded for index in range(len(images))]
