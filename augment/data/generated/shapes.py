"""The ten kinds of things in the sample dataset. Each is a list of colored polygons with random proportions."""

from collections.abc import Callable

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Points = NDArray[np.float64]
# Hue, lightness and saturation, each in 0..1.
Tone = tuple[float, float, float]
# A tone and a polygon, (n, 2), with x to the right and y down in about -1..1.
Part = tuple[Tone, Points]

AMBER, BLACK, BRICK, BROWN = (0.14, 0.55, 0.95), (0.7, 0.12, 0.2), (0.02, 0.4, 0.7), (0.07, 0.28, 0.6)
BLUE, CREAM, CRIMSON, GLASS = (0.62, 0.5, 0.85), (0.12, 0.88, 0.55), (0.97, 0.48, 0.9), (0.53, 0.85, 0.5)
GREEN, NAVY, ORANGE, PINK = (0.33, 0.38, 0.7), (0.6, 0.3, 0.5), (0.07, 0.52, 0.95), (0.88, 0.6, 0.85)
RED, ROSE, SAND, TEAL = (0.0, 0.45, 0.85), (0.97, 0.8, 0.8), (0.11, 0.75, 0.6), (0.48, 0.45, 0.8)


def ellipse(x: float, y: float, rx: float, ry: float, start: float = 0, stop: float = 360) -> Points:
    """Return an ellipse, or its arc between two angles in degrees, measured clockwise from the right."""
    t = np.radians(np.linspace(start, stop, 40))
    return np.stack([x + rx * np.cos(t), y + ry * np.sin(t)], axis=1)


def polygon(*corners: tuple[float, float]) -> Points:
    return np.array(corners, dtype=np.float64)


def box(left: float, top: float, right: float, bottom: float) -> Points:
    return polygon((left, top), (right, top), (right, bottom), (left, bottom))


def boat(rng: Generator) -> list[Part]:
    """Hull, mast and one or two sails."""
    mast, deck, flare = rng.uniform(-0.15, 0.15), rng.uniform(0.3, 0.5), rng.uniform(0.2, 0.4)
    parts = [
        (RED, polygon((-0.95, deck), (0.95, deck), (0.95 - flare, 0.9), (-0.95 + flare, 0.9))),
        (BROWN, box(mast - 0.04, -0.95, mast + 0.04, deck)),
        (CREAM, polygon((mast + 0.08, -0.9), (mast + 0.08, deck - 0.1), (0.8, deck - 0.1))),
    ]
    if rng.random() < 0.7:
        parts.append((CREAM, polygon((mast - 0.08, -0.7), (mast - 0.08, deck - 0.1), (-0.7, deck - 0.1))))
    return parts


def car(rng: Generator) -> list[Part]:
    """Cabin with two windows, body and two wheels."""
    roof, front, back = rng.uniform(-0.6, -0.4), rng.uniform(0.2, 0.5), rng.uniform(-0.7, -0.4)
    top, pillar = roof + 0.1, (back + front) / 2
    parts = [
        (BLUE, polygon((back, roof), (front, roof), (front + 0.3, 0), (back - 0.2, 0))),
        (GLASS, polygon((back + 0.08, top), (front - 0.04, top), (front + 0.16, -0.05), (back - 0.02, -0.05))),
        (BLUE, box(pillar - 0.05, roof, pillar + 0.05, 0)),
        (BLUE, polygon((-0.95, -0.02), (0.75, -0.02), (0.98, 0.12), (0.98, 0.42), (-0.95, 0.42))),
    ]
    for x in (-0.52, 0.52):
        parts += [(BLACK, ellipse(x, 0.44, 0.24, 0.24)), (GLASS, ellipse(x, 0.44, 0.12, 0.12))]
    return parts


def cup(rng: Generator) -> list[Part]:
    """A tapered body with a handle, seen a little from above."""
    foot, rim, reach = rng.uniform(0.35, 0.55), rng.uniform(0.55, 0.65), rng.uniform(0.3, 0.4)
    handle = np.concatenate([ellipse(0.3, 0.05, reach, 0.42, -90, 90), ellipse(0.3, 0.05, reach - 0.14, 0.28, 90, -90)])
    body = np.concatenate([polygon((-rim - 0.2, -0.6), (rim - 0.2, -0.6)), ellipse(-0.2, 0.7, foot, 0.14, 0, 180)])
    return [(TEAL, handle), (TEAL, body), (BROWN, ellipse(-0.2, -0.6, rim, rng.uniform(0.1, 0.2)))]


def fish(rng: Generator) -> list[Part]:
    """Tail, fins, body and eye."""
    girth, fork = rng.uniform(0.35, 0.5), rng.uniform(0.35, 0.55)
    return [
        (BRICK, polygon((-0.4, 0), (-0.98, -fork), (-0.82, 0), (-0.98, fork))),
        (BRICK, polygon((-0.2, -girth + 0.1), (0.05, -girth - 0.25), (0.4, -girth + 0.12))),
        (ORANGE, ellipse(0.2, 0, 0.75, girth)),
        (BRICK, polygon((-0.05, 0.08), (0.2, 0.14), (-0.08, 0.3))),
        (BLACK, ellipse(0.62, -0.1, 0.09, 0.09)),
    ]


def flower(rng: Generator) -> list[Part]:
    """Five to eight petals around a disc, on a stem with a leaf."""
    count, turn, width = int(rng.integers(5, 9)), rng.uniform(0, 2 * np.pi), rng.uniform(0.75, 1.05)
    leaf = ellipse(0, 0, 0.24, 0.1) @ np.array([[0.8, -0.6], [0.6, 0.8]]) + [0.22, 0.6]
    parts = [(GREEN, box(-0.05, 0, 0.05, 1)), (GREEN, leaf)]
    for angle in turn + 2 * np.pi / count * np.arange(count):
        c, s = np.cos(angle), np.sin(angle)
        parts.append((PINK, ellipse(0.38, 0, 0.25, width / count) @ np.array([[c, s], [-s, c]]) - [0, 0.35]))
    return [*parts, (AMBER, ellipse(0, -0.35, 0.2, 0.2))]


def heart(rng: Generator) -> list[Part]:
    """The curve of x = 16 sin^3 t, sometimes with a highlight."""
    t = np.linspace(0, 2 * np.pi, 60)
    y = 13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t)
    parts = [(CRIMSON, np.stack([0.95 * np.sin(t) ** 3, -rng.uniform(0.85, 1.05) * y / 16 - 0.1], axis=1))]
    return [*parts, (ROSE, ellipse(-0.45, -0.45, 0.16, 0.1))] if rng.random() < 0.5 else parts


def house(rng: Generator) -> list[Part]:
    """Walls, roof, door and window, often with a chimney."""
    eaves, half, door = rng.uniform(-0.25, 0.0), rng.uniform(0.6, 0.75), rng.choice([-0.3, 0.0, 0.3])
    window = -0.35 if door > 0 else 0.35
    parts = [(NAVY, box(0.3, -0.85, 0.5, eaves))] if rng.random() < 0.7 else []
    return [
        *parts,
        (SAND, box(-half, eaves, half, 0.85)),
        (BRICK, polygon((-half - 0.2, eaves), (0, -0.95), (half + 0.2, eaves))),
        (NAVY, box(door - 0.13, 0.3, door + 0.13, 0.85)),
        (NAVY, box(window - 0.14, 0.12, window + 0.14, 0.4)),
    ]


def mushroom(rng: Generator) -> list[Part]:
    """A domed cap with three dots on a stem."""
    rim, stem = rng.uniform(-0.05, 0.2), rng.uniform(0.18, 0.3)
    dots = ((-0.45, -0.25, 0.12), (0.05, -0.5, 0.14), (0.5, -0.2, 0.1))
    return [
        (CREAM, polygon((-stem, rim - 0.1), (stem, rim - 0.1), (stem + 0.1, 0.9), (-stem - 0.1, 0.9))),
        (RED, ellipse(0, rim, 0.92, rng.uniform(0.75, 1.0), 180, 360)),
        *((CREAM, ellipse(x, rim + y, r, r)) for x, y, r in dots),
    ]


def star(rng: Generator) -> list[Part]:
    """Five points, fat or slim."""
    radius, angle = np.where(np.arange(10) % 2, rng.uniform(0.38, 0.55), 1.0), np.radians(36 * np.arange(10) - 90)
    return [(AMBER, np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1))]


def tree(rng: Generator) -> list[Part]:
    """A fir of three tiers or a round crown, on a trunk."""
    trunk = (BROWN, box(-0.1, 0.2, 0.1, 0.98))
    if rng.random() < 0.5:
        tiers = ((-0.05, 0.65, 0.8), (-0.45, 0.25, 0.62), (-0.95, -0.15, 0.45))
        return [trunk, *((GREEN, polygon((0, top), (half, foot), (-half, foot))) for top, foot, half in tiers)]
    puffs = ((-0.38, -0.1), (0.38, -0.1), (0, -0.5), (0, -0.15))
    return [trunk, *((GREEN, ellipse(x, y, 0.45, 0.42)) for x, y in puffs)]


THINGS: dict[str, Callable[[Generator], list[Part]]] = {
    f.__name__: f for f in (boat, car, cup, fish, flower, heart, house, mushroom, star, tree)
}
THING_NAMES = tuple(THINGS)
