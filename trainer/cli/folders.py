"""Hydra's callback that reserves folders, named in conf/config.yaml."""

from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from augment.support.errors import UserError
from trainer.run.folder import named_folder, reserve


class RefusedError(BaseException):
    """A folder that cannot be used; not an Exception, as Hydra turns those of callbacks into warnings."""


class ReserveFolders(Callback):
    """Reserves the folder of a run before Hydra writes to it."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Reserve the folder of a single run."""
        try:
            folder = named_folder(config.hydra.run.dir, "hydra.run.dir")
            reserve(folder, OmegaConf.select(config, "fit.resume"), key="hydra.run.dir")
        except UserError as error:
            raise RefusedError(str(error)) from error
