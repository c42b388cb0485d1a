"""``equipoise flower new DIR``: the example app under a name of one's own."""

from __future__ import annotations

import keyword
import re
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

from ..errors import ConfigError, StorageError
from ..files import storage_errors, write_bytes

TEMPLATE = Path(__file__).with_name("template")
NAME, POLICY = "flower_app", "policy.toml"
"""The name of the template's package, and, with a hyphen, of its project; and what may leave its nodes."""


def new_app(folder: Path, template: Path = TEMPLATE) -> list[Path]:
    """Write the app into a folder that is new or empty, named after it; returns the files.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     files = new_app(Path(place) / "my-app")
    ...     sorted(str(path.relative_to(place)) for path in files if path.suffix == ".py")[-1]
    'my-app/my_app/task.py'
    """
    name = package_name(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise StorageError(f"{folder} is not an empty folder: nothing was written.", "Name a new one.")
    if not template.is_dir():
        raise StorageError("The template is not installed.", "Reinstall equipoise.")
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    written = []
    for path in template_files(template):
        place = folder / str(path.relative_to(template)).replace(NAME, name)
        text = path.read_text(encoding="utf-8")
        named = text.replace(NAME, name).replace(NAME.replace("_", "-"), name.replace("_", "-"))
        write_bytes(place, named.encode(), mode=0o644 if path.name == POLICY else 0o666)  # others may not write it
        written.append(place)
    return written


def template_files(template: Path = TEMPLATE) -> list[Path]:
    """The files of the template, without what Python leaves beside them."""
    result = (path for path in template.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return sorted(result)


def package_name(folder: Path) -> str:
    """The name of the app's package, after its folder.

    >>> package_name(Path("apps/my-app"))
    'my_app'
    """
    name = re.sub(r"[-. ]+", "_", folder.absolute().name.lower())
    if not re.fullmatch(r"[a-z][a-z0-9_]*[a-z0-9]", name) or keyword.iskeyword(name) or keyword.issoftkeyword(name):
        raise ConfigError(
            f"{folder.name!r} cannot be the name of an app: a Python package cannot be called {name!r}.",
            "Use letters, digits and hyphens, begin with a letter: for example my-app.",
        )
    if name in RESERVED or name in sys.stdlib_module_names or name in packages_distributions():
        raise ConfigError(
            f"{folder.name!r} cannot be the name of an app: it would hide a module that Python has under {name!r}.",
            f"Choose another name, for example {name.replace('_', '-')}-app.",
        )
    return name


RESERVED = {"equipoise", "flwr", "task", "test"}
"""Names that an app imports, whether they are installed here or not."""
