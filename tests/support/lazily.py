"""Import slow libraries when a test first uses them, so that collecting tests stays fast."""

from importlib import import_module
from typing import Any


class LazyModule:
    """A module that is imported when an attribute of it is first read."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith(
            ("__", "_pytest", "pytest")
        ):  # pytest inspects each global of a test module
            raise AttributeError(attribute)
        return getattr(import_module(self._name), attribute)
