"""One run: from a checked configuration to a trained model in a folder of its own."""

import logging
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, replace
from pathlib import Path
from time import monotonic

from rich.console import Console

from augment.data.images import name_of
from augment.data.selection import describe_balance
from augment.data.sources.loading import log_notices
from augment.recipe.plan import build_plan
from augment.recipe.steps import border_doubts, doubts
from augment.support.console import PlainConsole
from augment.support.errors import UserError, describe_error
from augment.support.files import json_line, remove_parts, shown, write_atomically, write_json
from augment.support.formatting import amount
from augment.support.signals import StopSignals
from augment.support.untrusted_files import UnreadableError, contents, regular
from augment.support.user_code import OwnCodeError, describe_own
from trainer.callbacks.optimizer_steps import FreshStatistics, Interrupt, LossScale, ParamScheduler, Prepare, ending_of
from trainer.callbacks.recorder import NonFiniteLossError, Recorder
from trainer.loop.callback import Callback
from trainer.loop.checkpoint import BEST, LAST, FitState, load
from trainer.loop.counts import Position
from trainer.loop.learner import Learner
from trainer.optim.settings import Schedule
from trainer.run.build import Loaders, make_learner, make_loaders, session
from trainer.run.config.schema import CONFIG_FILE, PLAN_FILE, Config, config_text, run_name, write_left_out
from trainer.run.failures import explain, explained
from trainer.run.folder.coco_ids import IDS_FILE, ids_of
from trainer.run.folder.ownership import RUNNING, Summary, summarize
from trainer.run.folder.reader import ENVIRONMENT_FILE, FACTS_FILE, RunFolder, environment, facts_of
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
        folder: the run's own folder; created if it is missing.
        console: where to print; None: the terminal.
        group: name of the sweep that the run is part of, for dashboards.
        varied: the overrides by which the run differs from others of its sweep, which name it by default.
        callbacks: callbacks in addition to those of the configuration.
        plan: whether to print the plan of the augmentation.
        began: when the run began, on the clock of `time.monotonic`; None: now.

    Returns:
        How the run ended, as recorded in the folder's summary.json. A failure is recorded there, too, and raised
        again. So is the KeyboardInterrupt of a signal that comes before the fit or for the second time, with a message
        that says how to resume.
    """
    begun = began or monotonic()
    name, console = run_name(config.run, folder, varied), console or PlainConsole()
    with StopSignals() as signals:
        folder.mkdir(parents=True, exist_ok=True)
        remove_parts(folder)
        learner: Learner | None = None
        opened = ExitStack()
        try:
            signals.check()
            opened.enter_context(session(config))
            Summary(RUNNING, folder, name=name, tags=config.run.written_tags).write()  # it has not ended
            # Data are usually loaded before the run has a log, and only once for all jobs of a sweep.
            log_notices(config.dataset.notices)
            plans = "\n".join(str(build_plan(config.aug, split)) for split in ("train", "val"))
            write_atomically(folder / CONFIG_FILE, config_text(config))
            write_json(folder / ENVIRONMENT_FILE, environment())
            write_atomically(folder / PLAN_FILE, plans + "\n")
            write_left_out(folder, config.dataset)
            loaders = opened.enter_context(closing(make_loaders(config)))
            every = (*_callbacks(config), *callbacks)
            learner = make_learner(config, loaders, folder, callbacks=every, group=group, name=name, began=begun)
            if plan:
                console.print(plans, highlight=False)
            _announce(config, learner, loaders, folder, console)
            start = Position() if config.fit.resume is None else resume(learner, loaders, config)
            done = sum(map(learner.batches_in, range(start.epoch))) + start.batch
            moved = learner.find(ParamScheduler).describe_moved(learner, done)
            for note in filter(None, (describe_changed_validation(learner), moved)):
                log.warning(note)
                console.print(note, highlight=False, soft_wrap=True)
            signals.check()
            signals.hold()  # the fit handles them; the work after it is short and should complete
            learner.fit(start)
            summary = summarize(learner, folder, monotonic() - begun)
            summary.write()
        except BaseException as error:
            signals.hold()
            # If the disk is full, callbacks fail in after_fit, too: report the error that ended the fit.
            cause = getattr(learner, "error", None) or error
            pressed = isinstance(cause, KeyboardInterrupt)
            failure = explain(cause, config, folder) or _of_state(cause, config, learner)
            complete = learner is not None and learner.position.epoch >= learner.epochs  # nothing is left to resume
            ending = "finished" if complete else "interrupted"
            status, why = (ending, "") if pressed else ("failed", describe_error(failure))
            with suppress(OSError):  # the message below says enough
                folder.stat()  # fails if the folder was deleted, so that it is not created again
                seconds = monotonic() - begun
                summary = Summary(status, folder, seconds=seconds, name=name, tags=config.run.written_tags)
                if learner is not None and hasattr(learner, "error"):  # the fit has begun
                    summary = summarize(learner, folder, seconds)
                replace(summary, status=status, error=why).write()
            if pressed:
                text = "stopped after the last epoch; figures or the report may be missing"
                cause.args = (text if complete else _cut_short(learner, config.fit.resume, folder),)
                log.info("%s", cause)
                raise cause from None
            if not isinstance(failure, UserError):
                log.exception("the run failed", exc_info=failure)
                raise failure from failure.__cause__
            if (folder / LAST).is_file() and not isinstance(failure, NonFiniteLossError):
                failure.hint = f"fit.resume={shown(folder)} continues from its last checkpoint."
                failure.args = (f"{failure} {failure.hint}",)
            log.error(
                "the run failed: %s",
                failure,
                exc_info=cause if isinstance(failure, OwnCodeError | UnreadableError) else None,
            )
            raise failure from cause
        finally:
            learner = None  # so that its memory is released, too
            opened.close()
        log.info("%s", summary)
        return summary


def follow(config: Config) -> str:
    """Train along with rank 0, which trains the same configuration with `train`; write and print nothing.

    Returns:
        How the fit ended: finished or interrupted. A LostRankError says that another rank has ended.
    """
    with StopSignals() as signals, session(config):
        signals.hold()
        with closing(make_loaders(config)) as loaders:
            return _fit_along(config, loaders)


def _fit_along(config: Config, loaders: Loaders) -> str:
    """Fit in a function of its own: at its end nothing refers to the model, whose memory can be released."""
    learner = make_learner(config, loaders, callbacks=_callbacks(config))
    with explained(config):
        learner.fit(Position() if config.fit.resume is None else resume(learner, loaders, config))
    return ending_of(learner)


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


def _of_state(error: BaseException, config: Config, learner: Learner | None) -> BaseException:
    """Return the error that names the checkpoint if one of a resumed run was raised before its first batch was done."""
    began = learner is not None and learner.find(Recorder).first is not None
    if config.fit.resume is None or began or describe_own(error):
        return error
    try:
        with contents(Path(config.fit.resume) / LAST):
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
    """Return the callbacks that every run has, whatever the configuration."""
    return Recorder(), Prepare(), ParamScheduler(schedules, plateau), Interrupt()


def _announce(config: Config, learner: Learner, loaders: Loaders, folder: Path, console: Console) -> None:
    """Write what the run knows of itself, and print a part of it: stages, decoding, settings without effect, data."""
    dataset, facts = config.dataset, facts_of(config, learner, RunFolder(folder).overrides)
    write_atomically(folder / FACTS_FILE, json_line(asdict(facts)))
    if ids := ids_of(dataset):
        write_atomically(folder / IDS_FILE, json_line(ids))
    stages = "; ".join(f"{s.name} {amount(s.epochs, 'epoch')} at {s}" for s in config.fit.full_stages(config.aug.size))
    notes = [*config.notes, *unused_settings(config.fit, learner.task), *doubts(config.aug)]
    notes += border_doubts(config.aug, dataset.kind.unrepeated)
    notes += filter(None, [config.fit.slow_precision])
    for note in notes:
        log.warning("%s", note)
    if balance := describe_balance(dataset, config.data.balance):
        log.info(balance)
    lines = (
        stages and f"stages: {stages}",
        loaders.train.placement.reason,
        *notes,
        balance,
        *learner.run.notes,
        config.fit.resume and f"resumes {config.fit.resume}",
        f"{facts.source}: {dataset.train.images:,} + {len(dataset.val):,} images, "
        f"{learner.task.count(len(dataset.classes))}; {facts.model}: "
        f"{facts.parameters / 1e6:.2f} M parameters; {facts.device}; {shown(folder)}",
    )
    for line in filter(None, lines):
        console.print(line, highlight=False, soft_wrap=True)


def _cut_short(learner: Learner | None, resumed: str | None, folder: Path) -> str:
    """Return a message that says how to resume a run that a signal stopped at once."""
    when = "at once" if hasattr(learner, "error") else "before the first batch"
    run = folder if (folder / LAST).is_file() else resumed
    what = "nothing to resume" if run is None else f"fit.resume={shown(Path(run))} continues from its last checkpoint"
    return f"stopped {when}; {what}"
