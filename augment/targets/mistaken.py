"""What lists hold that would be taken for something else than was meant: slips, flags, several in one."""

import logging
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from augment.dataset import Task
from augment.errors import UserError
from augment.filelist import Line, Lines
from augment.targets.numerals import is_whole, read_number

logger = logging.getLogger(__name__)

# Words among numbers are slips where so many numbers have a fraction, and no more than such a share of the words, or
# one a list, are none.
_FRACTIONS, _SLIPS = 3, 0.1

# What people put between several labels, and how many times as many joined names as parts of them tell that they did:
# names of classes have blanks and commas in them too.
_JOINTS = {"|": 0.0, ";": 0.0, ",": 1.0, " ": 2.0}

# From so many pictures on, a class for each is no class.
_UNIQUE_FROM = 8

# From so many numbers on, with less than so many pictures of each, they are hardly classes.
_MANY, _FEW = 20, 5

_LISTED = 30  # columns that fit into a message

_DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+")


def refuse_slips(splits: Sequence[Lines]) -> None:
    """Refuse lists of numbers with fractions in which a few labels are none: all would be taken for names of classes.

    Raises:
        UserError: the message says which line is the first, and what it holds.
    """
    odd: list[tuple[Lines, Line, str]] = []
    fractions, count = set(), 0
    for lines in splits:
        for line in lines.lines:
            for word in line.words or ("",):
                count += 1
                number = read_number(word)
                comma = number is None and _DECIMAL_COMMA.fullmatch(word) is not None
                if number is None:
                    odd.append((lines, line, word))
                if comma or (number is not None and not is_whole(word)):
                    fractions.add(word)
    slips = [word for _, _, word in odd if not _DECIMAL_COMMA.fullmatch(word)]
    if not odd or len(fractions) < _FRACTIONS or len(slips) > max(len(splits), _SLIPS * count):
        return
    lines, line, word = odd[0]
    what = f"'{word}', which is no number" if word else "no number"
    more = f" (and {len(odd) - 1:,} more)" if len(odd) > 1 else ""
    point = "numbers, with a point for the fraction" if _DECIMAL_COMMA.fullmatch(word) else "numbers"
    raise lines.error(
        line,
        f"{line.path} has {what}{more}, where other labels are fractional numbers. "
        f"Allowed: {point}; or data.task=classify if these are names.",
    )


def refuse_unnamed_flags(train: Lines, val: Lines, task: Task | None) -> None:
    """Refuse lists with several columns of 0 and 1 of which one would be taken for the class, for its place alone.

    Raises:
        UserError: the message names the columns.
    """
    flags = [name for name in train.flags if name in val.flags]
    if len(flags) < 2 or train.flags[0] != flags[0] or task in ("classify", "regress"):
        return
    listed = ",".join(flags[:_LISTED]) + (",..." if len(flags) > _LISTED else "")
    raise UserError(
        f"{train.key}: {train.file} has {len(flags)} columns of 0 and 1, {_some(flags)}, and no column 'label'. "
        f"Allowed: data.targets=[{listed}] data.multilabel=true for labels, or data.label={flags[0]} if that "
        "column is the class."
    )


def refuse_unnamed_names(train: Lines) -> None:
    """Refuse a list in which the column that is taken for the class, for its place alone, is another in every line.

    Raises:
        UserError: the message names the column and the others.
    """
    words = [line.words for line in train.lines]
    if not train.placed or len(words) < _UNIQUE_FROM or len(set(words)) < len(words):
        return
    taken, *others = train.placed
    allowed = [f"data.label or data.targets with what to learn of {_some(others)}"] if others else []
    if all(is_whole(word) for some in words for word in some):
        allowed.append(f"data.targets=[{taken}] if it is a number to predict")
    raise UserError(
        f"{train.key}: {train.file} has no column 'label', and '{taken}', which stands where one could, is another in "
        f"each of its {len(words):,} lines. Allowed: {', '.join([*allowed, f'data.label={taken} if it is the class'])}."
    )


def refuse_flags_as_numbers(train: Lines, val: Lines) -> None:
    """Refuse chosen columns of nothing but 0 and 1 of which nobody has said that they are numbers.

    Raises:
        UserError: they may mean labels or numbers.
    """
    if {read_number(word) for lines in (train, val) for line in lines.lines for word in line.words} <= {0.0, 1.0}:
        raise UserError(
            f"data.targets: {_some(train.columns)} {'is' if len(train.columns) == 1 else 'are'} 0 and 1, which may "
            "mean labels or numbers. Allowed: data.multilabel=true or data.task=regress."
        )


def warn_of_measures(train: Lines) -> None:
    """Say in the log that classes look like numbers to predict: many whole numbers with gaps, few pictures of each."""
    words = [word for line in train.lines for word in line.words]
    different = set(words)
    if not all(map(is_whole, different)) or len(different) < _MANY or len(words) >= _FEW * len(different):
        return
    numbers = sorted(map(int, different))
    if numbers[-1] - numbers[0] >= len(numbers):
        logger.warning(
            "%d different numbers of %d pictures, from %d to %d, are taken for classes; numbers to predict need "
            "data.task=regress", len(numbers), len(words), numbers[0], numbers[-1],
        )  # fmt: skip


def warn_of_joined(splits: Iterable[Lines]) -> None:
    """Say in the log that names of classes look like several labels each, if the same parts come back in them."""
    names = {word for lines in splits for line in lines.lines for word in line.words}
    for joint, least in _JOINTS.items():
        joined = sorted(name for name in names if len(_parts(name, joint)) > 1)
        if not joined:
            continue
        counts = Counter(part for name in names for part in _parts(name, joint))
        of_joined = {part for name in joined for part in _parts(name, joint)}
        again = sum(counts[part] > 1 for part in of_joined)
        if 2 * again > len(of_joined) and len(names) > least * len(counts):
            logger.warning(
                "%d of %d classes are several words with %s between them, as '%s', and there are but %d words; several "
                "labels of a picture are separated by ; in CSV, by blanks in other lists",
                len(joined), len(names), "blanks" if joint == " " else joint, joined[0], len(counts),
            )  # fmt: skip
            return


def _parts(name: str, joint: str) -> set[str]:
    return {part.strip() for part in name.split(joint) if part.strip()}


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
