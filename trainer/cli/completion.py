"""Complete command lines in bash, zsh and fish: tools, keys, groups, ops and values.

Shells run this file directly, without importing the package, so that it answers at once. Names and values come from a
cache, which is rebuilt when a module has changed. Files of conf/ are listed each time.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
_OURS = r"(-m[[:space:]]+|dali-)(trainer|augment)[[:space:]]"
_PROGRAMS = "python python3 dali-trainer dali-augment"

# COMPLETE stands for the command that prints completions. Bash splits words at = and :, and completes the last part.
_BASH = f"""\
_dali() {{
    local line="${{COMP_LINE:0:COMP_POINT}}" ours='{_OURS}' IFS=$'\\n' word
    [[ $line =~ $ours ]] || return
    word="${{line##*[[:space:]]}}"
    COMPREPLY=($(COMPLETE "$line"))
    COMPREPLY=("${{COMPREPLY[@]#"${{word%"${{word##*[=:]}}"}}"}}")
    [[ ${{COMPREPLY[0]}} != *[.=] ]] || compopt -o nospace
}}
complete -o default -o bashdefault -F _dali {_PROGRAMS}
"""
_ZSH = f"""\
_dali() {{
    [[ $LBUFFER =~ '{_OURS}' ]] || {{ (( $+functions[_python] )) && _python "$@" || _default "$@"; return }}
    local -a found=(${{(f)"$(COMPLETE "$LBUFFER")"}})
    (( $#found )) || {{ compset -P '*='; _files; return }}
    compadd -S '' -- ${{(M)found:#*[.=]}}
    compadd -- ${{found:#*[.=]}}
}}
compdef _dali {_PROGRAMS}
"""
_FISH = f"""\
function __dali
    set -g __dali_found (COMPLETE (commandline -cp | string collect))
    test (count $__dali_found) -gt 0
end
for program in {_PROGRAMS}
    complete -c $program -n __dali -f -a '$__dali_found'
end
"""
SHELLS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def script(shell: str) -> str:
    """Return shell code that enables completion. This also writes the cache if needed."""
    _cached()
    return SHELLS[shell].replace("COMPLETE", f"{shlex.quote(sys.executable)} -IS {shlex.quote(__file__)}")


def complete(line: str) -> list[str]:
    """Return completions of the last word, up to its next separator. Without any, the shell completes files."""
    found = re.search(r"(?:-m\s+|dali-)(trainer|augment)\s+(.*)$", line, re.DOTALL)
    if not found:
        return []
    known, words = _cached(), ["", *found[2].split(), *([""] if not found[2] or found[2][-1].isspace() else [])]
    *before, word = words[1:]
    tools, ops = known["tools"][found[1]], [key.split(".")[2] for key in known["keys"] if key.startswith("aug.train.")]
    tool = next((given for given in before[:1] if given in tools), "")
    if before[-1:] == ["--op"] or tool == "ops":
        names: Iterable[str] = ops
    elif "--help" in before:
        names = [*known["topics"], *tools, *ops, *(key for key in known["keys"] if "." in key)]
    elif "=" in word:
        return list(_values(word, before, known["keys"]))
    elif (tool and not word) or word.startswith("-"):
        return []  # many tools expect files, and --help lists their flags
    elif found[1] == "augment" and not before:
        names = tools
    elif word.startswith("+"):
        names = (f"{group}=" for group in _groups(before))
    else:
        names = (*(tools if not before else ()), *(f"{key}=" for key in (*known["keys"], *_groups(before))))
    return _next(word, names)


def _next(word: str, names: Iterable[str]) -> list[str]:
    """Return the names that begin with a word, up to the next dot. For a step removed by ~, the dot is left out."""
    sign = word[: len(word) - len(word.lstrip("+~"))]
    start = len(word) - len(sign)
    found: dict[str, None] = {}
    for name in names:
        if name.startswith(word[len(sign) :]):
            dot = name.find(".", start) + 1
            part = name[:dot] if dot else name
            found[sign + (part.rstrip(".=") if sign == "~" and part.count(".") > 2 else part)] = None
    return [name for name in found if name]


def _values(word: str, before: list[str], keys: dict[str, list[str]]) -> Iterator[str]:
    """Yield KEY=VALUE for each possible value. In the list of a sweep, the last value is completed."""
    key, _, value = word.partition("=")
    bare, typed = key.lstrip("+"), value.rpartition(",")
    values = _groups(before).get(bare) or keys.get(bare, [])
    yield from (f"{key}={typed[0]}{typed[1]}{one}" for one in values if one.startswith(typed[2]))


def _groups(before: list[str]) -> dict[str, list[str]]:
    """Return the files of each group in conf/ of the project, of the current folder and of --config-dir."""
    given = [after for flag, after in pairwise(before) if flag in ("--config-dir", "-cd")]
    found: dict[str, set[str]] = {}
    for folder in (_ROOT / "augment" / "conf", *map(Path, ("conf", *given))):
        for file in folder.glob("*/*.yaml"):
            found.setdefault(file.parent.name, set()).add(file.stem)
    return {group: sorted(names) for group, names in sorted(found.items())}


def _cached() -> Any:
    """Return the declared names from the cache, which is rebuilt if a module has changed."""
    modules = [file for package in ("augment", "trainer") for file in (_ROOT / package).rglob("*.py")]
    stamp = [str(_ROOT), len(modules), max(file.stat().st_mtime_ns for file in modules)]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dali-trainer"
    file = folder / "completion.json"
    try:
        if (known := json.loads(file.read_bytes()))["stamp"] == stamp:
            return known
    except (OSError, ValueError, KeyError):
        pass
    code = "from trainer.cli.completion import declared; declared()"
    path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path}, capture_output=True)
    known = json.loads(done.stdout.rpartition(b"\n")[2]) | {"stamp": stamp}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (part := folder / f"{os.getpid()}.part").write_text(json.dumps(known))
        part.replace(file)
    except OSError:
        pass  # the next call collects the names again
    return known


def declared() -> None:
    """Print the declared names as a line of JSON: keys with their values, tools, help topics."""
    from augment.cli.config_files import config_files
    from augment.cli.tools import find_tools
    from augment.data.sources import SOURCES
    from augment.params import CacheSize, Choice, Flag, Param
    from augment.recipe.op import OPS
    from augment.recipe.steps import SPLITS
    from trainer.cli.help import sections, topics
    from trainer.loop.callback import known_callbacks
    from trainer.models.registry import MODELS
    from trainer.tasks.loss import LOSSES

    def values(param: Param[Any]) -> list[str]:
        fixed = {Flag: ("true", "false"), CacheSize: ("off", "gpu")}.get(type(param), ())
        names = [*(param.options if isinstance(param, Choice) else fixed)]
        return names + ["null"] * (param.optional and bool(names))

    keys = {f"hydra/{name}": [*config_files(f"hydra/{name}")] for name in ("launcher", "sweeper")}
    for section in sections():
        for name, param in section.params.items() if "<" not in section.prefix else ():
            keys.setdefault(f"{section.prefix}.{name}".lstrip("."), []).extend(values(param))
    keys |= {
        "fit.resume": ["auto", "last"],
        "data.source": [*SOURCES],
        "model.kind": [*MODELS],
        "fit.loss": sorted({name for _, name in LOSSES}),
    }
    keys |= {f"callbacks.{name}": ["null", "{}"] for name in known_callbacks()}
    for split in SPLITS:
        keys |= {f"aug.{split}.{op.name}.{name}": values(p) for op in OPS.values() for name, p in op.params.items()}
    tools = {package: [*find_tools(package)] for package in ("trainer", "augment")}
    keys = {key: list(dict.fromkeys(names)) for key, names in keys.items()}
    sys.stdout.write("\n" + json.dumps({"keys": keys, "tools": tools, "topics": [*topics()]}))


if __name__ == "__main__":
    sys.stdout.write("".join(f"{word}\n" for word in complete(sys.argv[1])))
