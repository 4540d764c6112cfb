"""The example notebook runs from its first cell to its last."""

import nbformat
import pytest
from conftest import ENGINE_ENV, ROOT
from nbclient import NotebookClient

NOTEBOOK = ROOT / "examples" / "analysis.ipynb"


def test_it_is_committed_without_outputs():
    for cell in nbformat.read(NOTEBOOK, as_version=4).cells:
        assert cell.cell_type != "code" or (not cell.outputs and cell.execution_count is None)


@pytest.mark.engine
def test_it_runs(smollm2, tmp_path, monkeypatch):
    for name, value in {**ENGINE_ENV, "MODEL": smollm2, "FOLDER": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=500, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in shown)
    texts = [output["text"] for output in shown if output.output_type == "stream"]
    assert sum(" depth " in line for line in texts[-1].splitlines()) == 12
    assert (tmp_path / "analysis/report.html").is_file()
