"""The notebooks of docs/ run from the first cell to the last, and are committed without outputs."""

import json
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_has_no_outputs(file: Path) -> None:
    code = [cell for cell in json.loads(file.read_text())["cells"] if cell["cell_type"] == "code"]
    assert code
    assert [cell["source"] for cell in code if cell["outputs"] or cell["execution_count"]] == []


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # of the packages of notebooks
@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_runs(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat = pytest.importorskip("nbformat", reason="needs pip install '.[docs]'")
    from nbclient import NotebookClient

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    notebook = nbformat.read(file, as_version=4)
    NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    text = "".join(output.get("text", "") for output in outputs)
    assert "error: " not in text
    shown = [set(output.get("data", {})) for output in outputs]
    if file.stem == "own_images":
        assert "3/3" in text
        assert (tmp_path / "outputs" / "first" / "report.html").is_file()
    if file.stem == "sweep":
        assert "Compared with " in text
    else:
        assert sum("image/png" in kinds for kinds in shown) >= 2
