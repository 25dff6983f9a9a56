"""Layers: which package may import which, and where modules may be."""

import ast
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
MAX_LINES = 500  # a hint: one idea per file

# From top to bottom. A module imports from its own package and from layers below. Packages of one layer never import
# each other.
LAYERS: dict[str, tuple[tuple[str, ...], ...]] = {
    "augment": (("tools",), ("cli", "pipeline"), ("recipe", "data"), ("params", "drawing"), ("support",)),
    "trainer": (
        ("cli",),
        ("stress",),
        ("tools", "report", "sweeps"),
        ("predictions",),
        ("run",),
        ("callbacks",),
        ("loop", "figures"),
        ("optim", "models", "tasks"),
    ),
}
FACE = ("__init__", "__main__")  # the only modules at the top of a package; they may import from every package


def sources(root: Path) -> dict[str, str]:
    """Return the source of each module by its full name; a package has the name of its folder plus `.__init__`."""
    files = sorted(file for package in LAYERS for file in (root / package).rglob("*.py"))
    return {".".join(file.relative_to(root).with_suffix("").parts): file.read_text() for file in files}


tree = cache(ast.parse)


@cache
def imports(source: str, *, typing: bool = False) -> frozenset[str]:
    """Return what a module imports, also within functions; with `typing`, also what only a type checker sees."""
    found: set[str] = set()
    waiting: list[ast.AST] = [tree(source)]
    while waiting:
        node = waiting.pop()
        if not typing and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
            continue
        waiting += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(found)


def edges(modules: dict[str, str], *, typing: bool = False) -> dict[str, set[str]]:
    """Return for each module the modules of the project that it imports; `typing` as in `imports`."""

    def resolve(name: str) -> str | None:
        for candidate in (name, name.rpartition(".")[0]):
            for module in (candidate, f"{candidate}.__init__"):
                if module in modules:
                    return module
        return None

    return {
        name: {found for target in imports(source, typing=typing) if (found := resolve(target)) and found != name}
        for name, source in modules.items()
    }


def violations(modules: dict[str, str]) -> list[str]:
    """Return every breach of the rules, a sentence each."""
    found = []
    for name, source in modules.items():
        package, folder = name.split(".")[:2]
        if name.count(".") == 1 and folder not in FACE:
            found.append(f"{name} lies loose")
        elif folder not in FACE and not any(folder in row for row in LAYERS[package]):
            found.append(f"{name} is in no known package")
        if len(source.splitlines()) > MAX_LINES:
            found.append(f"{name} has more than {MAX_LINES} lines")
    for name, targets in edges(modules).items():
        found += [f"{name} imports {target}" for target in sorted(targets) if not allowed(name, target)]
    graph = edges(modules, typing=True)  # a circle of annotations alone also ties its modules together
    return found + circles(graph)


def allowed(name: str, target: str) -> bool:
    """Whether a module may import another."""
    (package, folder), (other, target_folder) = name.split(".")[:2], target.split(".")[:2]
    if package != other:
        return package == "trainer" and target_folder != "tools"
    if folder in FACE or folder == target_folder:
        return True
    height = {known: -row for row, folders in enumerate(LAYERS[package]) for known in folders}
    return target_folder in height and height.get(folder, 0) > height[target_folder]


def circles(graph: dict[str, set[str]]) -> list[str]:
    """Return a sentence about the first circle of imports, if there is one."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [f"a circle of imports: {', '.join(sorted({*error.args[1]}))}"]
    return []


def test_layers() -> None:
    assert violations(sources(ROOT)) == []


def test_breaches_are_found() -> None:
    long = "augment.support.long"
    wrong = {
        "augment.support.up": "augment.data.dataset",
        "augment.tools.across": "trainer.loop.learner",
        "trainer.tools.across": "augment.tools.plan",
        "trainer.report.beside": "trainer.sweeps.comparison",
    }
    modules = sources(ROOT) | {name: f"def f():\n    import {target}" for name, target in wrong.items()}
    modules |= {"augment.loose": "", "trainer.attic.box": "", long: "\n" * (MAX_LINES + 1)}
    modules |= {f"trainer.optim.{one}": f"from trainer.optim import {two}" for one, two in ("ab", "ba")}
    assert set(violations(modules)) == {
        *(f"{name} imports {target}" for name, target in wrong.items()),
        *(
            "augment.loose lies loose",
            "trainer.attic.box is in no known package",
            f"{long} has more than {MAX_LINES} lines",
        ),
        "a circle of imports: trainer.optim.a, trainer.optim.b",
    }


def test_type_checking_blocks_count_for_circles_only() -> None:
    """Layers allow annotations from above, but two modules that name each other's types belong together."""
    source = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import {}\nelse:\n    import os"
    assert imports(source.format("trainer.loop.learner")) == {"typing.TYPE_CHECKING", "os"}
    above = {"augment.data.a": source.format("augment.pipeline.b"), "augment.pipeline.b": ""}
    assert violations(above) == []

    circle = {f"trainer.optim.{one}": source.format(f"trainer.optim.{two}") for one, two in ("ab", "ba")}
    assert violations(circle) == ["a circle of imports: trainer.optim.a, trainer.optim.b"]


def test_dali_stays_in_its_packages() -> None:
    """Tools compare with pipelines of their own. `data` uses the decoder in one module, and for 16-bit PNG."""
    found = {name for name, source in sources(ROOT).items() if any(i.startswith("nvidia.") for i in imports(source))}
    known = ("augment.pipeline", "augment.tools", "augment.data.check", "augment.support.dali", "trainer.run.build")
    known += ("augment.data.formats.raster_files",)
    assert {name for name in found if not name.startswith(known)} == set()


def test_every_package_says_what_is_inside() -> None:
    folders = {file.parent for package in LAYERS for file in (ROOT / package).rglob("*.py")}
    inits = {folder: folder / "__init__.py" for folder in folders}
    assert [str(folder) for folder, init in inits.items() if not init.is_file()] == []
    assert [str(init) for init in inits.values() if not ast.get_docstring(ast.parse(init.read_text()))] == []


def test_no_two_classes_have_one_name() -> None:
    found: dict[str, str] = {}
    for module, source in sources(ROOT).items():
        for node in ast.walk(tree(source)):
            if isinstance(node, ast.ClassDef):
                assert found.setdefault(node.name, module) == module, node.name


def test_tests_mirror_the_packages() -> None:
    folders = {f"{package}/{folder}" for package, rows in LAYERS.items() for row in rows for folder in row}
    for file in (ROOT / "tests").rglob("test_*.py"):
        place = file.relative_to(ROOT / "tests").parent.parts[:2]
        assert place in ((), ("faults",)) or "/".join(place) in folders, file
