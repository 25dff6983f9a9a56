"""The site: pip install '.[docs]' && sphinx-build -W docs build.

NOTEBOOKS=force runs the notebooks, so that their pages show what they print and draw. That takes minutes.
"""

import inspect
import os
import re
import sys
from importlib import import_module
from importlib.metadata import version as version_of
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from gallery import draw_gallery  # noqa: E402
from schedules import draw_schedules  # noqa: E402

project = "dali-trainer"
version = release = version_of(project)
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["build"]
myst_heading_anchors = 3
nb_execution_mode = os.environ.get("NOTEBOOKS", "off")
nb_execution_in_temp = True
nb_merge_streams = True
nb_execution_timeout = 900
nb_execution_raise_on_error = True
highlight_language = "none"
default_role = "code"  # of docstrings
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_use_ivar = True
maximum_signature_line_length = 80
toc_object_entries_show_parents = "hide"
suppress_warnings = ["config.cache"]

html_theme = "pydata_sphinx_theme"
html_title = project
html_css_files = ["site.css"]
html_static_path = ["static"]
html_show_sourcelink = False
templates_path = ["templates"]
html_sidebars = {"**": ["all_pages.html"]}
html_theme_options = {"navbar_center": [], "navbar_align": "left", "show_toc_level": 2, "navigation_with_keys": False}

# Pages outside docs/, copied into docs/project, which git ignores.
COPIED = {
    "CHANGELOG.md": "changelog",
    "CONTRIBUTING.md": "contributing",
    "SECURITY.md": "security",
    "tests/benchmarks/README.md": "benchmarks",
}


def copy_pages(app):
    """Copy the pages outside docs/, with links that fit their new place."""
    (HERE / "project").mkdir(exist_ok=True)
    for page, name in COPIED.items():
        text = (HERE.parent / page).read_text()
        text = re.sub(r"\]\((?:\.\./\.\./)?docs/", "](../", text)
        for other, its_name in COPIED.items():
            text = text.replace(f"]({other}", f"]({its_name}.md")
        file = HERE / "project" / f"{name}.md"
        if not file.exists() or file.read_text() != text:
            file.write_text(text)


def toctrees(index):
    """Return the navigation: the lists of pages of index.md, by heading."""
    trees = []
    for part in index.split("\n## ")[1:]:
        pages = re.findall(r"^- \[.*\]\((.*)\.(?:md|ipynb)\)$", part, re.M)
        pages = [f"project/{COPIED[f'{page[3:]}.md']}" if page.startswith("../") else page for page in pages]
        trees.append("\n".join(["```{toctree}", ":hidden:", f":caption: {part.splitlines()[0]}", "", *pages, "```"]))
    return "\n\n".join(trees)


def public_face(package):
    """Return the reference of the names that a package exports."""
    module = import_module(package)
    lines = ["```{eval-rst}"]
    for name in module.__all__:
        kind = "class" if inspect.isclass(getattr(module, name)) else "function"
        lines += [f".. auto{kind}:: {package}.{name}", *(["   :members:"] if kind == "class" else []), ""]
    return "\n".join([*lines, "```"])


def read(app, page, source):
    """Put the README, the reference and the gallery where pages say so; link the copies of pages outside docs/."""
    text = source[0]
    if page == "index":
        readme = re.sub(r"\]\(docs/", "](", (HERE.parent / "README.md").read_text())
        readme = re.sub(r",\s+\[all\s+pages\]\(index.md\)", "", readme)  # the navigation lists them
        text = re.sub(r"\]\((\.assets/|[A-Z]+\.md)", r"](../\1", readme) + toctrees(text)
    for file, name in COPIED.items():
        text = text.replace(f"](../{file}", f"](project/{name}.md")
    text = re.sub(r"<!-- api (\w+) -->", lambda found: public_face(found[1]), text)
    if "<!-- gallery -->" in text:
        text = text.replace("<!-- gallery -->", draw_gallery(Path(app.outdir) / "_static" / "gallery"))
    if "<!-- schedules -->" in text:
        text = text.replace("<!-- schedules -->", draw_schedules(Path(app.outdir) / "_static" / "schedules.svg"))
    source[0] = re.sub(r"(?<!!)\[([^]]+)\]\(\.\./(?!\w+\.md)[^)]+\)", r"\1", text)


def write_factories(app, what, name, obj, options, signature, returned):
    """Write the default of a dataclass's factory as `...`, because Sphinx cannot parse `<factory>`."""
    return signature and signature.replace("<factory>", "..."), returned


def setup(app):
    """Connect to Sphinx."""
    app.connect("autodoc-process-signature", write_factories)
    app.connect("builder-inited", copy_pages)
    app.connect("source-read", read)
