"""The site is built from docs/ without a warning, with pictures of every op and the API."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
from generated import ROOT
from PIL import Image

import augment
import trainer
from augment.recipe.op import OPS

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, as the command of CONTRIBUTING.md builds it."""
    if importlib.util.find_spec("sphinx") is None:
        pytest.skip("needs the extra docs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "-q", str(ROOT / "docs"), str(folder / "build")]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "build"


def test_every_op_has_pictures(site: Path) -> None:
    text = (site / "gallery.html").read_text()
    for name, op in OPS.items():
        assert f'id="{name}"' in text or f'id="{name.replace("_", "-")}"' in text
        pictures = re.findall(rf'src="(_static/gallery/{name}-\d+\.webp)"', text)
        assert len(pictures) >= (2 if op.kind != "policy" else 1), name
        for picture in pictures:
            with Image.open(site / picture) as image:
                assert image.size == (160, 160)


def test_the_schedules_have_a_picture(site: Path) -> None:
    assert 'src="_static/schedules.svg"' in (site / "optimizers.html").read_text()
    assert (site / "_static" / "schedules.svg").read_text().count('id="axes_') == 5


def test_every_name_is_in_the_reference(site: Path) -> None:
    text = (site / "api.html").read_text()
    for package in (augment, trainer):
        for name in package.__all__:
            assert f'id="{package.__name__}.{name}"' in text


def test_every_page_is_there_and_searched(site: Path) -> None:
    index = (site / "searchindex.js").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        assert (site / f"{page.stem}.html").is_file()
        assert f'"{page.stem}"' in index
    start = (site / "index.html").read_text()
    for link in ("finetune.html", "project/changelog.html", "configuration.html"):
        assert f'href="{link}"' in start
    assert not re.findall(r'href="([^"#:]+\.md)', start)
