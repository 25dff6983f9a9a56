"""The page of the dashboard: its data, rendered into one file that needs nothing else."""

from base64 import b64encode
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from augment.support.text import as_bytes

_HERE = Path(__file__).parent


def render(data: Mapping[str, Any], version: str = "") -> str:
    """Return the page: HTML with its own scripts, which may load nothing, and may run only as they are.

    Args:
        data: what `trainer.sweeps.dashboard.content.collect` returns.
        version: the version of the data, if the page is served and asks for newer ones.
    """
    echarts, script, style = _assets()
    hashes = " ".join(f"'sha256-{b64encode(sha256(as_bytes(code)).digest()).decode()}'" for code in (echarts, script))
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {hashes}"
    return _template().render(
        title=data["title"],
        version=version,
        policy=f"{policy}; connect-src 'self'" if version else policy,
        data=embedded_json(data),
        echarts=Markup(echarts),
        script=Markup(script),
        style=Markup(style),
    )


def embedded_json(values: object) -> Markup:
    """Return plain values as JSON that is safe within a script element: ASCII without <, >, & and quotes of HTML.

    Raises:
        ValueError: a number is not finite.
    """
    return htmlsafe_json_dumps(values, allow_nan=False, separators=(",", ":"))


@cache
def _assets() -> tuple[str, str, str]:
    """Return ECharts, the script of the page, and its style."""
    page = _HERE / "assets"
    script = "\n".join(file.read_text(encoding="utf-8") for file in sorted(page.glob("*.js")))
    echarts = (_HERE / "echarts" / "echarts.min.js").read_text(encoding="utf-8")
    return echarts, f'"use strict";\n(() => {{\n{script}\n}})();', (page / "style.css").read_text(encoding="utf-8")


@cache
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(_HERE / "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.jinja")
