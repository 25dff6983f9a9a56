"""Seeds derived from names and numbers."""

from hashlib import blake2b
from operator import index


def derive_seed(*parts: int | str) -> int:
    """Hash names and numbers to a 128-bit seed, the same on every machine and in every process."""
    # NumPy integers have a different repr.
    plain = tuple(str(part) if isinstance(part, str) else index(part) for part in parts)
    return int.from_bytes(blake2b(repr(plain).encode(), digest_size=16).digest(), "little")
