"""What people call a run: its name and its tags, free text that changes no result."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from augment.params import Text, Texts, setting
from augment.support.secrets import as_written, masked
from augment.support.text import clip

# Characters of a derived name; the rest of a long override says little.
_LONGEST = 120


@dataclass(frozen=True, kw_only=True)
class RunLabels:
    """What people call a run."""

    name: str | None = setting(
        Text(
            optional=True,
            doc="name in the report and in trackers; null: what a sweep varies, otherwise the name of the folder",
        )
    )
    tags: tuple[str, ...] = setting(Texts(default=(), doc="tags in summary.json and in trackers"))

    @property
    def written_tags(self) -> tuple[str, ...]:
        """The tags, without secrets."""
        return tuple(as_written(self.tags))


def run_name(labels: RunLabels, folder: Path, varied: Sequence[str] = ()) -> str:
    """Return the name of a run: configured, or by the overrides in which it differs from others of its sweep."""
    if labels.name is not None:
        return str(as_written(labels.name))
    return varied_name(varied) or folder.resolve().name


def varied_name(varied: Sequence[str]) -> str:
    """Return overrides as a name: "rotate.p=0.075 seed=1" for aug.train.rotate.p=0.075 and seed=1.

    A key loses its section, unless another key would then be the same.
    """
    pairs = [masked(override.lstrip("+~")).partition("=") for override in varied]
    short = {key: ".".join(key.split(".")[1:][-2:]) or key for key, _, _ in pairs}
    times = Counter(short.values())
    name = " ".join(f"{key if times[short[key]] > 1 else short[key]}{is_}{value}" for key, is_, value in pairs)
    return clip(name, _LONGEST)
