"""Draw the figures of docs/ that show images into .assets: run this program after a change.

The photographs in docs/photos come from scikit-image: a cat (Stefan van der Walt, CC0), a cup of coffee (Rachel
Michetti, CC0) and an astronaut (NASA, public domain). Their masks, boxes and keypoints were drawn by hand.
"""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image, ImageDraw

from augment.cli.compose import compose_recipe
from augment.cli.tools import find_tools
from augment.data.sources import load_dataset
from augment.drawing.contact_sheet import SheetBlock, SheetRow, Tile, draw, lay_out
from augment.drawing.figure_style import DPI, save_figure
from augment.recipe.plan import build_plan
from augment.tools.preview.gallery import Photos, model_inputs
from trainer import train

HERE = Path(__file__).parent
ASSETS, PHOTOS = HERE.parent / ".assets", HERE / "photos"

RECIPE = [
    "aug.size=224",
    "+aug.train.random_resized_crop.area_range=[0.6,1.0]",
    "+aug.train.flip.p=0.5",
    "+aug.train.rotate={p: 1.0, angle_range: [-20, 20], border: constant}",
    "+aug.train.color_jitter.p=1.0",
]
DRAWS = 4
OPS = ("perspective", "color_jitter", "motion_blur", "erase")

# Pixels of the files in docs/photos.
SAUCER, CUP = (60, 50, 384, 308), (138, 14, 323, 166)  # bounding boxes of ellipses
BASE = [(140, 100), (172, 200), (210, 218), (258, 216), (294, 190), (322, 96)]  # the rest of the cup
PEOPLE = {"astronaut": (18, 12, 286, 400), "helmet": (220, 268, 400, 400), "shuttle": (275, 0, 365, 228)}
FACE = {"left_eye": (171, 115), "right_eye": (321, 135), "nose": (262, 243)}


def write_masks(folder):
    """Write a dataset with a mask of a cup on its saucer, and return its configuration."""
    for split in ("train", "val"):
        for kind in ("images", "masks"):
            (folder / kind / split).mkdir(parents=True)
        image = Image.open(PHOTOS / "coffee.jpg")
        image.save(folder / "images" / split / "coffee.png")
        mask = Image.new("L", image.size)
        pen = ImageDraw.Draw(mask)
        pen.ellipse(SAUCER, fill=1)
        pen.polygon(BASE, fill=2)
        pen.ellipse(CUP, fill=2)
        mask.save(folder / "masks" / split / "coffee.png")
    (folder / "classes.txt").write_text("background\nsaucer\ncup\n")
    return ["data=masks", f"data.root={folder}", f"data.classes={folder / 'classes.txt'}"]


def write_boxes(folder):
    """Write a COCO dataset with boxes of three objects, and return its configuration."""
    file = PHOTOS / "astronaut.jpg"
    width, height = Image.open(file).size
    boxes = [
        {
            "id": number,
            "image_id": 1,
            "category_id": number,
            "bbox": [left, top, right - left, bottom - top],
            "area": (right - left) * (bottom - top),
            "iscrowd": 0,
        }
        for number, (left, top, right, bottom) in enumerate(PEOPLE.values(), 1)
    ]
    annotations = {
        "images": [{"id": 1, "file_name": file.name, "width": width, "height": height}],
        "annotations": boxes,
        "categories": [{"id": number, "name": name} for number, name in enumerate(PEOPLE, 1)],
    }
    (folder / "boxes.json").write_text(json.dumps(annotations))
    files = [f"data.{split}={folder / 'boxes.json'}" for split in ("train", "val")]
    return ["data=coco", *files, f"data.images={PHOTOS}"]


def write_keypoints(folder):
    """Write a CSV file with the keypoints of a cat's face, and return its configuration."""
    head = ",".join(f"x_{name},y_{name}" for name in FACE)
    values = ",".join(f"{x},{y}" for x, y in FACE.values())
    (folder / "points.csv").write_text(f"path,{head}\nchelsea.jpg,{values}\n")
    files = [f"data.{split}={folder / 'points.csv'}" for split in ("train", "val")]
    return ["data=points", *files, f"data.root={PHOTOS}"]


def render(overrides, seed):
    """Return a photograph with its targets, and draws of the recipe."""
    recipe = compose_recipe([*overrides, *RECIPE])
    dataset = load_dataset(recipe.source())
    photos = Photos.of(dataset.train.files, dataset.train, dataset.classes)
    original = model_inputs(build_plan(recipe.aug, "val"), photos, seed=0)
    return [*original, *model_inputs(build_plan(recipe.aug, "train"), photos, seed=seed, epochs=DRAWS)]


def draw_targets():
    """Draw masks, boxes and keypoints on photographs before and after a recipe."""
    rows = []
    datasets = {"masks": (write_masks, 3), "boxes": (write_boxes, 1), "keypoints": (write_keypoints, 2)}
    for title, (write, seed) in datasets.items():
        with TemporaryDirectory() as folder:
            shots = render(write(Path(folder)), seed)
        captions = ["original", *(f"draw {number}" for number in range(1, DRAWS + 1))]
        rows.append(
            SheetRow(tuple(Tile(shot.image, (text,)) for shot, text in zip(shots, captions, strict=True)), title)
        )
    save_figure(draw(lay_out("", "", [SheetBlock("", "", tuple(rows))])), ASSETS / "targets.png", DPI)
    with Image.open(ASSETS / "targets.png") as image:
        image.thumbnail((1400, 1400))
        image.convert("RGB").save(ASSETS / "targets.jpg", quality=85)
    (ASSETS / "targets.png").unlink()


def draw_objects():
    """Train a detector on generated images for a minute, and join three of its overlays."""
    with TemporaryDirectory() as folder:
        given = ["aug=detect", "data=sample_boxes", "aug.size=96", "fit.epochs=6", f"data.dir={folder}/data"]
        run = train(*given, "fit.device=cpu", folder=f"{folder}/run").folder
        images = sorted(Path(folder, "data").glob("*/val/images/*.jpg"))[:3]
        out = Path(folder, "overlays")
        if code := find_tools("trainer")["predict"].run([str(run), *map(str, images), "--overlay", "--out", str(out)]):
            sys.exit(code)
        drawn = [Image.open(file) for file in sorted(out.iterdir())]
        widths, heights = zip(*(image.size for image in drawn), strict=True)
        sheet = Image.new("RGB", (sum(widths) + 12 * (len(drawn) - 1), max(heights)), "white")
        for number, image in enumerate(drawn):
            sheet.paste(image, (sum(widths[:number]) + 12 * number, 0))
        sheet.save(ASSETS / "objects.jpg", quality=85)


def draw_cat(tool, *arguments):
    """Run a tool on the cat's face."""
    with TemporaryDirectory() as folder:
        with Image.open(PHOTOS / "chelsea.jpg") as image:
            image.crop((80, 0, 380, 300)).save(Path(folder) / "cat.png")
        if code := find_tools("augment")[tool].run([*arguments, "--photos", folder]):
            sys.exit(code)


if __name__ == "__main__":
    draw_targets()
    draw_objects()
    draw_cat("fusion", "--out", str(ASSETS / "fusion.png"))
    draw_cat("preview", *(f"--op={op}" for op in OPS), "--out", str(ASSETS / "ops.png"), "aug.size=96")
