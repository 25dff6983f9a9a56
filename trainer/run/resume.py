"""Resuming a run: check that settings are compatible, and restore its last checkpoint."""

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from augment.data.images import name_of
from augment.data.sources import Source
from augment.params import settings
from augment.support.errors import UserError
from augment.support.files import write_atomically
from augment.support.nested import section_of
from augment.support.reading import contents, regular
from augment.support.secrets import as_written
from augment.support.text import amount
from trainer.callbacks.recorder import Recorder
from trainer.loop.checkpoint import BEST, LAST, FitState, load
from trainer.loop.counts import Position
from trainer.loop.learner import Learner
from trainer.loop.ranks import current
from trainer.optim.optimizers import make_optimizer
from trainer.run.build import Loaders, make_train_loader
from trainer.run.config import Config, load_config
from trainer.run.folder import FINISHED
from trainer.run.run_folder import RunFolder
from trainer.tasks.registry import task_named

log = logging.getLogger(__name__)


def check_resume(config: Config) -> None:
    """Check, before anything is written, that the run named by `fit.resume` can be resumed.

    Raises:
        UserError: it has no checkpoint, has finished, or had a different plan, model, loss, optimizer or set of
            parameter groups.
    """
    if config.fit.resume is None:
        return
    run = Path(config.fit.resume)
    state, saved = load(run / LAST, FitState).on(current().rank), load_config(run)
    epoch = state.position[0]
    # After the last epoch, figures, the report and the summary may still have to be written.
    ended = RunFolder(run).summary.status == FINISHED
    if epoch >= config.fit.epochs and (
        ended or not epoch == config.fit.epochs == section_of(saved, "fit").get("epochs")
    ):
        finished = amount(epoch, "epoch")
        raise UserError(f"fit.resume={run}: that run has finished its {finished}. Allowed: a larger fit.epochs.")
    if state.position[1] and state.ranks != (ranks := current().size):  # each rank has sums of its own
        raise UserError(
            f"fit.gpus: {ranks}, but {amount(state.ranks, 'process')} trained the unfinished epoch of the "
            f"run to resume. Allowed: {state.ranks}; after the end of an epoch, any number."
        )
    dataset = config.dataset
    task = task_named(dataset.task)
    _check_same(config.data, saved, "data", settings(Source))
    _check_same(config.fit, saved, "fit", task.resume_settings)
    if "stages" in state.loader and not config.fit.stages:
        raise UserError("fit.stages: missing, but the run to resume had stages. Allowed: the same stages.")
    loader = make_train_loader(config, dataset.train)
    with contents(run / LAST):
        loader.check_state(state.loader)
    with torch.device("meta"):
        network = config.model.untrained().build(task.outputs(len(dataset.classes)), config.aug.size)
    task.prepare(network, config.fit, dataset.train, dataset.classes)
    theirs, ours = ({n: value.shape for n, value in s.items()} for s in (state.model, network.state_dict()))
    if differing := next((name for name in (*ours, *theirs) if theirs.get(name) != ours.get(name)), ""):
        raise UserError(
            f"fit.resume={run}: its model had other weights ({differing}). Allowed: the model and the classes of that "
            "run."
        )
    _check_same(config.fit, saved, "fit", ["optimizer"])
    groups = make_optimizer(config.fit, network).param_groups
    with contents(run / LAST):
        sizes = [len(g["params"]) for g in state.optimizer["param_groups"]]
    if [len(g["params"]) for g in groups] != sizes:
        raise UserError(
            f"fit.resume={run}: its optimizer had other groups of parameters. Allowed: weight_decay, decay_norms and "
            "layer_decay of that run."
        )


def resume(learner: Learner, loaders: Loaders, config: Config) -> Position:
    """Restore the last checkpoint of a run, copy its best model to another folder, and return where the fit starts."""
    assert config.fit.resume is not None
    run = Path(config.fit.resume)
    state = load(run / LAST, FitState, learner.device)
    with contents(run / LAST):
        position = learner.restore(state)
    for image in (*config.dataset.train.bad, *config.dataset.val.bad):
        log.warning(
            "data.skip_bad=true: %s %s, but the run to resume had read it: another image of its class stands in for it",
            name_of(image.file), image.reason,
        )  # fmt: skip
    loaders.val.placement = loaders.train.placement  # restored to the saved run's choice
    if learner.folder is not None and learner.folder.resolve() != run.resolve() and (run / BEST).is_file():
        write_atomically(learner.folder / BEST, regular(run / BEST).read_bytes())
    return position


def describe_changed_validation(learner: Learner) -> str:
    """Return a sentence about a resumed run that validates in another way than before; empty if it does not."""
    recorder = learner.find(Recorder)
    if not (changed := recorder.changed_validation(learner)):
        return ""
    return (
        f"{', '.join(changed)}: not as in the saved run, so scores cannot be compared: the best epoch is determined "
        f"again, from epoch {len(recorder.rows) + 1} on"
    )


def _check_same(section: object, saved: Mapping[str, Any], key: str, names: Iterable[str]) -> None:
    """Check that the named settings of the section `key` are those of the saved run."""
    for name in names:
        param, now = settings(type(section))[name], getattr(section, name)
        was = section_of(saved, key).get(name, param.default)
        if was not in (now, as_written(now)):
            raise UserError(
                f"{key}.{name}: {param.show(now)}, but the run to resume had {param.show(was)}. Allowed: the same."
            )
