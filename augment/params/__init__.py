"""Typed parameters. The declaration of a parameter contains its default, allowed values, unit and help text.

Ops declare parameters in their decorators. Configuration sections declare them as dataclass fields with `setting`.
"""

from augment.params.param import DOWNLOADS, IMPORTS, MATCHES, PASSES, READS, SENDS, WRITES, Interval, Param
from augment.params.param_types import (
    CacheSize,
    Channels,
    Choice,
    Count,
    Flag,
    ImageSize,
    Number,
    OptionMap,
    Range,
    Size,
    Text,
    Texts,
    Values,
)
from augment.params.settings import (
    Nested,
    check_known,
    parse_named,
    parse_params,
    parse_settings,
    plain_value,
    setting,
    settings,
)

__all__ = [
    "DOWNLOADS",
    "IMPORTS",
    "MATCHES",
    "PASSES",
    "READS",
    "SENDS",
    "WRITES",
    "CacheSize",
    "Channels",
    "Choice",
    "Count",
    "Flag",
    "ImageSize",
    "Interval",
    "Nested",
    "Number",
    "OptionMap",
    "Param",
    "Range",
    "Size",
    "Text",
    "Texts",
    "Values",
    "check_known",
    "parse_named",
    "parse_params",
    "parse_settings",
    "plain_value",
    "setting",
    "settings",
]
