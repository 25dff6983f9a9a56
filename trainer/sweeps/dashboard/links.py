"""Links from the page to files of run folders."""

import os
from pathlib import Path
from urllib.parse import quote

from augment.support.text import as_bytes


def href(file: Path, base: Path) -> str:
    """Return the relative address of a file; empty if there is none, or if it is a link, which may lead anywhere.

    Args:
        file: the file.
        base: the folder of the page.
    """
    if file.is_symlink() or not file.is_file():
        return ""
    # The leading ./ keeps a name such as "javascript:..." a name.
    return "./" + quote(as_bytes(Path(os.path.relpath(file.absolute(), base.absolute())).as_posix()))
