"""What the README and docs/ say is true: generated parts, links, and names of modules."""

import re
from itertools import pairwise

import pytest
from documented import FENCED, TEXTS
from generated import ROOT, derived_parts, with_derived_parts

every_page = pytest.mark.parametrize("page", TEXTS)


def prose(text: str) -> str:
    """Return a page without code blocks, indented commands and tables."""
    lines = re.sub(r"```.*?```|<!--.*?-->", "", text, flags=re.S).splitlines()
    return "\n".join(line for line in lines if not line.startswith(("    ", "|")))


@every_page
def test_generated_parts_are_up_to_date(page: str) -> None:
    assert with_derived_parts(TEXTS[page]) == TEXTS[page], "run: python tests/support/generated.py"


def test_every_generated_part_is_on_a_page() -> None:
    for name in derived_parts():
        assert any(f"<!-- {name} -->" in text and f"<!-- /{name} -->" in text for text in TEXTS.values()), name


@every_page
def test_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", TEXTS[page]):
        path, _, anchor = target.partition("#")
        if path.startswith("http"):
            continue
        file = ((ROOT / page).parent / path).resolve() if path else ROOT / page
        assert file.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.*)$", file.read_text(), re.M)
            assert anchor in [re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles], target


@every_page
def test_no_line_of_a_paragraph_begins_like_a_list(page: str) -> None:
    """Markdown would begin a list there, as at "1. If" after "between 0 and"."""
    lines = prose(TEXTS[page]).splitlines()
    for above, line in pairwise(lines):
        if re.match(r"([-+*]|1[.)]) ", line):
            assert not above.strip() or re.match(r"[-+*] |  |\d+[.)] ", above), line


@every_page
def test_modules_that_are_named_exist(page: str) -> None:
    for path in re.findall(r"`((?:augment|trainer|tests)/[\w/.]+)`", TEXTS[page]):
        assert (ROOT / path).exists(), path


def test_every_page_is_in_the_navigation() -> None:
    for page in TEXTS.keys() - {"README.md", "docs/index.md"}:
        assert f"({page.removeprefix('docs/')})" in TEXTS["docs/index.md"], page
        assert page not in ("docs/search.md", "docs/genindex.md"), "Sphinx overwrites this page with its own"


@every_page
def test_commands_fit_on_the_site(page: str) -> None:
    lines = FENCED.sub("", TEXTS[page]).splitlines()
    assert [line for line in lines if line.startswith("    ") and len(line) > 88] == []


def test_the_test_command_is_the_one_that_ci_runs() -> None:
    assert len(re.findall(r"&& pytest$", TEXTS["README.md"], re.M)) == 1
    assert 'grep -m 1 "&& pytest$" README.md' in (ROOT / ".ci" / "run").read_text()
