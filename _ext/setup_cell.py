"""Stamp the same first cell into every chapter: ``python _ext/setup_cell.py``.

The book omits the cell; on Colab, Kaggle or a plain Jupyter it fetches the library.
"""

from pathlib import Path

import nbformat
import yaml

ROOT = Path(__file__).parents[1]

SOURCE = """\
# Where the library is missing (Colab, Kaggle, any Jupyter): fetch it; numpy, torch and transformers stay as they are.
import importlib.util, pathlib, site, subprocess, sys, sysconfig
if importlib.util.find_spec("norm_geometry") is None:
    book = pathlib.Path("{folder}").resolve()
    if not book.exists():
        subprocess.run(["git", "clone", "--quiet", "--depth", "1", "{address}", book], check=True)
    packages = ["-r", book / "requirements-colab.txt", "-e", book]
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", *packages], check=True)
    site.addsitedir(sysconfig.get_path("purelib"))  # makes the packages importable without a restart"""


def setup_cell() -> nbformat.NotebookNode:
    address = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))["repository"]["url"]
    source = SOURCE.format(address=address, folder=address.rsplit("/", 1)[1])
    return nbformat.v4.new_code_cell(source, id="setup", metadata={"tags": ["remove-cell"]})


def chapters() -> list[Path]:
    return sorted((ROOT / "chapters").glob("*.ipynb"))


def stamp(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    notebook.cells = [setup_cell()] + [cell for cell in notebook.cells if cell.id != "setup"]
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    nbformat.write(notebook, path)


if __name__ == "__main__":
    for path in chapters():
        stamp(path)
