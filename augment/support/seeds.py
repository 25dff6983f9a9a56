"""Seeds derived from names and numbers."""

from hashlib import blake2b


def derive_seed(*parts: int | str) -> int:
    """Hash names and numbers into 128 bits, the same on every machine and in every process."""
    return int.from_bytes(blake2b(repr(parts).encode(), digest_size=16).digest(), "little")
