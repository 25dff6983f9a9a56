"""Draw the diagrams of docs/ as SVG into .assets: run this program after a change."""

from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

ASSETS = Path(__file__).parents[1] / ".assets"
BLUE, GRAY, GREEN, ORANGE = "#dbe8f6", "#eceff3", "#dff0e3", "#fbe9d7"


def draw_boxes(name, size, boxes, arrows, labels=()):
    """Write a diagram.

    Args:
        name: of the file.
        size: width and height of the drawing, in units of the coordinates.
        boxes: name: (x, y, width, height, color, title, text).
        arrows: pairs of names; they go from a right to a left edge, or up or down.
        labels: (x, y, text) of further texts.
    """
    figure = Figure(figsize=(size[0] / 12, size[1] / 12))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, size[0]), ylim=(size[1], 0))
    axes.axis("off")
    axes.add_patch(FancyBboxPatch((0, 0), *size, boxstyle="square,pad=0", color="white", zorder=-1))
    for x, y, width, height, color, title, text in boxes.values():
        style = "round,pad=0,rounding_size=1"
        axes.add_patch(FancyBboxPatch((x, y), width, height, boxstyle=style, fc=color, ec="#5b6b7f", lw=0.8))
        middle = x + width / 2
        axes.text(middle, y + (2.6 if text else height / 2), title, ha="center", va="center", size=10, weight="bold")
        axes.text(middle, y + 4.6, text, ha="center", va="top", size=8.5, linespacing=1.35)
    for start, end in arrows:
        x, y, width, height, *_ = boxes[start]
        to_x, to_y, to_width, *_ = boxes[end]
        to_height = boxes[end][3]
        across = to_x >= x + width
        down = to_y > y
        tail = (x + width, y + height / 2) if across else (x + width / 2, y + height * down)
        head = (to_x, to_y + to_height / 2) if across else (to_x + to_width / 2, to_y + to_height * (not down))
        axes.annotate("", head, tail, arrowprops={"arrowstyle": "-|>", "color": "#5b6b7f", "lw": 1.2})
    for x, y, text in labels:
        axes.text(x, y, text, ha="center", va="center", size=7.8, color="#1d2733")
    with rc_context({"svg.hashsalt": name, "svg.fonttype": "path"}):
        figure.savefig(ASSETS / f"{name}.svg", metadata={"Date": None})


def draw_concepts():
    """Draw how a configuration and images become a model."""
    boxes = {
        "yaml": (2, 3, 20, 12, GRAY, "configuration", "YAML and command line\ndata, aug, model, fit"),
        "source": (2, 23, 20, 12, GRAY, "source", "folder, CSV, shards,\nyour own Dataset"),
        "plan": (30, 3, 20, 12, BLUE, "plan", "the compiled recipe:\none warp, one matrix"),
        "loader": (30, 23, 20, 12, BLUE, "loader", "decodes and augments:\nbatches on the device"),
        "learner": (58, 23, 20, 12, GREEN, "learner", "training loop\nand callbacks"),
        "run": (86, 23, 20, 12, ORANGE, "run folder", "best.pt, metrics,\nreport.html"),
        "use": (86, 3, 20, 12, ORANGE, "use it", "evaluate, predict,\nexport, compare"),
    }
    arrows = [
        ("yaml", "plan"),
        ("source", "loader"),
        ("plan", "loader"),
        ("loader", "learner"),
        ("learner", "run"),
        ("run", "use"),
    ]
    draw_boxes(
        "concepts",
        (108, 41),
        boxes,
        arrows,
        [(40, 38.5, "package augment"), (68, 38.5, "package trainer"), (101.5, 19, "tools")],
    )


def draw_fusion():
    """Draw which steps of a recipe fuse."""
    steps = ["random_resized_crop", "flip", "warp", "rotate", "brightness", "contrast", "saturation", "gaussian_blur"]
    colors = [GRAY, BLUE, BLUE, BLUE, GREEN, GREEN, GREEN, ORANGE]
    boxes = {name: (2 + 16 * i, 3, 14.5, 5, colors[i], "", "") for i, name in enumerate(steps)}
    labels = [(9.25 + 16 * i, 5.5, name) for i, name in enumerate(steps)]
    stages = {"crop": (0, 1, GRAY), "one warp": (1, 3, BLUE), "one color matrix": (4, 3, GREEN), "blur": (7, 1, ORANGE)}
    for title, (first, count, color) in stages.items():
        boxes[title] = (2 + 16 * first, 17, 16 * count - 1.5, 6, color, title, "")
    arrows = [("random_resized_crop", "crop"), ("gaussian_blur", "blur")]
    arrows += [(step, "one warp") for step in steps[1:4]] + [(step, "one color matrix") for step in steps[4:7]]
    draw_boxes("fused_steps", (132, 26), boxes, arrows, [*labels])


def draw_layers():
    """Draw the packages and their layers."""
    trainer = [
        "cli",
        "stress",
        "tools, report, sweeps",
        "predictions",
        "run",
        "callbacks",
        "loop, figures",
        "optim, models, tasks",
    ]
    augment = ["tools", "cli, pipeline (DALI)", "recipe, data", "params, drawing", "support"]
    boxes = {f"trainer {name}": (4, 8 + 6 * i, 34, 5, GREEN, name, "") for i, name in enumerate(trainer)}
    boxes |= {f"augment {name}": (54, 8 + 6 * i, 34, 5, BLUE, name, "") for i, name in enumerate(augment)}
    labels = [
        (21, 4.5, "trainer"),
        (71, 4.5, "augment"),
        (46, 24, "trainer\nimports\naugment"),
        (71, 42, "Imports only go down."),
    ]
    draw_boxes("layers", (92, 59), boxes, [], labels)


if __name__ == "__main__":
    draw_concepts()
    draw_fusion()
    draw_layers()
