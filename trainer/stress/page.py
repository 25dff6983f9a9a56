"""Render the result of a stress test as an HTML page."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from augment.data.images import name_of
from augment.support.formatting import amount
from trainer.figures.images import data_uri, thumbnail
from trainer.figures.templates import html_template
from trainer.stress.corruptions import STRENGTHS
from trainer.stress.scores import NO_DROP, StressTest, Weakness

_WIDTH, _HEIGHT = 220.0, 90.0  # of a chart
_MAX_FAILING = 24  # maximum number of failing images on the page


def render(result: StressTest) -> str:
    """Render the page. It has no scripts and refers to no other files."""
    return html_template(Path(__file__).parent, "page.html.jinja").render(
        result=result,
        no_drop=NO_DROP,
        charts=[_chart(result, weakness) for weakness in result.weaknesses],
        highest=_upper_end(result),
        strengths=STRENGTHS,
        failed=list(_failing_images(result)),
        width=_WIDTH,
        height=_HEIGHT,
    )


def _chart(result: StressTest, weakness: Weakness) -> dict[str, Any]:
    """Return the curve of a corruption as SVG points, with its texts and example images."""
    scores = (result.clean, *weakness.scores)
    highest = _upper_end(result)
    across = [_WIDTH * position / max(1, len(scores) - 1) for position in range(len(scores))]

    def points(values: Sequence[float]) -> list[tuple[float, float]]:
        return [(x, _HEIGHT * (1 - value / highest)) for x, value in zip(across, values, strict=True)]

    bounds = [score.interval for score in scores if score.interval is not None]
    band = []
    if len(bounds) == len(scores):
        band = points([low for low, _ in bounds]) + points([high for _, high in bounds])[::-1]
    # The mildest, a middle and the severest strength.
    with_example = weakness.scores[:: max(1, (len(weakness.scores) - 1) // 2)]
    return {
        "weakness": weakness,
        "harmful": result.harms(weakness),
        "curve": points([score.value for score in scores]),
        "band": band,
        "texts": [
            f"{weakness.corruption.describe(strength)}: {result.show(score.value)}"
            for strength, score in enumerate(weakness.scores)
        ],
        "examples": [data_uri(score.example, "JPEG", 82) if score.example else "" for score in with_example],
    }


def _upper_end(result: StressTest) -> float:
    """Return the upper end of the charts, which all start at 0."""
    if result.share:
        return 1.0
    return max([result.clean.value, *(score.value for weakness in result.weaknesses for score in weakness.scores)])


def _failing_images(result: StressTest) -> Iterator[dict[str, Any]]:
    """Yield the images that fail first. `mild` has the corruptions under which they fail at the mildest strength."""
    for position, times, mild in result.first_to_fail(_MAX_FAILING):
        file = result.files[position]
        yield {"name": name_of(file), "times": amount(times, "time"), "mild": mild, "uri": thumbnail(file)}
