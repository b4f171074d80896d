"""Tutorials: notebooks that are executed and kept with their outputs, and shown as pages of the site.

    python website/notebooks.py              # execute all, store their outputs
    python website/notebooks.py images       # some

The cells of a notebook share one namespace, as in Jupyter; printed text, the value of a cell's last line and figures
are its outputs. There is no magic, so no Jupyter is needed.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "docs" / "tutorials"


def notebooks() -> list[Path]:
    return sorted(FOLDER.glob("*.ipynb"))


def read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def executed(notebook: dict[str, Any], name: str) -> dict[str, Any]:
    """The notebook with new outputs. The first error ends it, with the cell's number."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells, number = [dict(cell) for cell in notebook["cells"]], 0
    for cell in cells:
        if cell["cell_type"] == "code":
            number += 1
            outputs = _run("".join(cell["source"]), names, f"{name}, cell {number}")
            cell |= {"execution_count": number, "outputs": outputs}
    return notebook | {"cells": cells}


def _run(source: str, names: dict[str, Any], where: str) -> list[dict[str, Any]]:
    tree = ast.parse(source, where)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, where, "exec"), names)
        value = eval(compile(ast.Expression(last.value), where, "eval"), names) if last is not None else None
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": _lines(printed.getvalue())})
    if value is not None:
        outputs.append({"output_type": "display_data", "metadata": {}, "data": _shown(value)})
    return outputs


def _shown(value: Any) -> dict[str, Any]:
    if hasattr(value, "_repr_png_"):
        return {"image/png": base64.b64encode(value._repr_png_()).decode(), "text/plain": ["a figure"]}
    return {"text/plain": _lines(repr(value))}


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def page(path: Path) -> tuple[str, dict[str, bytes]]:
    """The notebook as Markdown, and its pictures by file name."""
    parts, pictures = [], {}
    for cell in read(path)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                name = f"{path.stem}-{len(pictures) + 1}.png"
                pictures[name] = base64.b64decode(data["image/png"])
                parts.append(f"![{path.stem}: what the code above draws]({name})")
            elif text := "".join(output.get("text", data.get("text/plain", []))):
                parts.append(f'<div class="output" markdown>\n\n```text\n{text.rstrip()}\n```\n\n</div>')
    parts.append(f'<a href="{path.name}" download>Download this notebook</a>')
    return "\n\n".join(parts) + "\n", pictures


def main() -> None:
    for path in notebooks():
        if len(sys.argv) > 1 and path.stem not in sys.argv[1:]:
            continue
        here = Path.cwd()
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            try:
                found = executed(read(path), path.name)
            finally:
                os.chdir(here)
        path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"{path.name}: {sum(cell['cell_type'] == 'code' for cell in found['cells'])} cells")


if __name__ == "__main__":
    main()
