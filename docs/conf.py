"""The site: pip install '.[docs]' && sphinx-build -W docs build."""

import inspect
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
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon"]
exclude_patterns = ["build"]
myst_heading_anchors = 3
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
html_sidebars = {"**": []}
html_theme_options = {"show_prev_next": False, "header_links_before_dropdown": 6, "navbar_align": "left"}


def public_face(package):
    """Return the reference of the names that a package exports."""
    module = import_module(package)
    lines = ["```{eval-rst}", ".. autosummary::", "   :nosignatures:", ""]
    lines += [f"   {package}.{name}" for name in module.__all__] + [""]
    for name in module.__all__:
        kind = "class" if inspect.isclass(getattr(module, name)) else "function"
        lines += [f".. auto{kind}:: {package}.{name}", *(["   :members:"] if kind == "class" else []), ""]
    return "\n".join([*lines, "```"])


def read(app, page, source):
    """Put the README, the reference and the gallery where pages say so; show files outside docs/ as text."""
    text = source[0]
    if page == "index":
        readme = re.sub(r"\]\(docs/", "](", (HERE.parent / "README.md").read_text())
        text = re.sub(r"\]\((\.assets/|[A-Z]+\.md)", r"](../\1", readme) + text
    text = re.sub(r"<!-- api (\w+) -->", lambda found: public_face(found[1]), text)
    if "<!-- gallery -->" in text:
        text = text.replace("<!-- gallery -->", draw_gallery(Path(app.outdir) / "_static" / "gallery"))
    if "<!-- schedules -->" in text:
        text = text.replace("<!-- schedules -->", draw_schedules(Path(app.outdir) / "_static" / "schedules.svg"))
    source[0] = re.sub(r"(?<!!)\[([^]]+)\]\(\.\./[^)]+\)", r"\1", text)


def setup(app):
    """Connect to Sphinx."""
    app.connect("source-read", read)
