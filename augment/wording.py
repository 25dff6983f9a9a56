"""How numbers of things are written in sentences."""


def amount(count: int, one: str, several: str = "") -> str:
    """Return "1 class" or "2,000 classes".

    Args:
        count: how many.
        one: what one is called.
        several: what several are called; empty: the same with an s.
    """
    return f"{count:,} {one if count == 1 else several or one + 's'}"
