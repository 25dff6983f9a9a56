"""Going on with a run: what has to be as it was."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from augment.errors import UserError
from augment.params import settings
from augment.sources import Source, load_dataset
from augment.wording import amount
from trainer.checkpoint import LAST, load
from trainer.config import Config
from trainer.run import CONFIG_FILE, make_train_loader
from trainer.stages import check_loader_state
from trainer.standardize import Standard, check_same


def check_resume(config: Config) -> None:
    """Check, before anything is written, that the run to resume can be gone on with.

    Raises:
        UserError: it has no checkpoint, has finished, or had another plan, model, loss, optimizer or groups of
            parameters.
    """
    if config.fit.resume is None:
        return
    state = load(Path(config.fit.resume) / LAST)
    epoch = state["position"][0]
    if epoch >= config.fit.epochs:
        finished = amount(epoch, "epoch")
        raise UserError(
            f"fit.resume={config.fit.resume}: that run has finished its {finished}. Allowed: a larger fit.epochs."
        )
    dataset = load_dataset(config.data)
    file = Path(config.fit.resume) / CONFIG_FILE
    saved = OmegaConf.load(file) if file.is_file() else None
    if isinstance(saved, DictConfig):
        _check_part(config.data, saved)
        if dataset.task == "regress":
            _check_loss(config.fit.regression_loss, saved)
    check_loader_state(state["loader"], make_train_loader(config, dataset.train))
    with torch.device("meta"):
        network = config.model.untrained().build(len(dataset.classes), config.aug.size)
    if dataset.task == "regress" and config.fit.standardize:
        Standard.of(dataset.train.targets).put_into(network)
    check_same(network, state["model"])
    shapes = {name: value.shape for name, value in state["model"].items()}
    if differing := _differing(shapes, {name: value.shape for name, value in network.state_dict().items()}):
        raise UserError(
            f"fit.resume={config.fit.resume}: its model had other weights ({differing}). Allowed: the model and the "
            "classes of that run."
        )
    optimizer = OmegaConf.select(saved, "fit.optimizer") if isinstance(saved, DictConfig) else None
    if optimizer not in (None, config.fit.optimizer):
        raise UserError(f"fit.optimizer: {config.fit.optimizer}, but the run to go on with had {optimizer}.")
    groups = config.fit.make_optimizer(network).param_groups
    if [len(g["params"]) for g in groups] != [len(g["params"]) for g in state["optimizer"]["param_groups"]]:
        raise UserError(
            f"fit.resume={config.fit.resume}: its optimizer sorted the parameters in another way. Allowed: "
            "weight_decay, decay_norms and layer_decay of that run; one of version 0.2 had fit.decay_norms=true."
        )


def _check_part(source: Source, saved: DictConfig) -> None:
    """Check that the same pictures are used, as often and with the same weights."""
    for name, param in settings(Source).items():
        was = OmegaConf.select(saved, f"data.{name}", default=param.default)
        now = getattr(source, name)
        if was != now:
            raise UserError(
                f"data.{name}: {param.show(now)}, but the run to go on with had {param.show(was)}. Allowed: the same."
            )


def _check_loss(loss: str, saved: DictConfig) -> None:
    """Check that numbers are learned by the same loss, by which the best epoch is chosen too: its default has changed.

    A run that does not say had the first default.
    """
    was = OmegaConf.select(saved, "fit.regression_loss", default="mse")
    if was != loss:
        raise UserError(f"fit.regression_loss: {loss}, but the run to go on with had {was}. Allowed: the same.")


def _differing(saved: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    """Return the first name whose values are not the same in both, empty if there is none."""
    return next((name for name in (*own, *saved) if saved.get(name) != own.get(name)), "")
