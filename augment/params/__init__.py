"""Typed parameters: one declaration provides the default, allowed values, unit, help text and error message.

An op declares its parameters in its decorator, a configuration section as dataclass fields made by `setting`.
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
