"""Sources of images. Each source is a dataclass of settings with a method that loads a dataset.

A new source needs one new module in this package, which is found and imported automatically.
"""

from importlib import import_module
from pkgutil import iter_modules

from augment.data.sources.loading import LOADED, load_dataset
from augment.data.sources.registry import SOURCES, Source, parse_data, source

__all__ = ["LOADED", "SOURCES", "Source", "load_dataset", "parse_data", "source"]


def _import_built_in() -> None:
    """Import the modules of this package, and export the class of each source, such as `Folder`."""
    for module in iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
    globals().update({cls.__name__: cls for cls in SOURCES.values()})


_import_built_in()
