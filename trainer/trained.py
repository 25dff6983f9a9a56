"""The best model of a run, to be used: loaded as it was configured, and fed as it was validated."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from torch import nn

from augment.dataset import Split, Task
from augment.errors import UserError, first_line
from augment.plan import build_plan
from trainer.bar import Bar
from trainer.callback import Callback
from trainer.checkpoint import BEST, load
from trainer.config import Config, parse_config
from trainer.learner import Learner
from trainer.losses import make_loss
from trainer.run import CONFIG_FILE, make_loader
from trainer.standardize import Standard


@dataclass(frozen=True)
class Trained:
    """The best model of a run.

    Attributes:
        config: that of the run, with what was overridden.
        classes: what the model's outputs mean.
        task: what they are.
        network: the model.
    """

    config: Config
    classes: tuple[str, ...]
    network: nn.Module
    task: Task = "classify"

    def look_at(self, split: Split, *callbacks: Callback, what: str) -> None:
        """Make one pass over pictures, as validation does: its plan, precision and test-time augmentation.

        Args:
            split: files that can be decoded; their targets are known to the callbacks only.
            callbacks: what takes the outputs.
            what: what is going on, beside the progress bar.
        """
        fit, device = self.config.fit, self.config.fit.torch_device()
        loss = make_loss(self.task, regression=fit.regression_loss)
        if standard := Standard.in_state(self.network.state_dict()):
            loss = standard.loss(loss, device)
        loader = make_loader(self.config, build_plan(self.config.aug, "val"), split, classes=len(self.classes))
        with Bar(what, len(loader)) as bar:
            learner = Learner(
                self.network,
                loader,
                loader,
                optimizer=fit.make_optimizer,
                epochs=1,
                callbacks=[*callbacks, bar],
                device=device,
                bf16=fit.precision == "bf16",
                tta=fit.tta,
                classes=self.classes,
                task=self.task,
                loss_function=loss,
            )
            learner.validate()


def load_trained(run: Path, overrides: Sequence[str] = (), *, tta: str | None = None) -> Trained:
    """Load the best model of a run. The data that it was trained on need not be there any more.

    Args:
        run: folder of the run.
        overrides: `key=value` that replace values of the run's configuration.
        tta: test-time augmentation, a name of `trainer.tta.TTA`; None: that of the run.

    Raises:
        UserError: no run, no checkpoint, an override that is not allowed, or a model that is not the checkpoint's.
    """
    config = _run_config(run, [*overrides, *([] if tta is None else [f"fit.tta={tta}"])])
    best = load(run / BEST)
    classes = tuple(best["classes"])
    network = config.model.untrained().build(len(classes), config.aug.size)
    if standard := Standard.in_state(best["model"]):
        standard.put_into(network)
    try:
        network.load_state_dict(best["model"])
    except RuntimeError as error:
        raise UserError(f"{run / BEST}: not the weights of the configured model ({first_line(error)})") from error
    return Trained(config, classes, network, best.get("task", "classify"))


def _run_config(run: Path, overrides: Sequence[str]) -> Config:
    if not (run / CONFIG_FILE).is_file():
        raise UserError(f"{run}: no {CONFIG_FILE} in it. Allowed: the folder of a run.")
    loaded = OmegaConf.load(run / CONFIG_FILE)
    assert isinstance(loaded, DictConfig)
    for override in overrides:
        if override.startswith("data="):  # another source has other settings
            loaded.data = {"source": override.removeprefix("data=")}
    dotted = [override for override in overrides if not override.startswith("data=")]
    merged = OmegaConf.to_container(OmegaConf.merge(loaded, OmegaConf.from_dotlist(dotted)))
    assert isinstance(merged, dict)
    return parse_config({str(key): value for key, value in merged.items()})
