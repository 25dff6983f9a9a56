"""Summarize a benchmark of training in one sentence: what limits the speed, and what to change."""

from collections.abc import Mapping
from dataclasses import dataclass

# Share of the speed that feeding may cost; beyond it, training is bound by the input.
_CHEAP = 0.05
# Share of a step's time that the host takes to start its work; from this on, the GPU waits for the host.
_LAUNCH_BOUND = 0.85


@dataclass(frozen=True)
class Facts:
    """The figures behind the sentence.

    Attributes:
        loader: images per second of the loader alone.
        synthetic: images per second of training on one batch that stays on the device.
        fed: images per second of training on the loader's batches.
        share: ratio of fed to synthetic, the median over rounds.
        issue: share of a synthetic step's time that the host takes to give the GPU its work; None on the CPU.
        graph: whether CUDA graphs are requested.
        precision: precision of the forward pass.
        decode: `aug.decode`.
        cached: whether decoded images are kept.
    """

    loader: float
    synthetic: float
    fed: float
    share: float
    issue: float | None
    graph: bool
    precision: str
    decode: str
    cached: bool


def verdict(facts: Facts) -> str:
    """Return what training is bound by, and what to try."""
    cost = 1 - facts.share
    issued = facts.issue is not None and facts.issue >= _LAUNCH_BOUND
    if cost > _CHEAP and facts.loader < facts.synthetic:
        return (
            f"Bound by the input pipeline: the loader gives {facts.loader:,.0f} img/s where the model could take "
            f"{facts.synthetic:,.0f}; {_feed_hint(facts)}."
        )
    if issued:
        assert facts.issue is not None
        busy = 100 * min(facts.issue, 1)
        hint = "a larger fit.batch_size" if facts.graph else "fit.graph=true, a larger fit.batch_size"
        return (
            f"Bound by kernel launches: the host takes {busy:.0f}% of a step to start the GPU's work; "
            f"{_price(cost)}; try {hint}."
        )
    if cost > _CHEAP:
        shared = "the CPU's cores" if facts.issue is None else "the GPU and the host"
        return (
            f"Bound by loader and model together, which share {shared}: {facts.fed:,.0f} img/s, where the loader alone "
            f"gives {facts.loader:,.0f} and the model alone takes {facts.synthetic:,.0f}; {_feed_hint(facts)}."
        )
    exact = facts.issue is not None and facts.precision == "fp32"
    return f"Bound by the model: {_price(cost)}{'; try fit.precision=bf16' if exact else ''}."


def _price(cost: float) -> str:
    return f"feeding costs {100 * cost:.1f}%" if cost >= 0.0005 else "feeding costs nothing"


def _feed_hint(facts: Facts) -> str:
    if facts.issue is None:
        return "try a smaller aug.size, a lighter recipe (python -m augment bench times its parts), or a GPU"
    tried = [] if facts.cached else ["aug.cache=gpu"]
    tried += [] if facts.decode == "auto" or facts.cached else ["aug.decode=auto"]
    if not tried:
        return "try a lighter recipe (python -m augment bench --ops times single ops)"
    return f"try {' or '.join(tried)}"


def fastest(speeds: Mapping[str, float]) -> str:
    """Return a sentence that names the fastest of `{overrides: images per second}`; "" for fewer than two."""
    ranked = sorted(speeds, key=lambda name: -speeds[name])
    if len(ranked) < 2:
        return ""
    best, other = ranked[:2]
    return f"Fastest here: {best}, {100 * (speeds[best] / speeds[other] - 1):.1f}% ahead of {other}."
