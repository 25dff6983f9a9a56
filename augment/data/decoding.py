"""Judge encoded images with DALI's CPU decoder: what it decodes here, it decodes in training, too.

It is the strictest one: DALI's decoder on the GPU turns many damaged JPEGs into pixels without an error. So the verdict
does not depend on the machine. Images are decoded by nvImageCodec, the library behind `fn.decoders.image`, one by one:
a pipeline can crash if several JPEGs of a batch are damaged.
Outside `augment.pipeline`, only this module imports a part of DALI, and only when an image has to be judged.
"""

import os
from contextlib import nullcontext, suppress
from io import BytesIO
from threading import Lock, local

from augment.data.faults import describe_damage

_LARGE = 2**25  # pixels, 0.1 GB as RGB, of which only one thread decodes more at a time


class Decoder:
    """Finds the images that DALI refuses; each thread that calls it gets a decoder of its own."""

    def __init__(self) -> None:
        self._own = local()
        self._large = Lock()

    def find_fault(self, image: bytes | memoryview, pixels: int) -> str | None:
        """Return why an image cannot be decoded, None if it can be.

        Args:
            image: an encoded image with a good header.
            pixels: number of its pixels; if there are many, the call waits for another one that has many.
        """
        with self._large if pixels > _LARGE else nullcontext():
            return None if self._decodes(image) else describe_damage(BytesIO(image))

    def _decodes(self, image: bytes | memoryview) -> bool:
        os.environ.setdefault("PYNVIMGCODEC_VERBOSITY", "1")  # no warning for each bad image
        from nvidia import nvimgcodec as codec

        if not hasattr(self._own, "decoder"):
            backends = [codec.Backend(codec.CPU_ONLY)]
            self._own.decoder = codec.Decoder(codec.NVIMGCODEC_DEVICE_CPU_ONLY, 1, backends)
            # The parameters that `fn.decoders.image` uses.
            self._own.params = codec.DecodeParams(color_spec=codec.ColorSpec.SRGB, apply_exif_orientation=True)
        with suppress(RuntimeError):  # its header cannot be read
            (pixels,) = self._own.decoder.decode([codec.CodeStream(image)], params=self._own.params)
            return pixels is not None
        return False
