"""Training from Python, with the overrides of the command line."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from augment.cli.overrides import refuse_keywords, refuse_sweeps, refuse_words
from augment.cli.trust import Gate
from augment.data.sources import LOADED
from augment.support.errors import UserError
from trainer.cli import ranks
from trainer.cli.auto import prepare
from trainer.run.config import inner_keys, new_folder
from trainer.run.jobs import check_configs, run_job
from trainer.run.overrides import with_resumed
from trainer.run.summary import Summary


def train(*overrides: str, folder: Path | str | None = None, trust: bool = False, **misspelled: object) -> Summary:
    """Train as `python -m trainer` does: `train("+aug=imagenette", "fit.epochs=2")`.

    In a program that torchrun started, all ranks call it with the same overrides; they train together. If the fit
    fails, a rank should end: the others may wait for it.

    Args:
        overrides: overrides as on the command line, without flags and sweeps.
        folder: the run's folder; None: a new one in outputs/.
        trust: whether the run that fit.resume names may name code to import, see `augment.cli.trust`.
        misspelled: nothing; an override in another form is refused.

    Returns:
        How the run ended; with `fit.resume=auto`, perhaps earlier.

    Raises:
        UserError: a mistake in the overrides, found before anything is written, or one that ends the run.
    """
    refuse_keywords(misspelled, inner_keys())
    LOADED.forget()
    place = None if folder is None else Path(folder)
    given = partial(_given, overrides, trust=trust)
    if ranks.follows():
        ranks.follow(given, leaves=False)
        ending: Any = None
        if (ending := ranks.share(ending)) is None:
            raise UserError("rank 0 did not train; its message says why.")
        return cast(Summary, ending)
    try:
        run = prepare(*given(), place)
        if run.done is not None:
            ranks.send(None)
            return ranks.share(run.done)
        check_configs([run.config])
    except BaseException:
        ranks.send(None)
        ranks.share(None)
        raise
    ranks.send(run.config)
    return ranks.share(run_job(run.config, run.tokens, place or new_folder()))


def _given(overrides: Sequence[str], *, trust: bool) -> tuple[list[str], str, Gate | None]:
    refuse_words(overrides)
    tokens, gate = with_resumed(overrides, trust=trust)
    refuse_sweeps(tokens)
    return tokens, "config", gate
