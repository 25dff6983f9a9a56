"""What the README and docs/ hold: code blocks and commands, and photos to try them on."""

import re
import shlex
from functools import cache
from pathlib import Path

import pytest
from generated import ROOT, pages
from photos import draw_photo
from PIL import Image

TEXTS = {str(page.relative_to(ROOT)): page.read_text() for page in pages()}
QUICK = ["fit.device=cpu", "fit.threads=1", "fit.limit_batches=2", "fit.epochs=1", "aug.size=16", "fit.batch_size=4"]


def blocks(language: str) -> list[tuple[str, str]]:
    """Return the code blocks of all pages, each with its page."""
    return [
        (page, code) for page, text in TEXTS.items() for code in re.findall(rf"```{language}\n(.*?)```", text, re.S)
    ]


@cache
def commands() -> list[tuple[str, ...]]:
    """Return each `python -m` command of the pages once: package and arguments."""
    text = re.sub(r" \\\n +", " ", "\n".join(TEXTS.values()))
    lines = re.findall(r"^    (?:.* && )?python -m (.*)$", text, re.M)
    lines += re.findall(r"used by:\n# +python -m (.*)$", text, re.M)
    return list(dict.fromkeys(tuple(shlex.split(line, comments=True)) for line in lines))


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
