"""The command line: compose and check every job before anything is written, then run it."""

import logging
import sys
from argparse import Namespace
from collections.abc import Sequence
from fnmatch import fnmatch

from augment.cli.compose import TOP
from augment.cli.config_files import group_names
from augment.cli.help_text import print_help
from augment.cli.overrides import key_of, parse, reject_sweeps, reject_words
from augment.cli.parser import INTERRUPTED, TRUST_FLAG, Parser, readable_errors
from augment.cli.tools import find_tools, print_version, reject_tool
from augment.support.console import PlainConsole
from augment.support.errors import UserError
from augment.support.formatting import amount, printable
from augment.support.lazy_torch import torch
from augment.support.process import BEGAN, launched_ranks
from augment.support.signals import StopSignals
from augment.support.user_code import load_plugins
from trainer.cli.single_run import Prepared, prepare
from trainer.loop.ranks import leave
from trainer.run import NOTHING_TO_RESUME, ranks
from trainer.run.config.fit import AUTO
from trainer.run.config.schema import inner_keys
from trainer.run.folder.locks import named_folder, release, reserve
from trainer.run.jobs import RanksError, check_configs, resumed_in, run_job, start_of

# Hydra's own keys that have an effect, for a single run and for a sweep.
_OF_RUNS = ("hydra.run.dir", "hydra.searchpath")
_OF_SWEEPS = ("hydra.sweep.dir", "hydra.searchpath", "hydra?launcher*", "hydra?sweeper*")


class _Parser(Parser):
    def __init__(self) -> None:
        super().__init__("trainer", "", "", arguments="[key=value ...]")
        self.add_argument("--multirun", "-m", action="store_true")
        self.add_argument("--cfg", "-c", choices=["job"])
        self.add_argument("--config-name", "-cn", default="config")
        self.add_argument("--version", action="store_true")
        self.add_trust_flag()

    def meant(self, flag: str, after: str) -> str:
        """Suggest the setting or config group of the same name, otherwise the nearest flag."""
        name, equals, value = flag.lstrip("-").partition("=")
        name = name.replace("-", "_")
        if not equals:
            value = after if after and after[0] != "-" and "=" not in after else "..."
        keys, groups = inner_keys(), group_names()
        if flag.startswith("-aug."):
            meant = f"~{flag[1:]}"
        elif name in keys or name in keys.values():
            meant = f"{keys.get(name, name)}={value}"
        elif name in groups:
            meant = f"{name}={value}"
        else:
            return super().meant(flag, after)
        return f" Did you mean '{meant}'?"


def main(arguments: Sequence[str]) -> int:
    """Run the command line. Return the exit code."""
    logging.raiseExceptions = False  # otherwise a log on a full disk prints a traceback for each line
    # Errors are printed inside the context of signals: if one rank fails, its launcher stops the others meanwhile.
    with StopSignals() as signals, readable_errors():
        try:
            return _main(list(arguments), signals)
        except KeyboardInterrupt as error:
            # After the start of a run, the exception states how to resume.
            text = str(error) or ("stopped at once" if signals.held else NOTHING_TO_RESUME)
            sys.stdout.write(printable(f"{text}\n"))
            raise
        except Exception as error:
            if (printed := ranks.error_to_print(error)) is not error:
                raise printed from error
            raise
        finally:
            release()


def _main(arguments: list[str], signals: StopSignals) -> int:
    """Run a tool, print help or the version, or train."""
    tools = find_tools("trainer")
    if arguments and arguments[0] in tools:
        return tools[arguments[0]].run(arguments[1:])
    helps = {"-h", "--help"}
    if arguments and not helps & {*arguments} and arguments[0][:1] not in "-+~" and "=" not in arguments[0]:
        reject_tool(arguments, "trainer", only_similar=True)
    flags, overrides = _Parser().split([token for token in arguments if token not in helps])
    if flags.version:
        return print_version()
    if helps & {*arguments}:
        _load_given_plugins(overrides)
        return _help(overrides)
    reject_words(overrides)
    if not ranks.follows():  # otherwise, each rank would print the error
        _check_flags(flags, resumed_in(overrides))
    return _train(flags, overrides, arguments, signals)


def _check_flags(flags: Namespace, resumed: str | None) -> None:
    """Reject combinations of flags that contradict each other. `resumed` is the value of fit.resume."""
    if flags.multirun and flags.cfg:
        raise UserError("--multirun and --cfg cannot be combined. Use one of them.")
    if flags.trust and resumed in (None, AUTO):
        raise UserError(f"{TRUST_FLAG} has no effect without fit.resume=RUN. Add fit.resume=RUN, or remove the flag.")
    if flags.multirun and resumed == AUTO:
        raise UserError(
            "fit.resume=auto resumes only single runs. Remove it. To continue a sweep, set hydra.sweep.dir to its "
            "folder."
        )
    if flags.multirun and launched_ranks() > 1:
        raise UserError(
            "--multirun does not work with torchrun. Remove torchrun, and set the number of GPUs of each job: "
            f"hydra.launcher.gpus_per_job={launched_ranks()}."
        )


def _train(flags: Namespace, overrides: Sequence[str], arguments: Sequence[str], signals: StopSignals) -> int:
    """Train a run or a sweep, or print its configuration."""
    tokens, start, before = start_of(overrides, trust=flags.trust, config_name=flags.config_name)
    if ranks.follows():
        return ranks.follow()
    if flags.cfg:
        ranks.share(None)
        sys.stdout.write(printable(start.text(tokens)))
        return 0
    _check_hydra(tokens, sweeps=flags.multirun)
    if not flags.multirun:
        reject_sweeps(tokens)
        return _run(prepare(tokens, start, before), arguments, signals)
    from trainer.sweeps.sweep.command import Request, sweep

    return sweep(Request.of(tokens, start), signals)


def _help(given: Sequence[str]) -> int:
    """Print the overview, or explain topics, tools and config files. Return the exit code."""
    from trainer.cli.help import answer, overview

    tools, groups = find_tools("augment") | find_tools("trainer"), group_names()
    words = [token for token in given if "=" not in token or token.lstrip("+").partition("=")[0] in groups]
    if tool := next((tools[word] for word in words if word in tools), None):
        return tool.run(["--help"])
    print_help(answer(words) if words else overview())
    return 0


def _run(run: Prepared, arguments: Sequence[str], signals: StopSignals) -> int:
    """Check and train a single run. Return the exit code."""
    if run.done is not None:
        sys.stdout.write(printable(f"already finished, so there is nothing to resume: {run.done}\n"))
        ranks.share(None)
        return 0
    try:
        check_configs([run.config], signals)
    except RanksError as several:
        release()
        seen = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if seen < several.count and run.config.fit.device != "cpu":
            gpus = amount(seen, "GPU") if seen else "no GPU"
            remedy = f"fit.gpus={seen} or fit.device=cpu" if seen else "fit.device=cpu, or remove fit.gpus"
            raise UserError(f"fit.gpus={several.count}: PyTorch sees {gpus} here. Set {remedy}.") from None
        return ranks.start(several.count, arguments)
    ranks.share(run.config.resolved)
    signals.check()
    signals.hold()  # from here on, the run handles signals
    folder, console = named_folder(run.template.dir, "hydra.run.dir"), PlainConsole()
    reserve(folder, run.config.fit.resume, key="hydra.run.dir", again=run.again)
    summary = run_job(run.config, run.tokens, folder, console=console, began=BEGAN)
    console.print(str(summary), highlight=False, soft_wrap=True)
    ranks.share(None)
    leave()
    return INTERRUPTED if summary.status == "interrupted" else 0


def _check_hydra(tokens: Sequence[str], *, sweeps: bool) -> None:
    """Reject Hydra's own settings that have no effect."""
    for key in (key_of(parse(token)) for token in tokens):
        allowed, others = (_OF_SWEEPS, _OF_RUNS) if sweeps else (_OF_RUNS, _OF_SWEEPS)
        if key.startswith(("hydra.", "hydra/")) and not any(fnmatch(key, name) for name in allowed):
            why = "unknown key"
            if any(fnmatch(key, name) for name in others):
                why = "has no effect on a sweep" if sweeps else "has no effect without -m"
            raise UserError(f"{key}: {why}. Allowed: {', '.join(allowed).replace('?', '.')}.")


def _load_given_plugins(tokens: Sequence[str]) -> None:
    """Import the plugins that the command line names, so that --help lists their ops and callbacks."""
    for override in (parse(token) for token in tokens if "=" in token):
        if (key := key_of(override)) in ("plugins", "aug.plugins"):
            load_plugins(tuple(TOP["plugins"].parse(override.value(), key) or ()), key)
