"""Train one run: from a checked configuration to a trained model in the run's own folder."""

import logging
import shutil
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import monotonic

from rich.console import Console

from augment.data.selection import describe_balance
from augment.data.sources.loading import log_notices
from augment.recipe.plan import build_plan
from augment.recipe.steps import border_notices, unit_notices
from augment.support.console import PlainConsole, print_plan
from augment.support.errors import UserError, describe_error
from augment.support.files import atomic_path, json_line, remove_parts, shown, write_atomically, write_json
from augment.support.formatting import amount
from augment.support.signals import StopSignals
from augment.support.untrusted_files import UnreadableError, explained_damage, regular
from augment.support.user_code import OwnCodeError, describe_own
from trainer.callbacks.optimizer_steps import (
    FreshStatistics,
    Interrupt,
    LossScale,
    ParamScheduler,
    PrepareValidation,
    ending_of,
)
from trainer.callbacks.recorder import NonFiniteLossError, Recorder
from trainer.loop.callback import Callback
from trainer.loop.checkpoint import BEST, LAST, BestModel, FitState, load
from trainer.loop.learner import Learner
from trainer.loop.progress import Position
from trainer.optim.schedules import Schedule
from trainer.run.batch_size import smaller_batch_size, with_batch_size
from trainer.run.build import Loaders, make_learner, make_loaders, session
from trainer.run.config.schema import CONFIG_FILE, PLAN_FILE, Config, config_text, run_name
from trainer.run.failures import explain, explained
from trainer.run.folder.facts import ENVIRONMENT_FILE, FACTS_FILE, IDS_FILE, environment, facts_of, ids_of
from trainer.run.folder.summary import FAILED, FINISHED, INTERRUPTED, RUNNING, Summary, summarize
from trainer.run.teacher import distill
from trainer.tasks.registry import unused_settings

log = logging.getLogger(__name__)


def train(
    config: Config,
    folder: Path,
    *,
    console: Console | None = None,
    group: str | None = None,
    varied: Sequence[str] = (),
    callbacks: Sequence[Callback] = (),
    plan: bool = True,
    began: float | None = None,
) -> Summary:
    """Train as configured.

    Args:
        config: the checked configuration.
        folder: the run's own folder. Created if it is missing.
        console: where to print. Default: the terminal.
        group: name of the sweep that the run belongs to, for dashboards.
        varied: the overrides that the sweep varies. They are the run's default name.
        callbacks: callbacks in addition to the configured ones.
        plan: whether to print the augmentation plan.
        began: when the run began, on the clock of `time.monotonic`. Default: now.

    Returns:
        How the run ended, as recorded in the folder's summary.json.

    Raises:
        KeyboardInterrupt: a signal came before the fit, or a second one during it. The message explains how to resume.
        Exception: the run failed. The folder's summary.json records the failure.
    """
    run = _Run(config, folder, run_name(config.run, folder, varied), console or PlainConsole(), began or monotonic())
    with StopSignals() as signals:
        folder.mkdir(parents=True, exist_ok=True)
        remove_parts(folder)
        with ExitStack() as opened:
            try:
                signals.check()
                opened.enter_context(session(config))
                opened.callback(run.drop_learner)  # before the session releases memory
                run.config = config = with_batch_size(config)
                plans = run.write_start()
                loaders = opened.enter_context(closing(make_loaders(config)))
                all_callbacks = (*_callbacks(config), *callbacks)
                summary = run.fit(loaders, all_callbacks, signals, group=group, plans=plans if plan else "")
            except BaseException as error:
                signals.hold()
                raise run.record_failure(error)  # noqa: B904  (its cause is set)
        log.info("%s", summary)
        return summary


@dataclass
class _Run:
    """A run in its folder, from its first file to its summary."""

    config: Config
    folder: Path
    name: str
    console: Console
    began: float  # on the clock of `time.monotonic`
    learner: Learner | None = None

    def write_start(self) -> str:
        """Write the files that describe the run, and return the plans of both splits."""
        Summary(RUNNING, self.folder, name=self.name, tags=self.config.run.written_tags).write()
        # A sweep loads its data once, before any log exists, so each run logs the notices.
        log_notices(self.config.dataset.notices)
        plans = "\n".join(str(build_plan(self.config.recipe, split)) for split in ("train", "val"))
        write_atomically(self.folder / CONFIG_FILE, config_text(self.config))
        write_json(self.folder / ENVIRONMENT_FILE, environment())
        write_atomically(self.folder / PLAN_FILE, plans + "\n")
        return plans

    def fit(
        self, loaders: Loaders, callbacks: Sequence[Callback], signals: StopSignals, *, group: str | None, plans: str
    ) -> Summary:
        """Build the learner, resume its run if configured, and fit it."""
        learner = self.learner = make_learner(
            self.config,
            loaders,
            self.folder,
            callbacks=callbacks,
            group=group,
            name=self.name,
            began=self.began,
            distill=distill,
        )
        if plans:
            print_plan(self.console, plans)
        _announce(self.config, learner, loaders, self.folder, self.console)
        start = Position() if self.config.fit.resume is None else resume(learner, loaders, self.config)
        for note in _describe_changes(learner, start):
            log.warning(note)
            self.console.print(note, highlight=False, soft_wrap=True)
        signals.check()
        signals.hold()  # the fit handles signals itself, and the short work after the fit must complete
        learner.fit(start)
        summary = summarize(learner, self.folder, monotonic() - self.began)
        summary.write()
        return summary

    def drop_learner(self) -> None:
        """Drop the last reference to the model, so that its memory can be released."""
        self.learner = None

    def record_failure(self, error: BaseException) -> BaseException:
        """Write and log how an error or a signal ended the run, and return what to raise."""
        # On a full disk, callbacks may fail again in after_fit. Report the first error, which ended the fit.
        cause: BaseException = getattr(self.learner, "error", None) or error
        if isinstance(cause, KeyboardInterrupt):
            return self._record_stop(cause)
        fits = smaller_batch_size(self.config, cause)
        known = explain(cause, self.config, self.folder, fits=fits)
        failure = known or _blame_checkpoint(cause, self.config, self.learner)
        self._write_summary(FAILED, describe_error(failure))
        if not isinstance(failure, UserError):
            log.exception("the run failed", exc_info=failure)
            return failure
        if (self.folder / LAST).is_file() and not isinstance(failure, NonFiniteLossError):
            failure.hint = f"fit.resume={shown(self.folder)} continues from its last checkpoint."
            failure.args = (f"{failure} {failure.hint}",)
        has_details = isinstance(failure, OwnCodeError | UnreadableError)
        log.error("the run failed: %s", failure, exc_info=cause if has_details else None)
        failure.__cause__ = cause
        return failure

    def _record_stop(self, signal: KeyboardInterrupt) -> KeyboardInterrupt:
        learner = self.learner
        complete = learner is not None and learner.progress.is_complete  # nothing is left to resume
        self._write_summary(FINISHED if complete else INTERRUPTED)
        text = "stopped after the last epoch. Figures or the report may be missing"
        signal.args = (text if complete else _describe_stop(learner, self.config.fit.resume, self.folder),)
        signal.__cause__ = None
        log.info("%s", signal)
        return signal

    def _write_summary(self, status: str, error: str = "") -> None:
        with suppress(OSError):  # the error message suffices
            self.folder.stat()  # fails if the folder was deleted, so that it is not created again
            seconds = monotonic() - self.began
            if self.learner is not None and hasattr(self.learner, "error"):  # the fit has begun
                summary = summarize(self.learner, self.folder, seconds)
            else:
                tags = self.config.run.written_tags
                summary = Summary(status, self.folder, seconds=seconds, name=self.name, tags=tags)
            replace(summary, status=status, error=error).write()


def _describe_changes(learner: Learner, start: Position) -> list[str]:
    """Return a note for each way in which a resumed fit differs from the saved run."""
    notes = [describe_changed_validation(learner), learner.find(ParamScheduler).describe_new_length(learner, start)]
    before = learner.find(Recorder).saved_ranks
    if start.batch and before not in (None, learner.ranks.size):
        notes.append(
            f"fit.gpus={learner.ranks.size}: the saved run stopped within epoch {start.epoch + 1} with "
            f"fit.gpus={before}. The remaining images of this epoch are now used once each, in a new order. The "
            "training scores of the epoch cover only these images."
        )
    return [note for note in notes if note]


def follow(config: Config, callbacks: Sequence[Callback] = ()) -> str:
    """Train the same configuration as rank 0, which uses `train`, without writing or printing.

    Returns:
        How the fit ended: finished or interrupted.

    Raises:
        LostRankError: another rank has ended.
    """
    with StopSignals() as signals, session(config):
        signals.hold()
        config = with_batch_size(config)
        with closing(make_loaders(config)) as loaders:
            return _fit_along(config, loaders, (*_callbacks(config), *callbacks))


def _fit_along(config: Config, loaders: Loaders, callbacks: Sequence[Callback]) -> str:
    # A separate function: when it returns, the last reference to the model is gone, and memory can be released.
    learner = make_learner(config, loaders, callbacks=callbacks, distill=distill)
    try:
        with explained(config):
            learner.fit(Position() if config.fit.resume is None else resume(learner, loaders, config))
    except Exception as error:
        raise _blame_checkpoint(error, config, learner)  # noqa: B904  (its cause is set)
    return ending_of(learner)


def resume(learner: Learner, loaders: Loaders, config: Config) -> Position:
    """Restore the last checkpoint of `fit.resume`, and return where the fit starts.

    A run in a new folder also gets a copy of the best model so far.
    """
    assert config.fit.resume is not None
    run = Path(config.fit.resume)
    state = load(run / LAST, FitState, learner.device)
    with explained_damage(run / LAST):
        position = learner.restore(state)
    loaders.val.placement = loaders.train.placement  # the saved run's choice
    if learner.folder is not None and learner.folder.resolve() != run.resolve() and (run / BEST).is_file():
        with atomic_path(learner.folder / BEST, durable=True) as part:
            load(run / BEST, BestModel)  # check the file before the copy, because a damaged file may be huge
            shutil.copyfile(regular(run / BEST), part)
    return position


def describe_changed_validation(learner: Learner) -> str:
    """Return a warning if a resumed run validates differently than before, otherwise an empty string."""
    recorder = learner.find(Recorder)
    if not (changed := recorder.changed_validation(learner)):
        return ""
    return (
        f"{', '.join(changed)}: changed since the saved run, so old and new scores cannot be compared. The best epoch "
        f"is chosen from epoch {len(recorder.rows) + 1} on."
    )


def _blame_checkpoint(error: BaseException, config: Config, learner: Learner | None) -> BaseException:
    """Return the error to raise. An error within the first step of a resumed run names the checkpoint."""
    stepped = False
    if learner is not None and (first := learner.find(Recorder).first) is not None:
        stepped = learner.progress.batches_done - first[1] >= config.fit.accumulate
    if config.fit.resume is None or stepped or describe_own(error):
        return error
    try:
        with explained_damage(Path(config.fit.resume) / LAST):
            raise error
    except BaseException as named:
        return named


def _callbacks(config: Config) -> tuple[Callback, ...]:
    guards: list[Callback] = [LossScale()] if config.fit.scaled else []
    model, fresh = config.resolved["model"], config.fit.fresh_statistics
    if fresh or (fresh is None and not (model.get("pretrained") or model.get("weights"))):
        guards.append(FreshStatistics(always=bool(fresh)))
    configured = (make() for make in config.callbacks)
    plateau = (config.fit.plateau_patience, config.fit.drop_factor) if config.fit.schedule == "plateau" else None
    return (*loop_callbacks(config.fit.schedules(), plateau), *guards, *configured)


def loop_callbacks(schedules: dict[str, Schedule], plateau: tuple[int, float] | None = None) -> tuple[Callback, ...]:
    """Return the callbacks of every run, without the configured ones."""
    return Recorder(), PrepareValidation(), ParamScheduler(schedules, plateau), Interrupt()


def _announce(config: Config, learner: Learner, loaders: Loaders, folder: Path, console: Console) -> None:
    """Write the run's facts, and print the important ones: stages, decoding, settings without effect, data."""
    dataset, facts = config.dataset, facts_of(config, learner)
    write_atomically(folder / FACTS_FILE, json_line(asdict(facts)))
    if ids := ids_of(dataset):
        write_atomically(folder / IDS_FILE, json_line(ids))
    stages = config.fit.full_stages(config.aug.size)
    described = "; ".join(f"{stage.name} {amount(stage.epochs, 'epoch')} at {stage}" for stage in stages)
    notes = [*config.notes, *unused_settings(config.fit, learner.task), *unit_notices(config.aug)]
    notes += border_notices(config.aug, dataset.kind.unrepeated)
    notes += filter(None, [config.fit.slow_precision])
    notes += [
        f"{key}={size}: the training set has {amount(len(dataset.train), 'image')}, so each epoch is a single batch. "
        f"Set a smaller {key}"
        for key, size, _ in config.fit.batches(config.aug.size)
        if size > len(dataset.train)
    ]
    for note in notes:
        log.warning("%s", note)
    if balance := describe_balance(dataset, config.data.balance):
        log.info(balance)
    lines = (
        described and f"stages: {described}",
        loaders.train.placement.reason,
        *notes,
        balance,
        *learner.run.notes,
        config.fit.resume and f"resumes {config.fit.resume}",
        f"{facts.source}: {dataset.train.images:,} + {len(dataset.val):,} images, "
        f"{learner.task.count(len(dataset.classes))}; {facts.model}: "
        f"{facts.parameters / 1e6:.2f} M trainable parameters; {facts.device}; {shown(folder)}",
    )
    for line in filter(None, lines):
        console.print(line, highlight=False, soft_wrap=True)


def _describe_stop(learner: Learner | None, resumed: str | None, folder: Path) -> str:
    """Describe how to resume a run that a signal stopped in the middle of an epoch or before the fit."""
    when = "at once" if hasattr(learner, "error") else "before the first batch"
    run = folder if (folder / LAST).is_file() else resumed
    if run is None:
        return f"stopped {when}, so there is nothing to resume"
    return f"stopped {when}. fit.resume={shown(Path(run))} continues from its last checkpoint"
