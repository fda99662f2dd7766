"""Write into the chapter on teaching how long each chapter takes: `.venv/bin/python course/times.py`.

`make book` comes first. Words are those of the text before the exercises, a formula for one word; seconds are those of
the last execution.
"""

import re
from pathlib import Path

import nbformat
from jupyter_cache import get_cache

ROOT = Path(__file__).resolve().parents[1]
PACE = 100  # words a minute
TABLE = re.compile(r"(?<=<!-- times -->\n\n).*?(?=\n\n<!-- end of times -->)", re.DOTALL)
ROW = re.compile(r"^\| (\[.+?\]\((\S+)\.ipynb\)) \|", re.MULTILINE)
NOT_WORDS = {r"\$\$.*?\$\$": " formula ", r"\$[^$]+\$": "formula", r"\]\([^)]*\)": "]", r"<[^>]+>": " "}


def words(chapter: Path) -> int:
    cells = nbformat.read(chapter, as_version=4).cells
    text = "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown").split("## Exercises")[0]
    for pattern, instead in NOT_WORDS.items():
        text = re.sub(pattern, instead, text, flags=re.DOTALL)
    return sum(any(letter.isalnum() for letter in word) for word in text.split())


def main() -> None:
    executed = get_cache(ROOT / "_build" / ".jupyter_cache").list_cache_records()
    seconds = {Path(record.uri).stem: record.data["execution_seconds"] for record in executed}
    teaching = ROOT / "chapters" / "teaching.md"
    page = teaching.read_text(encoding="utf-8")
    lines = ["| chapter | words | reading, minutes | running, seconds |", "|---|--:|--:|--:|"]
    for link, name in dict.fromkeys(ROW.findall(page)):  # the chapters that the page lists
        count = words(ROOT / "chapters" / f"{name}.ipynb")
        lines.append(f"| {link} | {count:,} | {count / PACE:.0f} | {seconds[name]:.0f} |")
    table = "\n".join(lines)
    assert TABLE.search(page), "the marks of the table are gone"
    teaching.write_text(TABLE.sub(lambda _: table, page), encoding="utf-8")
    print(table)


if __name__ == "__main__":
    main()
