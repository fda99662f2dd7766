"""Never show an output that older code or older data produced.

The execution cache compares code cells only. Here it is emptied whenever the library, the data or the required
versions have changed by content. And every build reads every page anew, which costs little once outputs are cached:
otherwise a page read just before a failure would pass as up to date.
"""

import hashlib
import shutil
from pathlib import Path

INPUTS = ("lib/**/*.py", "data/**/*", "requirements*.txt")


def digest_of_inputs(root: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(path for pattern in INPUTS for path in root.glob(pattern) if path.is_file()):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def empty_outdated_cache(app) -> None:
    cache = Path(app.outdir).parent / ".jupyter_cache"
    stamp = cache / "inputs.sha256"
    digest = digest_of_inputs(Path(app.srcdir))
    if not stamp.exists() or stamp.read_text() != digest:
        shutil.rmtree(cache, ignore_errors=True)
        cache.mkdir(parents=True)
        stamp.write_text(digest)


def setup(app):
    app.connect("builder-inited", empty_outdated_cache)
    app.connect("env-get-outdated", lambda app, env, added, changed, removed: env.found_docs)
    return {"parallel_read_safe": True}
