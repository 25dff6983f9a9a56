"""Where images come from: each source is declared once, as a dataclass of its settings that loads a dataset.

The modules of this package are found, not listed: one that declares a source is all that a new source needs.
"""

from importlib import import_module
from pkgutil import iter_modules

from augment.data.sources.loading import LOADED, LeftOut, load_dataset
from augment.data.sources.registry import SOURCES, Source, parse_data, source

__all__ = ["LOADED", "SOURCES", "LeftOut", "Source", "load_dataset", "parse_data", "source"]


def _import_built_in() -> None:
    """Import the modules of this package; each source is here by the name of its class, too, as `Folder`."""
    for module in iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
    globals().update({cls.__name__: cls for cls in SOURCES.values()})


_import_built_in()
