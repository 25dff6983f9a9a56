"""Reference texts, derived from the declarations: --help, and the parts of the README that must not drift.

`python -m trainer.reference` rewrites those parts.
"""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from omegaconf import OmegaConf

from augment.compose import CONF, TOP
from augment.config import Aug
from augment.experiment import EXPERIMENT
from augment.params import Choice, Param, settings
from augment.registry import COMMON, OPS
from augment.sources import SOURCES, Source
from trainer.callback import in_order, loop_text
from trainer.callbacks import CALLBACKS, Interrupt, ParamScheduler, parse_callbacks
from trainer.config import Fit
from trainer.models import MODELS
from trainer.optimizers import OptimizerSettings
from trainer.prepare import Prepare
from trainer.recorder import Recorder
from trainer.stages import Stage

README = CONF.parent / "README.md"

_USAGE = """\
python -m trainer [+aug=NAME] [data=NAME] [model=NAME] [fit=NAME] [key=value ...]     train
python -m trainer +experiment=NAME [key=value ...]                                    train as a file says
python -m trainer -m key=value,value ...                                              sweep: a run for each
python -m trainer fit.resume=RUN_FOLDER                                               go on with a run
python -m trainer.find_lr [+aug=NAME] [key=value ...]                                 suggest a learning rate
python -m trainer.evaluate RUN_FOLDER [DIR] [--tta flip]                              score its best model
python -m trainer.predict RUN_FOLDER FILE_OR_FOLDER ... [--top 3] [--csv FILE]        what it takes pictures for
python -m trainer.report RUN_FOLDER                                                   write its report anew
python -m trainer.bench [+aug=NAME] [key=value ...]                                   say whether it waits for data
python -m trainer --cfg job ...                                                       show what is composed
python -m augment.plan +aug=NAME [--against NAME]                                     show, or compare, recipes
python -m augment.preview +aug=NAME | --op NAME|all                                   draw what they do
python -m augment.bench +aug=NAME                                                     measure how fast they are
python -m augment.export +aug=NAME                                                    take validation elsewhere
python -m augment.info data=NAME ...                                                  what data hold, what looks wrong
python -m augment.convert data=NAME ... --to FORMAT --out DIR                         write data in another format
python -m augment.bench.sources data=NAME ...                                         measure data in all formats
"""


def help_text(groups: Sequence[str]) -> str:
    """Return the text of --help.

    Args:
        groups: config groups, whose files lie in conf/.
    """
    lines = [_USAGE, f"Groups of files in conf/: {', '.join(groups)}", ""]
    lines += ["experiment=NAME", *(f"  {name}: {text}" for name, text in experiments().items()), ""]
    lines += [*_rows(TOP), ""]
    optimizer = settings(OptimizerSettings)
    lines += _section("fit", {name: param for name, param in settings(Fit).items() if name not in optimizer})
    lines += _section("fit", optimizer, head="fit: the optimizer")
    lines += _section("fit.stages.<stage>", settings(Stage), head="fit.stages.<stage>: sizes that change over epochs")
    lines += _section("aug", settings(Aug))
    shared = settings(Source)
    lines += _section("data", shared, head="data: what every source takes besides its own")
    for title, registry in (("data", SOURCES), ("model", MODELS), ("callbacks", CALLBACKS)):
        for name, cls in registry.items():
            prefix = f"callbacks.{name}" if title == "callbacks" else title
            own = {name: param for name, param in settings(cls).items() if shared.get(name) is not param}
            lines += _section(prefix, own, head=f"{title}={name}  {_first_line(cls.__doc__)}")
    lines += ["aug.train.<step>, aug.val.<step>: the ops", *_common_rows()]
    for op in OPS.values():
        lines.append(f"  {op.name} ({op.kind})  {_first_line(op.doc)}")
        lines += [f"    {row}" for row in _rows(op.own_params)]
    return "\n".join(lines) + "\n"


def experiments() -> dict[str, str]:
    """Return the experiments that come with the project, each with the first sentence of its comment."""
    return {file.stem: _comment(file.read_text()) for file in sorted((CONF / EXPERIMENT).glob("*.yaml"))}


def _comment(text: str) -> str:
    comments = [line.removeprefix("# ") for line in text.splitlines() if line.startswith("# ")]
    whole = " ".join(line for line in comments if not line.startswith("@package"))
    return re.split(r"(?<=\.) (?=[A-Z])", whole)[0]


def op_table() -> str:
    """Return the table of ops in Markdown."""
    lines = ["| op | kind | what it does | parameters with their defaults |", "|---|---|---|---|"]
    for op in OPS.values():
        params = [f"`{name}` {_markdown(param)}" for name, param in op.own_params.items()]
        lines.append(f"| `{op.name}` | {op.kind} | {_first_line(op.doc)} | {'<br>'.join(params) or 'none'} |")
    return "\n".join(lines) + "\n"


def source_table() -> str:
    """Return the table of sources in Markdown."""
    shared = settings(Source)
    lines = ["| `data=` | what it reads | needs | may have |", "|---|---|---|---|"]
    for name, cls in SOURCES.items():
        own = {key: param for key, param in settings(cls).items() if shared.get(key) is not param}
        needed = ", ".join(f"`{key}`" for key, param in own.items() if param.required)
        optional = ", ".join(f"`{key}`" for key, param in own.items() if not param.required)
        doc = _first_line(cls.__doc__).replace("<", "&lt;")
        lines.append(f"| `{name}` | {doc} | {needed} | {optional} |")
    lines.append(f"| all of them | | | {', '.join(f'`{key}`' for key in shared)} |")
    return "\n".join(lines) + "\n"


def default_loop() -> str:
    """Return the loop with the callbacks of the default configuration."""
    configured = OmegaConf.to_container(OmegaConf.load(CONF / "callbacks" / "default.yaml"))
    callbacks = [make() for make in parse_callbacks(configured)]
    return loop_text(in_order([Recorder(), ParamScheduler({}), Interrupt(), Prepare(), *callbacks]))


def derived_parts() -> dict[str, str]:
    """Return the README's derived parts by the name of their marks."""
    recipe = (CONF / "aug" / "imagenette.yaml").read_text()
    return {
        "recipe": f"```yaml\n# conf/aug/imagenette.yaml\n{recipe}```\n",
        "sources": source_table(),
        "ops": op_table(),
        "loop": f"```\n{default_loop()}\n```\n",
    }


def with_derived_parts(text: str) -> str:
    """Return the README with its derived parts written anew, each between <!-- name --> and <!-- /name -->."""
    for name, part in derived_parts().items():
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        if begin not in text or end not in text:
            raise ValueError(f"the README lacks the marks of '{name}'")
        before, rest = text.split(begin, 1)
        text = before + begin + part + end + rest.split(end, 1)[1]
    return text


def main() -> int:
    """Rewrite the README's derived parts."""
    README.write_text(with_derived_parts(README.read_text()))
    return 0


def _section(prefix: str, params: Mapping[str, Param[Any]], head: str | None = None) -> list[str]:
    return [head or prefix, *(f"  {prefix}.{row}" for row in _rows(params)), ""]


def _rows(params: Mapping[str, Param[Any]]) -> Iterator[str]:
    for name, param in params.items():
        default = "required" if param.required else f"default {_default(param)}"
        yield f"{name}: {param.doc} ({param.allowed()}; {default})"


def _common_rows() -> Iterator[str]:
    """Yield what all ops of a kind take; crops, which are applied to every picture, take nothing."""
    kinds = {kind: params for kind, params in COMMON.items() if params}
    shared = {name: param for name, param in kinds["geometry"].items() if all(name in p for p in kinds.values())}
    yield "  each of them but the crops takes"
    yield from (f"    {row}" for row in _rows(shared))
    for kind, params in kinds.items():
        if rest := {name: param for name, param in params.items() if name not in shared}:
            yield f"  each of kind {kind} takes besides"
            yield from (f"    {row}" for row in _rows(rest))


def _markdown(param: Param[Any]) -> str:
    """Return default and doc of a parameter; what else is allowed is said by --help, but for names of a few."""
    names = f"; {param.allowed()}" if isinstance(param, Choice) else ""
    return f"({_default(param)}) {param.doc}{names}"


def _default(param: Param[Any]) -> str:
    if param.default is None:
        return "null"
    return "[]" if param.default == () else param.show(param.default)


def _first_line(doc: str | None) -> str:
    return re.sub(r"\s+", " ", (doc or "").split("\n\n")[0]).strip()


if __name__ == "__main__":
    sys.exit(main())
