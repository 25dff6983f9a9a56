"""One run: from a checked configuration to a trained model in a folder of its own."""

import gc
import logging
import shutil
from dataclasses import replace
from pathlib import Path
from time import monotonic, time
from typing import Any

import torch
from nvidia.dali import backend
from omegaconf import OmegaConf
from rich.console import Console
from torch import nn

from augment.balance import describe_balance, loss_weights
from augment.dataset import Dataset, Split
from augment.errors import UserError, told
from augment.files import shown, write_json
from augment.graph import Placement
from augment.loader import Loader
from augment.memory import keep_freed_memory
from augment.own.items import end_readers
from augment.placement import place
from augment.plan import Plan, build_plan
from augment.sources import load_dataset, notes_of
from augment.sources.notes import repeat_notes
from augment.wording import amount
from trainer.callbacks import Checkpoint, Interrupt, ParamScheduler
from trainer.checkpoint import BEST, LAST, load
from trainer.config import Config
from trainer.dashboard import Wandb
from trainer.early_stopping import reason_of
from trainer.environment import environment
from trainer.graphs import runner
from trainer.learner import Learner, Position
from trainer.losses import LossFunction, make_loss, without_effect
from trainer.models import count_parameters
from trainer.prepare import Prepare
from trainer.recorder import NonFiniteLossError, Recorder
from trainer.stages import StagedLoader
from trainer.standardize import Standard, check_same
from trainer.summary import Summary
from trainer.tasks import AUTO, JUDGING, best_row, monitored
from trainer.warm_up import warm_up

CONFIG_FILE, ENVIRONMENT_FILE, PLAN_FILE = "config.yaml", "environment.json", "plan.txt"

log = logging.getLogger(__name__)


def train(config: Config, folder: Path, *, console: Console | None = None, group: str | None = None) -> Summary:
    """Train as configured.

    Args:
        config: the checked configuration.
        folder: the run's own folder; is made.
        console: where to print; None: the terminal.
        group: name of the sweep that the run is part of, for dashboards.

    Returns:
        How the run ended; also in the folder's summary.json. A failure is raised, after it was written down, and so is
        KeyboardInterrupt, which says what there is to go on from, where Ctrl-C stopped it at once.
    """
    begun, now = monotonic(), time()
    console = console or Console()
    folder.mkdir(parents=True, exist_ok=True)
    if config.fit.torch_device().type == "cpu":
        keep_freed_memory()
    learner: Learner | None = None
    try:
        # Data are mostly loaded before there is a run with a log, and once for all jobs of a sweep.
        repeat_notes(notes_of(config.data), before=now)
        learner = _prepare(config, folder, console, group)
        start = _resume(learner, config.fit.resume, folder)
        learner.fit(start)
        status = "interrupted" if learner.find(Interrupt).pressed else "finished"
        summary = _summary(learner, status, folder, monotonic() - begun)
    except BaseException as error:
        epochs = len(learner.find(Recorder).rows) if learner is not None else 0
        pressed = isinstance(error, KeyboardInterrupt)
        status, why = ("interrupted", "") if pressed else ("failed", told(error))
        Summary(status, folder, epochs, {}, {}, monotonic() - begun, why).write()
        if pressed:
            error.args = (_cut_short(learner, config.fit.resume, folder),)
            log.info("%s", error)
            raise
        if not isinstance(error, UserError):
            log.exception("the run failed")
            raise
        if (folder / LAST).is_file() and not isinstance(error, NonFiniteLossError):
            error.args = (f"{error} fit.resume={shown(folder)} goes on from its last checkpoint.",)
        log.error("the run failed: %s", error)
        raise
    finally:
        if learner is not None:
            _close(learner)
        release_memory()
    summary.write()
    log.info("%s", summary)
    return summary


def make_loader(
    config: Config, plan: Plan, split: Split, placement: Placement | None = None, *, classes: int | None = None
) -> Loader:
    """Make the loader of a split as configured.

    Args:
        config: the configuration.
        plan: what is done to the pictures.
        split: the pictures.
        placement: where they are decoded; None: the split's own, without a trial of decoders.
        classes: number of classes; None: that of the configured data.
    """
    device = config.fit.torch_device()
    if placement is None:
        placement = place(config.aug, split.files, device, threads=config.fit.cpu_threads(), trial=False)
    return Loader(
        plan,
        split,
        batch_size=config.fit.batch_size,
        seed=config.seed,
        device=device,
        classes=len(load_dataset(config.data).classes) if classes is None else classes,
        placement=placement,
        threads=config.fit.cpu_threads(),
        drop_last=config.fit.drop_last and plan.split == "train",
        half=device.type == "cuda" and config.fit.precision == "bf16",
    )


def make_train_loader(config: Config, split: Split, placement: Placement | None = None) -> Loader | StagedLoader:
    """Make the loader of the train split, with the stages that are configured."""
    stages = config.fit.full_stages(config.aug.size)
    if not stages:
        return make_loader(config, build_plan(config.aug, "train"), split, placement)
    loaders = []
    for stage in stages:
        plan = build_plan(replace(config.aug, size=stage.size), "train")
        staged = replace(config, fit=replace(config.fit, batch_size=stage.batch_size))
        loaders.append(make_loader(staged, plan, split, placement))
    return StagedLoader(stages, loaders, config.fit.limit_batches)


def make_learner(config: Config, folder: Path | None, *, callbacks: tuple[Any, ...]) -> Learner:
    """Make the learner of a configuration; the model's first weights depend on the seed alone."""
    dataset, device = load_dataset(config.data), config.fit.torch_device()
    _set_precision(device, config.fit.precision)
    torch.manual_seed(config.seed)
    # One for both splits; a run that is gone on with keeps what was chosen.
    train, threads = dataset.train, config.fit.cpu_threads()
    files = (*train.files[: train.pictures], *dataset.val.files)
    placement = place(config.aug, files, device, threads=threads, trial=config.fit.resume is None)
    train_loader = make_train_loader(config, dataset.train, placement)
    if config.fit.resume is None:
        train_loader.prepare()  # while the model is built
    network = config.model.build(len(dataset.classes), config.aug.size)
    loss, val_loss = _make_losses(config, dataset, network, device)
    learner = Learner(
        network,
        train_loader,
        make_loader(config, build_plan(config.aug, "val"), dataset.val, placement),
        optimizer=config.fit.make_optimizer,
        epochs=config.fit.epochs,
        loss_function=loss,
        val_loss_function=val_loss,
        callbacks=callbacks,
        device=device,
        bf16=config.fit.precision == "bf16",
        accumulate=config.fit.accumulate,
        runner=runner(device, graph=config.fit.graph),
        compile=config.fit.compile,
        limit_batches=config.fit.limit_batches,
        validate_every=config.fit.validate_every,
        tta=config.fit.tta,
        folder=folder,
        classes=dataset.classes,
        task=dataset.task,
    )
    if device.type == "cuda" and not config.fit.compile:
        _warm_up(learner, config)
    return learner


def _make_losses(config: Config, dataset: Dataset, network: nn.Module, device: torch.device) -> list[LossFunction]:
    """Return the losses of training and of validation, and give the model the scale of numbers that it predicts."""
    weights = None
    if config.data.balance == "weights":
        weights = torch.tensor(loss_weights(dataset), dtype=torch.float32, device=device)
    smoothing, regression = config.fit.label_smoothing, config.fit.regression_loss
    losses: list[LossFunction] = [
        make_loss(dataset.task, smoothing=smoothing, regression=regression, weights=weights),
        make_loss(dataset.task, regression=regression),
    ]
    if dataset.task == "regress" and config.fit.standardize:
        standard = Standard.of(dataset.train.targets)
        standard.put_into(network)
        log.info("learned in standard deviations from the mean: %s", standard.told(dataset.classes))
        losses = [standard.loss(loss, device) for loss in losses]
    return losses


def _warm_up(learner: Learner, config: Config) -> None:
    """Load the GPU's kernels while the loader makes its first batches."""
    loader = learner.train_loader
    assert isinstance(loader, Loader | StagedLoader)
    first = loader.stages[0] if isinstance(loader, StagedLoader) else None
    bf16 = config.fit.precision == "bf16"
    warm_up(
        learner.model,
        config.fit.make_optimizer,
        batch_size=first.batch_size if first else config.fit.batch_size,
        size=first.size if first else config.aug.size,
        bf16=bf16,
        half=bf16,
    )


def _set_precision(device: torch.device, precision: str) -> None:
    if device.type == "cuda":
        # PyTorch's own default is exact matrix products, but TF32 in convolutions.
        torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")
        # cuDNN's own choice of algorithms: trying all for each shape took seconds and gained a hundredth.
        torch.backends.cudnn.benchmark = False


def release_memory() -> None:
    """Give back what a run held, so that a sweep of many does not fill the GPU: DALI keeps its pool otherwise."""
    gc.collect()
    end_readers()
    backend.ReleaseUnusedMemory()  # type: ignore[attr-defined]
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _prepare(config: Config, folder: Path, console: Console, group: str | None) -> Learner:
    """Write down what is going to run, make its learner, and say what it is."""
    plans = "\n".join(str(build_plan(config.aug, split)) for split in ("train", "val"))
    (folder / CONFIG_FILE).write_text(OmegaConf.to_yaml(dict(config.resolved)))
    write_json(folder / ENVIRONMENT_FILE, environment())
    (folder / PLAN_FILE).write_text(plans + "\n")
    callbacks = [make() for make in config.callbacks]
    for callback in callbacks:
        if isinstance(callback, Wandb):
            callback.config, callback.group = dict(config.resolved), group
    callbacks = [Recorder(), ParamScheduler(config.fit.schedules()), Interrupt(), Prepare(), *callbacks]
    learner = make_learner(config, folder, callbacks=tuple(callbacks))
    console.print(plans, highlight=False)
    _announce(config, learner, folder, console)
    return learner


def _announce(config: Config, learner: Learner, folder: Path, console: Console) -> None:
    """Say what there is to know before the first epoch: stages, decoding, settings without effect, data, model."""
    dataset = load_dataset(config.data)
    train_loader = learner.train_loader
    assert isinstance(train_loader, Loader | StagedLoader)
    if isinstance(train_loader, StagedLoader):
        console.print(
            "stages:",
            "; ".join(f"{s.name} {amount(s.epochs, 'epoch')} at {s}" for s in train_loader.stages),
            highlight=False,
            soft_wrap=True,
        )
    if reason := train_loader.placement.reason:
        console.print(reason, highlight=False, soft_wrap=True)
    for note in without_effect(config.fit, dataset.task):
        log.warning(note)
        console.print(note, highlight=False, soft_wrap=True)
    if balance := describe_balance(dataset, config.data.balance):
        log.info(balance)
        console.print(balance, highlight=False, soft_wrap=True)
    console.print(
        f"{', '.join(filter(None, (config.resolved['data']['source'], config.data.part)))}: "
        f"{dataset.train.pictures:,} + {len(dataset.val):,} pictures, "
        f"{JUDGING[dataset.task].counted(len(dataset.classes))}; "
        f"{config.resolved['model'].get('name', config.resolved['model']['kind'])}: "
        f"{count_parameters(learner.model) / 1e6:.2f} M parameters; {_device_name(learner.device)}; {shown(folder)}",
        highlight=False,
        soft_wrap=True,
    )


def _resume(learner: Learner, run: str | None, folder: Path) -> Position:
    if run is None:
        return Position()
    state = load(Path(run) / LAST, learner.device)
    check_same(learner.model, state["model"])
    position = learner.load_state_dict(state)
    if isinstance(learner.train_loader, Loader | StagedLoader) and isinstance(learner.val_loader, Loader):
        learner.val_loader.placement = learner.train_loader.placement  # which has gone back to what was chosen then
    if (Path(run) / BEST).is_file():
        shutil.copy2(Path(run) / BEST, folder / BEST)
    return position


def _cut_short(learner: Learner | None, resumed: str | None, folder: Path) -> str:
    """Say what a run that Ctrl-C stopped at once can go on from."""
    when = "at once" if learner is not None and learner.error is not None else "before the first batch"
    run = folder if (folder / LAST).is_file() else resumed
    what = "nothing to go on with" if run is None else f"fit.resume={shown(Path(run))} goes on from its last checkpoint"
    return f"stopped {when}; {what}"


def _close(learner: Learner) -> None:
    """End the threads of the loaders' pipelines, also of those that were only prepared."""
    for loader in (learner.train_loader, learner.val_loader):
        if isinstance(loader, Loader | StagedLoader):
            loader.close()


def _summary(learner: Learner, status: str, folder: Path, seconds: float) -> Summary:
    rows = learner.find(Recorder).rows
    checkpoint = next((c for c in learner.callbacks if isinstance(c, Checkpoint)), None)
    monitor = monitored(checkpoint.monitor if checkpoint else AUTO, learner.task)
    epoch = checkpoint.best_epoch if checkpoint else None
    best = rows[epoch] if rows and epoch is not None else best_row(rows, monitor)
    last = dict(rows[-1]) if rows else {}
    return Summary(
        status,
        folder,
        len(rows),
        best,
        last,
        seconds,
        stopped=reason_of(learner.callbacks),
        monitor=monitor,
        planned=learner.epochs,
    )


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
