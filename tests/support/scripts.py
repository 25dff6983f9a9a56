"""Programs that the project writes."""

import ast
from pathlib import Path

PACKAGES = {"json", "sys", "pathlib", "numpy", "PIL", "onnxruntime"}  # imports of an exported predict.py


def imports_of(file: Path) -> set[str]:
    nodes = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Import | ast.ImportFrom)]
    return {(node.module if isinstance(node, ast.ImportFrom) else node.names[0].name) or "" for node in nodes}
