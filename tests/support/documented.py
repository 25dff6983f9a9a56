"""What the README and docs/ hold: code blocks and commands, and photos to try them on."""

import re
import shlex
from functools import cache
from itertools import groupby
from pathlib import Path
from textwrap import dedent

import pytest
from generated import ROOT, pages
from photos import draw_photo
from PIL import Image

TEXTS = {str(page.relative_to(ROOT)): page.read_text() for page in pages()}
QUICK = ["fit.device=cpu", "fit.threads=1", "fit.limit_batches=2", "fit.epochs=1", "aug.size=16", "fit.batch_size=4"]


FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.M | re.S)


def blocks(language: str) -> list[tuple[str, str]]:
    """Return the code blocks of all pages, each with its page."""
    found = [(page, *fence) for page, text in TEXTS.items() for fence in FENCED.findall(text)]
    return [(page, dedent(code)) for page, _, own, code in found if own == language]


# Inline code that begins with one of these words, and has another word, is a command.
PROGRAMS = "conda|docker|git|hf|kubectl|mlflow|pip|pytest|python|python3|sky|srun|tensorboard|torchrun|wandb"


@cache
def shell_commands() -> list[tuple[str, ...]]:
    """Return the words of each shell command of the pages once.

    These are indented lines, lines of `sh` blocks, comments in code that begin with `python`, and inline code. Pages
    show the output of a command, and anything else that is not a command, in fenced blocks.
    """
    lines = []
    for text in TEXTS.values():
        text = re.sub(r" \\\n *", " ", text)
        for _, language, code in FENCED.findall(text):
            shell = language in ("sh", "bash", "console")
            lines += re.findall(r"^(?:\$ )?(\S.*)$" if shell else r"^ *# +(python .*)$", code, re.M)
        text = FENCED.sub("", text)
        lines += re.findall(r"^ {4,}(.*)$", text, re.M)
        inline = re.findall(r"`([^`]+)`", re.sub(r"^ {4,}.*$", "", text, flags=re.M))
        lines += [code for code in inline if re.match(rf"({PROGRAMS})\s+\S", code) and not is_name(code)]
    return list(dict.fromkeys(command for line in lines for command in split_line(line)))


def is_name(code: str) -> bool:
    """Return whether inline code only names a package or its tool, as `python -m augment plan` does."""
    return bool(re.fullmatch(r"python\s+-m\s+(trainer|augment)(\s+[\w.]+)?", code))


def split_line(line: str) -> list[tuple[str, ...]]:
    """Return the commands in a line, as in `A && B`, `A | B`, `A <(B)` and `X=$(A)`."""
    words = shlex.shlex(line, posix=True, punctuation_chars=True)
    words.whitespace_split = True
    groups = groupby(words, lambda word: set(word) <= set("();<>|&"))
    return [tuple(group) for is_mark, group in groups if not is_mark]


@cache
def commands() -> list[tuple[str, ...]]:
    """Return the package and the arguments of each command that starts `trainer` or `augment`, also by torchrun."""
    found = []
    for words in shell_commands():
        for package in ("trainer", "augment"):
            if package in words and words[words.index(package) - 1] == "-m":
                found.append(words[words.index(package) :])
    return list(dict.fromkeys(found))


@pytest.fixture(scope="module")
def photos_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """DIR/{train,val}/<class>/*, two classes."""
    root = tmp_path_factory.mktemp("photos")
    for split, count in (("train", 8), ("val", 4)):
        for seed in range(count):
            folder = root / split / ("cat", "dog")[seed % 2]
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(draw_photo(48, 40, len(split) * 10 + seed)).save(folder / f"{seed}.jpg")
    return root
