"""The command line: compose and check every job, and only then let Hydra make folders and run."""

import errno
import logging
import os
import sys
import warnings
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from uuid import uuid4

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig

from augment.cli.compose import TOP, plain_values
from augment.cli.conf import CONF, default_groups, group_names, register_folders, set_config_dir
from augment.cli.overrides import key_of, normalize, parse, refuse_sweeps, refuse_words
from augment.cli.parser import INTERRUPTED, readable_errors
from augment.cli.tools import find_tools, print_version, refuse_tool
from augment.support.console import PlainConsole
from augment.support.errors import UserError
from augment.support.hydra_versions import VERSION_BASE, register_resolver
from augment.support.own_code import load_plugins
from augment.support.process import BEGAN, launched
from augment.support.signals import StopSignals
from augment.support.text import printable
from trainer.cli import folders, ranks
from trainer.cli.auto import is_auto, resume_auto
from trainer.run import NOTHING_TO_RESUME
from trainer.run.config import inner_keys, parse_config
from trainer.run.folder import owned, release
from trainer.run.jobs import RanksError, check_jobs, require_ranks
from trainer.run.overrides import flags_first, parse_flags, with_resumed

_FLAGS = (
    "-m",
    "--multirun",
    "--cfg job",
    "--config-dir DIR",
    "--config-name NAME",
    "--trust (with fit.resume)",
    "--version",
    "--help",
)

# Flags of Hydra that say what to do; it allows one.
_MODES = ("multirun", "run", "cfg", "info")

# Flags of Hydra that would run what nobody has checked, or complete keys that it does not know.
_REFUSED = ("config-path", "experimental-rerun", "shell-completion")

# Two runs that start in the same second must not share a folder.
register_resolver("run_suffix", lambda: uuid4().hex[:6], use_cache=True, replace=True)


def main(arguments: Sequence[str]) -> int:
    """Run the command line; return the exit code."""
    # With this set, Hydra raises instead of printing and exiting, so that all messages are printed in one place.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    logging.raiseExceptions = False  # a log on a full disk is no reason for a traceback for each of its lines
    with readable_errors(), StopSignals() as signals:
        try:
            return _main(list(arguments), signals)
        except KeyboardInterrupt as error:
            # A run that began says itself what there is to resume.
            sys.stdout.write(f"{str(error) or ('stopped at once' if signals.held else NOTHING_TO_RESUME)}\n")
            raise
        except Exception as error:
            if (printed := ranks.once(error)) is not error:
                raise printed from error
            raise
        finally:
            release()


def _main(arguments: list[str], signals: StopSignals) -> int:
    tools = find_tools("trainer")
    if arguments and arguments[0] in tools:
        if launched() > 1:
            raise UserError(f"{arguments[0]}: runs in one process. Allowed: to start it without torchrun.")
        return tools[arguments[0]].run(arguments[1:])
    if "--version" in arguments:
        return print_version()
    if arguments and arguments[0][:1] not in "-+~" and "=" not in arguments[0]:
        refuse_tool(arguments[0], "trainer", surely=False)
    set_config_dir(parse_flags(arguments)[0].config_dir)
    if "--help" in arguments or "-h" in arguments:
        from trainer.tools.reference import help_text

        _load_given_plugins(arguments)
        sys.stdout.write(help_text(group_names()))
        return 0
    tokens = flags_first(normalize(with_resumed(arguments)))
    args, unknown = parse_flags(tokens)
    unknown += [f"--{name}" for name in _REFUSED if getattr(args, name.replace("-", "_"))]
    if unknown:
        flag = next((token for token in tokens if token.split("=")[0] == unknown[0].split("=")[0]), unknown[0])
        after = arguments[arguments.index(flag) + 1 :][:1] if flag in arguments else []
        meant = _meant(flag, *(word for word in after if word[:1] != "-" and "=" not in word))
        raise UserError(f"{flag}: unknown flag.{meant} Allowed: {', '.join(_FLAGS)}; key=value.")
    refuse_words(args.overrides)
    if len(modes := [f"--{name}" for name in _MODES if getattr(args, name.replace("-", "_"))]) > 1:
        raise UserError(f"{' and '.join(modes)}: exclude each other. Allowed: one of them.")
    if ranks.follows():
        return ranks.follow(lambda: (args.overrides, args.config_name or "config"))
    only_shows = args.cfg or args.info or args.hydra_help
    if only_shows:
        ranks.send(None)
    else:
        if not args.multirun:
            refuse_sweeps(args.overrides)
        if is_auto(args.overrides):
            if args.multirun:
                raise UserError(
                    "fit.resume=auto: resumes only single runs. Allowed: --multirun without it; sweeps continue by "
                    "themselves in the folder that hydra.sweep.dir names."
                )
            given, done = resume_auto(args.overrides, config_name=args.config_name or "config")
            if done is not None:
                sys.stdout.write(printable(f"already finished, nothing to resume: {done}\n"))
                ranks.send(None)
                return 0
            tokens = [*(token for token in tokens if token not in args.overrides), *given]
            args.overrides = given
        if args.multirun:
            if launched() > 1:
                raise UserError("--multirun: each job trains on one GPU. Allowed: to start it without torchrun.")
            from trainer.sweeps.start import Request, sweep

            return sweep(Request.of(args.overrides, args.config_name or "config"), signals)
        try:
            (config,) = check_jobs([args.overrides], config_name=args.config_name or "config", signals=signals)
        except RanksError as several:
            release()
            return ranks.start(several.count, arguments)
        ranks.send(config, args.overrides, args.config_name or "config")
    signals.check()
    signals.hold()  # from here on there may be a folder, whose run handles them
    statuses = _run_hydra(tokens)
    if not only_shows:
        ranks.share(None)
    ranks.leave()
    return INTERRUPTED if "interrupted" in statuses else 0


def _run_hydra(tokens: Sequence[str]) -> list[str]:
    """Let Hydra run a job, or show what it is asked to show; return how the job ended."""
    register_folders()
    sys.argv = [sys.argv[0], *tokens]
    statuses: list[str] = []
    errors: list[Exception] = []
    warnings.filterwarnings("ignore", "hydra.utils.instantiate", UserWarning)  # of Hydra 1.4, at its own callbacks
    try:
        hydra.main(**VERSION_BASE, config_path=str(CONF), config_name="config")(_job(statuses, errors))()
    except HydraException:  # some are an OSError, too
        raise
    except folders.RefusedError as refused:
        raise UserError(str(refused)) from refused
    except (OSError, ValueError) as error:  # a job raises none: it is the folder that Hydra makes for it, or a pipe
        cause = error if isinstance(error, OSError) else error.__cause__  # of a log that cannot be opened
        if not isinstance(cause, OSError) or cause.errno == errno.EPIPE:
            raise
        what = "the run's folder" if cause.filename is None else cause.filename
        raise UserError(
            f"{what}: cannot be created: {cause.strerror}. Allowed: to start in a writable folder on a disk with free "
            "space."
        ) from error
    if errors:
        raise errors[0]
    return statuses


def _load_given_plugins(arguments: Sequence[str]) -> None:
    """Import the plugins that the command line names, so that --help lists what they declare."""
    for override in (parse(token) for token in arguments if "=" in token and not token.startswith("-")):
        if (key := key_of(override)) in ("plugins", "aug.plugins"):
            load_plugins(tuple(TOP["plugins"].parse(override.value(), key) or ()), key)


def _meant(flag: str, value: str = "...") -> str:
    """Return a hint at the setting or config group of the same name, or at the nearest flag, if there is one.

    Args:
        flag: the unknown flag, perhaps with its value.
        value: the word after it.
    """
    name, equals, own = flag.lstrip("-").partition("=")
    name, value = name.replace("-", "_"), own if equals else value
    keys, groups = inner_keys(), group_names()
    if name in keys or name in keys.values():
        return f" Did you mean '{keys.get(name, name)}={value}'?"
    if name in groups:
        return f" Did you mean '{'' if default_groups().get(name) else '+'}{name}={value}'?"
    if flag.startswith("-aug."):
        return f" Did you mean '~{flag[1:]}'?"
    if flag == "--config-path":
        return " Did you mean '--config-dir'?"
    known = [known.partition(" ")[0] for known in _FLAGS]
    near = [] if flag in known else get_close_matches(flag, known, n=1, cutoff=0.7)
    return f" Did you mean '{near[0]}'?" if near else ""


def _job(statuses: list[str], errors: list[Exception]) -> "hydra.types.TaskFunction":
    """Return what Hydra runs; it raises nothing but KeyboardInterrupt, as Hydra would print other errors.

    Args:
        statuses: collects how the job ended.
        errors: collects the error of a failed job.
    """

    def job(composed: DictConfig) -> None:
        folder = Path(HydraConfig.get().runtime.output_dir)
        console = PlainConsole()
        try:
            config = parse_config(plain_values(composed))
            require_ranks(config)
            from trainer.run.train import train

            with owned(folder, config.fit.resume):
                summary = train(config, folder, console=console, began=BEGAN)
        except Exception as error:
            errors.append(error)
            return
        statuses.append(summary.status)
        console.print(str(summary), highlight=False, soft_wrap=True)

    return job
