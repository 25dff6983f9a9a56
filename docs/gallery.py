"""The gallery of ops: what `python -m augment preview --op all` draws, as a page.

The class dark-light keeps the theme from changing the colors of the images in dark mode.
"""

import textwrap
from html import escape

from PIL import Image

from augment.cli.compose import compose_recipe
from augment.cli.help_text import example, rows
from augment.data.sources import load_dataset
from augment.recipe.op import OPS
from augment.recipe.op_kinds import KINDS
from augment.support.console import progress_bar
from augment.tools._photos import find_photos
from augment.tools.preview.gallery import Photos, ops_blocks

TILE = """<figure><img class="dark-light" src="{source}" alt="{alt}" loading="lazy" width="{width}" height="{height}">\
<figcaption>{caption}</figcaption></figure>"""


def draw_gallery(folder):
    """Draw each op on images of the built-in sample into a folder, and return the page in Markdown."""
    folder.mkdir(parents=True, exist_ok=True)
    recipe = compose_recipe(["aug.size=160"])
    photos = Photos.of(find_photos(None, lambda: load_dataset(recipe.source()).train.files, 4))
    lines: list[str] = []
    with progress_bar() as progress:
        blocks = ops_blocks(recipe.aug, list(OPS), photos, progress, seed=0)
    for block, kind in zip(blocks, KINDS, strict=True):
        lines += [f"## {block.title}", ""]
        for row, op in zip(block.rows, [op for op in OPS.values() if op.kind == kind], strict=True):
            lines += [f"### {op.name}", "", op.doc, "", '<div class="tiles">']
            for number, tile in enumerate(row.tiles):
                file = f"{op.name}-{number}.webp"
                Image.fromarray(tile.image).save(folder / file, lossless=True)
                height, width, _ = tile.image.shape
                caption = "<br>".join(map(escape, tile.caption))
                shown = {"source": f"_static/gallery/{file}", "width": width, "height": height, "caption": caption}
                lines.append(TILE.format(alt=escape(f"{op.name}: {', '.join(tile.caption)}"), **shown))
            lines += ["</div>", "", *(f"- `{line.replace(': ', '`: ', 1)}" for line in rows(op.own_params)), ""]
            step = textwrap.fill(example(op), 88, subsequent_indent="    ", break_on_hyphens=False)
            lines += ["```yaml", step, "```", ""]
    return "\n".join(lines)
