"""Typed parameters: one declaration gives default, allowed values, unit, help text and error message.

Ops declare theirs in the decorator of the op, configuration sections as dataclass fields made by `setting`.
"""

from augment.params.kinds import CacheSize, Channels, Choice, Count, Flag, Number, Options, Text, Texts
from augment.params.param import Interval, Param
from augment.params.ranges import Range, Values
from augment.params.settings import parse_named, parse_params, parse_settings, setting, settings

__all__ = [
    "CacheSize",
    "Channels",
    "Choice",
    "Count",
    "Flag",
    "Interval",
    "Number",
    "Options",
    "Param",
    "Range",
    "Text",
    "Texts",
    "Values",
    "parse_named",
    "parse_params",
    "parse_settings",
    "setting",
    "settings",
]
