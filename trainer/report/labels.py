"""The page labels.html, where a user checks suspicious labels and saves corrections for data.labels."""

from base64 import b64encode
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from augment.support.files import json_line, write_atomically
from augment.support.formatting import as_bytes
from trainer.figures.label_report import LabelReport

PAGE_FILE = "labels.html"


def write_page(folder: Path, report: LabelReport, name: str) -> None:
    """Write the page of an audit into the folder of its run. The page runs only its own script, and loads nothing."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    script = environment.get_template("labels.js.jinja").render()
    policy = f"script-src 'sha256-{b64encode(sha256(as_bytes(script)).digest()).decode()}'"
    shown = {"suspects": [asdict(one) for one in report.suspects], "several": report.several, "names": report.classes}
    content = json_line(shown).replace("<", "\\u003c")  # names may contain tags
    page = environment.get_template("labels.html.jinja")
    text = page.render(name=name, report=report, content=content, script=script, policy=policy)
    write_atomically(folder / PAGE_FILE, text)
