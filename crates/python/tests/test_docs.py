"""Runs the Python examples of the documentation, page by page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

ROOT = Path(__file__).parents[3]
PAGES = ["python.md", "python-interfaces.md", "python-recognition.md", "python-doctor.md"]
# Examples with models or recordings of the reader.
NOT_RUN = re.compile(r"from_checkpoint|from_pretrained|from transformers|processor\(")


def examples(page: str) -> list[tuple[int, str]]:
    """Line number and code of each example."""
    text = (ROOT / "docs" / page).read_text()
    blocks = re.finditer(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [(text.count("\n", 0, block.start()) + 2, block[1]) for block in blocks]


@pytest.mark.parametrize("page", PAGES)
def test_examples_of_a_page_run(page: str) -> None:
    namespace: dict[str, Any] = {}
    runs = 0
    for line, code in examples(page):
        if not NOT_RUN.search(code):
            # The line numbers of errors are those of the page.
            exec(compile("\n" * (line - 1) + code, str(ROOT / "docs" / page), "exec"), namespace)
            runs += 1
    assert runs > 0


def test_notebook_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    folder = ROOT / "examples" / "python"
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    notebook = json.loads((folder / "lattice.ipynb").read_text())
    code = "\n".join("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code")
    short = code.replace("epochs, utterances = 12, None", "epochs, utterances = 2, 24")
    assert short != code
    exec(compile(short, "lattice.ipynb", "exec"), {})
