"""Templates of HTML pages."""

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from augment.support.formatting import percent


def html_template(folder: Path, name: str) -> Template:
    """Return a template that escapes all values, because names of classes and files may contain markup."""
    environment = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["percent"] = percent
    return environment.get_template(name)
