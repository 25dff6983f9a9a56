"""The text of `python -m trainer --help` and of its topics, derived from the declarations."""

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from augment.cli.compose import TOP
from augment.cli.config_files import EXPERIMENT, config_files, group_names
from augment.cli.help_text import columns, explain_op, op_list, rows, summary_of
from augment.cli.tools import find_tools, list_own_files, list_tools
from augment.data.sources import SOURCES, Source
from augment.params import Nested, Param, settings
from augment.recipe.equivalents import op_like
from augment.recipe.op import OPS
from augment.recipe.steps import Aug
from augment.recipe.views import View, Views
from augment.support.errors import UserError, nearest
from trainer.loop.callback import known_callbacks
from trainer.loop.resize_stages import StageSettings
from trainer.models.registry import MODELS
from trainer.optim.settings import OptimizerSettings
from trainer.run.config.fit import Fit
from trainer.run.config.schema import RunLabels, inner_keys
from trainer.run.config.sweep_settings import LAUNCHERS, SearchSettings

_WIDTH = 80

_DOCS = Path(__file__).parents[2] / "docs"  # only in a clone

# Words that users may search for, and the words in our help.
_SYNONYMS = {
    **dict.fromkeys(("oom", "ram", "vram"), "memory"),
    **dict.fromkeys(("ddp", "multi-gpu", "nccl"), "gpus"),
    **dict.fromkeys(("auc", "roc"), "auroc"),
    **dict.fromkeys(("class_weights", "oversampling", "pos_weight"), "imbalanced"),
    **dict.fromkeys(("grad-cam", "gradcam", "heatmap", "saliency"), "explain"),
    **dict.fromkeys(("coreml", "deploy", "tflite", "torchscript"), "onnx"),
    **dict.fromkeys(("profiler", "throughput"), "speed"),
    **dict.fromkeys(("distill", "distilling"), "distillation"),
    "finetuning": "finetune",
    "hook": "callbacks",
    "kfold": "folds",
    "mcc": "matthews",
    "onecycle": "one_cycle",
    "overfit": "overfitting",
    "reproducible": "deterministic",
}

_USAGE = """\
usage: python -m trainer [TOOL] [-m] [aug=NAME] [data=NAME] [key=value ...]
Without TOOL, train a model. --help TOPIC explains a topic or a tool below,
an op (rotate) or a key (fit.lr). --help all explains everything.
"""

_FLAGS = """\
  -m              train once for each combination of comma-separated values
  fit.resume=RUN  resume a run (add --trust if its folder names your own code)
  RUN             folder of a run, or last (the latest run), best or SWEEP:best
  --cfg job       print the configuration and exit
  --config-dir    a folder with more config files, like ./conf
  --version       print the version and exit
"""


@dataclass(frozen=True)
class Section:
    """Settings under a heading."""

    topic: str
    prefix: str
    head: str
    params: Mapping[str, Param[Any]]

    def lines(self, *only: str) -> list[str]:
        """Return the heading and a line for each setting, or only for the named settings."""
        params = {name: param for name, param in self.params.items() if not only or name in only}
        dot = f"{self.prefix}." if self.prefix else ""
        return [self.head, *(f"  {dot}{row}" for row in rows(params)), ""]


def sections() -> Iterator[Section]:
    """Yield the settings of all sections, in the order of --help."""
    optimizer, shared = settings(OptimizerSettings), settings(Source)
    fit = {name: param for name, param in settings(Fit).items() if name not in optimizer}
    yield Section("seed", "", "top-level setting", {"seed": TOP["seed"]})
    yield Section("plugins", "", "top-level setting", {"plugins": TOP["plugins"]})
    yield Section("run", "run", "run: name and tags", settings(RunLabels))
    yield Section("hydra.sweeper", "hydra.sweeper", "hydra/sweeper=optuna: a search, with -m", settings(SearchSettings))
    for name, cls in LAUNCHERS.items():
        head = f"hydra/launcher={name}  {summary_of(cls.__doc__)}"
        yield Section("hydra.launcher", "hydra.launcher", head, settings(cls))
    yield Section("fit", "fit", "fit", fit)
    yield Section("fit", "fit", "fit: the optimizer", optimizer)
    stages = "fit.stages.<stage>"
    yield Section("fit", stages, f"{stages}: progressive resizing", settings(StageSettings))
    yield Section("aug", "aug", "aug", settings(Aug))
    yield Section(
        "aug", "aug.views", "aug.views: several views of each training image with the same steps", settings(Views)
    )
    view = "aug.views.<view>"
    yield Section("aug", view, f"{view}: a view with its own `steps`", settings(View))
    yield Section("data", "data", "data: settings of all sources", shared)
    for group, (registry, key) in _registries().items():
        files = config_files(group)
        for name, cls in registry.items():
            topic = f"callbacks.{name}" if group == "callbacks" else f"{group}={name}"
            chosen = f"{group}={name}" if name in files else f"{key}{name}"
            own = {name: param for name, param in settings(cls).items() if shared.get(name) is not param}
            prefix = topic if group == "callbacks" else group
            yield Section(topic, prefix, f"{chosen}  {summary_of(cls.__doc__)}", own)
            for name, param in own.items():
                if isinstance(param, Nested):
                    inner = f"{prefix}.{name}"
                    yield Section(topic, inner, f"{inner}: {param.doc}", settings(param.of))


def _registries() -> dict[str, tuple[Mapping[str, type], str]]:
    """Return the registry of each group, and the prefix of its overrides, such as `data.source=`."""
    return {
        "data": (SOURCES, "data.source="),
        "model": (MODELS, "model.kind="),
        "callbacks": (known_callbacks(), "callbacks."),
    }


def topics() -> dict[str, str]:
    """Return the topics of --help, each with a phrase or with its choices."""
    found = {section.topic: section.head.rpartition(": ")[2] for section in sections() if "=" not in section.topic}
    found = {topic: text for topic, text in found.items() if not topic.startswith("callbacks.")}
    found |= {name: TOP[name].doc for name in TOP}
    found |= {group: ", ".join(registry) for group, (registry, _) in _registries().items()}
    found |= {"fit": summary_of(Fit.__doc__), "aug": summary_of(Aug.__doc__), "hydra.launcher": ", ".join(LAUNCHERS)}
    found |= {"aug.train": f"the {len(OPS)} ops: {', '.join(OPS)}"}
    found |= {group: ", ".join(config_files(group)) for group in group_names() if group not in found}
    return dict(sorted(found.items()))


def overview() -> str:
    """Return the text of --help, at most 80 columns wide."""
    lines = [_USAGE, "", "topics", *columns({f"{topic:<14}": text for topic, text in topics().items()}), ""]
    lines += ["tools", *list_tools("trainer").splitlines()]
    lines += [f"  python -m augment: {', '.join(find_tools('augment'))}", list_own_files(), "", "flags", _FLAGS]
    text = "\n".join(_fit_width(line) for part in lines for line in part.splitlines() or [""])
    return text.replace("\n\n\n", "\n\n") + "\n"


def _fit_width(line: str) -> str:
    """Shorten a line to the width of the screen."""
    indent = line[: len(line) - len(line.lstrip())]
    start, gap, rest = line.strip().partition("  ")
    fixed = f"{indent}{start}{gap}{rest[: len(rest) - len(rest.lstrip())]}"
    return fixed + textwrap.shorten(rest, _WIDTH - len(fixed), placeholder=" ...") if gap else line[:_WIDTH]


def answer(words: Sequence[str]) -> str:
    """Return the text of `--help WORD ...`: an explanation of each word, then what else contains all words.

    Raises:
        UserError: a word is unknown, and nothing contains all words.
    """
    words = [_SYNONYMS.get(word.lower(), word) for word in words]
    found = [] if {*words} & {"all", *topics(), *OPS} else _mentions(words)  # too many lines contain these
    explained = "".join(map(_define, words))
    with suppress(*([UserError] if found or explained else [])):
        explained = "\n".join(filter(None, [explained, *map(explain, words)]))
    more = [line for line in found if line not in explained]
    return "\n".join([explained, f"{' '.join(words)} is mentioned in", *more, ""]).lstrip() if more else explained


def _define(word: str) -> str:
    """Return the glossary's definition of a word as a line, or an empty string."""
    glossary = "".join(page.read_text() for page in _DOCS.glob("concepts.md"))
    found = re.search(rf"^\| {re.escape(word)} \| (.+) \|$", glossary, re.MULTILINE)
    without_links = re.sub(r"\[(.+?)]\(.+?\)", r"\1", found[1]) if found else ""
    return without_links and f"{word}: {without_links}\n"


def explain(word: str) -> str:
    """Return an explanation of a topic, a config file, an op or a key.

    Raises:
        UserError: nothing has this name.
    """
    if word == "all":
        files = (f"{group}=NAME: {', '.join(config_files(group))}" for group in group_names())
        setting_lines = ("\n".join(section.lines()) for section in sections())
        return "\n".join((overview(), *files, "", *setting_lines, *map(explain, (EXPERIMENT, *OPS))))
    name = word.lstrip("+~").replace("hydra/", "hydra.").rstrip(".=")
    step = re.fullmatch(r"aug\.(?:train|val)\.(\w+)(\.\w+)?", name)
    if name in ("ops", "aug.train", "aug.val"):
        return op_list()
    if step or name in OPS:
        return explain_op(step[1] if step else name, f"--help {word}")
    lines = list(_topic_lines(name)) or list(_key_lines(name))
    if not lines and name in (keys := inner_keys()):
        return explain(keys[name])
    if not lines and (op := op_like(name)):
        return explain_op(op, word)
    if not lines:
        known = {*topics(), *find_tools("trainer"), *OPS, *keys, *keys.values()}
        known |= {f"{group}={file}" for group in group_names() for file in config_files(group)}
        allowed = f"all, {', '.join(topics())}, or a tool, an op or a key"
        raise UserError(f"--help {word}: unknown topic.{nearest(name, known)} Allowed: {allowed}.")
    return "\n".join(lines).rstrip() + "\n"


def _topic_lines(name: str) -> Iterator[str]:
    """Yield the lines of a topic: its settings and its choices."""
    group, _, file = name.partition("=")
    files = config_files(group) if group in group_names() else {}
    if file in files:
        yield from (str(files[file]), *(f"  {line}" for line in files[file].read_text().splitlines()), "")
    for section in sections():
        if section.topic == name or (section.prefix == name and name not in _registries() and "=" not in section.topic):
            yield from section.lines()
    if name in files or not files or "=" in name:
        return
    registry, key = _registries().get(name, ({}, ""))
    if kinds := {kind: summary_of(cls.__doc__) for kind, cls in registry.items()}:
        shown = "callbacks.NAME" if name == "callbacks" else f"{name}=NAME"
        yield from (f"{key}NAME (explained by --help {shown})", *columns(kinds), "")
    yield f"{name}=NAME, files in conf/{name} (shown by --help {name}=NAME)"
    yield from columns({file: _first_sentence(path.read_text()) for file, path in files.items()})


def _key_lines(name: str) -> Iterator[str]:
    """Yield the lines of a setting from each section that has it."""
    prefix, _, last = name.rpartition(".")
    for section in sections():
        if section.prefix == prefix and last in section.params:
            yield from section.lines(last)
        if section.prefix == name and "=" in section.topic:  # a setting that contains settings
            yield from section.lines()


def _mentions(words: Sequence[str]) -> list[str]:
    """Return the flags, tools, config files, settings and pages that contain all words. Sort pages by frequency."""
    # A word also matches parts of keys, and forms with a final d or s. For example, imbalance matches imbalanced.
    lookaheads = (rf"(?=.*(?<![a-z]){re.escape(word)}[ds]?(?![a-z]))" for word in words)
    pattern = re.compile(f"^{''.join(lookaheads)}.*", re.IGNORECASE | re.MULTILINE)
    keys = (line for section in sections() for line in section.lines()[1:])
    files = (
        f"  {group}={file}  {_first_sentence(path.read_text())}"
        for group in group_names()
        for file, path in config_files(group).items()
    )
    lines = dict.fromkeys([*_FLAGS.splitlines(), *_tool_lines(), *files, *keys])
    counts = {f"  docs/{file.name}": len(pattern.findall(file.read_text())) for file in sorted(_DOCS.glob("*.md"))}
    pages = sorted(filter(counts.get, counts), key=counts.__getitem__, reverse=True)
    return [*filter(pattern.match, lines)][:16] + pages[:8]


def _tool_lines() -> Iterator[str]:
    """Yield a line for each tool and each of its options, from the tool's own --help."""
    for name, tool in find_tools("trainer").items():
        yield f"  python -m trainer {name}: {tool.summary}"
        with redirect_stdout(StringIO()) as page, suppress(SystemExit):
            tool.run(["--help"])
        unwrapped = re.sub(r"\n {9,}", " ", page.getvalue())
        for option, text in re.findall(r"^  (--\S+).*?  +(\S.*)", unwrapped, re.MULTILINE):
            yield f"  python -m trainer {name} {option}: {text}"


def _first_sentence(text: str) -> str:
    comments = [line.removeprefix("# ") for line in text.splitlines() if line.startswith("# ")]
    whole = " ".join(line for line in comments if not line.startswith("@package"))
    return re.split(r"(?<=\.) (?=[A-Z])", whole)[0]
