"""``scripts/stale.py``: what makes a committed result stale, and what does not; and that none is."""

from __future__ import annotations

import gzip
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import load_script

ROOT = Path(__file__).parents[1]


STALE = load_script(ROOT / "scripts" / "stale.py")

SCRIPT = '''"""A study."""
import math
from equipoise.old.place import Settings, train

ROUNDS = 300
"""Of training."""


def main(seed: int) -> float:
    """Trains."""
    found = train(Settings(rounds=ROUNDS), seed)  # once
    return math.log(found)
'''
MODULE = (
    "from ..randomness import uniform\n\n\nclass Search:\n    lr: float = 0.1\n\n\ndef step():\n    return uniform(1)\n"
)


def golden(**scenarios: dict[str, Any]) -> bytes:
    return gzip.compress(json.dumps({"machine": {}, "scenarios": scenarios}).encode())


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Two results, of a study and of a benchmark, marked."""
    files: dict[str, bytes] = {
        "studies/one/run.py": SCRIPT.encode(),
        "studies/one/spec.json": b'{"a": 1, "b": [2]}',
        "studies/one/one.json": b'{"mse": 0.5}',
        "benchmarks/speed.py": b"N = 3\n",
        "benchmarks/results_speed.json": b'{"seconds": 1.5}',
        "src/equipoise/engine/loop.py": MODULE.encode(),
        "tests/golden/values.json.gz": golden(audited={"/a": 1.0, "/b": 2}, trained={"/a": 3.0}),
    }
    for name, content in files.items():
        put(tmp_path, name, content)
    about = {"what": "a result", "pages": ["README.md"], "commit": "abc1234", "machine": "2 CPU cores"}
    sources = ("studies/one/run.py", "studies/one/spec.json", "tests/golden/values.json.gz#audited",
               "src/equipoise/engine/loop.py#Search")  # fmt: skip
    entries = {
        "studies/one": about | {
            "command": "python studies/one/run.py OUT", "files": {"studies/one/one.json": ""},
            "sources": dict.fromkeys(sources, ""),
        },
        "benchmarks/speed": about | {
            "command": "python benchmarks/speed.py", "files": {"benchmarks/results_speed.json": ""},
            "sources": dict.fromkeys(("benchmarks/speed.py", "src/equipoise/engine/loop.py"), ""),
        },
    }  # fmt: skip
    put(tmp_path, "results.toml", STALE.written(entries).encode())
    for name in entries:
        STALE.main(["--mark", name, "--commit", "abc1234"], tmp_path)
    return tmp_path


def put(root: Path, name: str, content: bytes) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_bytes(content)


def change(root: Path, name: str, old: str, new: str) -> None:
    text = (root / name).read_text()
    assert old in text
    (root / name).write_text(text.replace(old, new))


def stale(root: Path) -> dict[str, list[str]]:
    return {name: why for name, entry in STALE.read(root).items() if (why := list(STALE.changes(root, entry)))}


# -- what counts, and what does not --------------------------------------------------------------------------------


def test_what_was_marked_is_fresh(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert STALE.main([], tree) == 0
    assert "studies/one is fresh: made at abc1234, 2 CPU cores.\n" in capsys.readouterr().out


COUNTS: dict[str, Callable[[Path], None]] = {
    "a constant": lambda root: change(root, "studies/one/run.py", "300", "301"),
    "a call": lambda root: change(root, "studies/one/run.py", "math.log(", "math.exp("),
    "an import": lambda root: change(
        root, "studies/one/run.py", "import Settings, train", "import Settings, fit as train"
    ),
    "a value of a spec": lambda root: change(root, "studies/one/spec.json", "2", "3"),
    "a default of the package": lambda root: change(root, "src/equipoise/engine/loop.py", "0.1", "0.2"),
    "a name that is gone": lambda root: change(root, "src/equipoise/engine/loop.py", "Search", "Seek"),
    "the result": lambda root: change(root, "studies/one/one.json", "0.5", "0.6"),
}
DOES_NOT: dict[str, Callable[[Path], None]] = {
    "a docstring": lambda root: change(root, "studies/one/run.py", '"""Trains."""', '"""Trains a model."""'),
    "the docstring of a constant": lambda root: change(root, "studies/one/run.py", '"""Of training."""\n', ""),
    "a comment": lambda root: change(root, "studies/one/run.py", "  # once", ""),
    "the format": lambda root: change(root, "studies/one/run.py", "(seed: int)", "(\n    seed: int,\n)"),
    "a local variable": lambda root: change(root, "studies/one/run.py", "found", "result"),
    "the module of an import": lambda root: change(root, "studies/one/run.py", "equipoise.old.place", "equipoise.new"),
    "the order of imports": lambda root: change(
        root, "studies/one/run.py", "import math\nfrom equipoise.old.place import Settings, train",
        "from equipoise.new import train\nfrom equipoise.old import Settings\nimport math",
    ),
    "the format of a spec": lambda root: change(root, "studies/one/spec.json", '"a": 1, "b": [2]', '"b": [2], "a":1'),
    "what a module has beside the name": lambda root: change(root, "src/equipoise/engine/loop.py", "(1)", "(2)"),
    "the format of the result": lambda root: change(root, "studies/one/one.json", " ", "\n"),
}  # fmt: skip


@pytest.mark.parametrize("what", COUNTS)
def test_a_change_of_meaning_counts(tree: Path, what: str) -> None:
    COUNTS[what](tree)
    assert "studies/one" in stale(tree)


@pytest.mark.parametrize("what", DOES_NOT)
def test_a_change_of_form_does_not(tree: Path, what: str) -> None:
    DOES_NOT[what](tree)
    assert "studies/one" not in stale(tree)


def test_a_global_and_a_parameter_are_no_local_variables() -> None:
    def same(one: str, other: str) -> bool:
        return STALE.digest("a.py", one.encode()) == STALE.digest("a.py", other.encode())

    assert same("def f(a):\n b = a\n c = b\n return c", "def f(a):\n x = a\n y = x\n return y")
    assert not same("def f(a):\n b = a\n c = b\n return c", "def f(a):\n b = a\n c = a\n return c")
    assert not same("def f(a):\n b = a\n c = b\n return c", "def f(a):\n b = a\n c = b\n return b")
    assert not same("def f(a): return a", "def f(b): return b")
    assert not same("def f():\n global a\n a = 1", "def f():\n global b\n b = 1")
    assert not same("x = 1", "x = 1.0")
    assert not same("x = None", "x = 'None'")
    assert not same("x = b'a'", "x = \"b'a'\"")
    assert not same("x = ...", "x = 'Ellipsis'")
    assert not same("x = 2j", "x = '2j'")


def test_what_an_inner_scope_alone_assigns_is_another_name_outside_of_it() -> None:
    """There it is a global's, and to read another of these is another meaning."""

    def same(code: str, **change: str) -> bool:
        one, other = (code.format(**{"inner": "a", "outer": outer}) for outer in ("a", change["outer"]))
        return STALE.digest("a.py", one.encode()) == STALE.digest("a.py", other.encode())

    for inner in (
        "def g():\n  {inner} = 1\n  return {inner}",
        "x = [{inner} for {inner} in p]",
        "g = lambda: ({inner} := 1)",
    ):
        assert not same("def f(p):\n " + inner + "\n return {outer}", outer="b"), inner
    renamed = "def f(p):\n def g():\n  {0} = p\n  return {0}\n x = [{0} for {0} in g()]\n return x"
    assert len({STALE.digest("a.py", renamed.format(name).encode()) for name in "abc"}) == 1
    walrus = "def f(p):\n x = [({0} := y) for y in p]\n return {0}"
    assert len({STALE.digest("a.py", walrus.format(name).encode()) for name in "abc"}) == 1


def test_a_module_that_moves_does_not_count_and_the_mark_follows_it(tree: Path) -> None:
    (tree / "src/equipoise/engine/loop.py").unlink()
    put(tree, "src/equipoise/mechanism/walk.py", MODULE.replace("from ..random", "from ...core.random").encode())
    assert stale(tree) == {}
    STALE.main(["--mark", "benchmarks/speed", "--commit", "abc1234"], tree)
    assert "src/equipoise/mechanism/walk.py" in STALE.read(tree)["benchmarks/speed"]["sources"]
    change(tree, "src/equipoise/mechanism/walk.py", "(1)", "(2)")
    assert list(stale(tree)) == ["benchmarks/speed"]


def test_a_copy_elsewhere_does_not_hide_a_change(tree: Path) -> None:
    """Nor does a namesake: a source is looked for elsewhere only where it is gone."""
    put(tree, "studies/old/loop.py", (tree / "src/equipoise/engine/loop.py").read_bytes())
    change(tree, "src/equipoise/engine/loop.py", "0.1", "0.2")
    assert set(stale(tree)) == {"studies/one", "benchmarks/speed"}
    change(tree, "src/equipoise/engine/loop.py", "class Search", "class Seek")
    assert set(stale(tree)) == {"benchmarks/speed"}, "the class has moved, and the module has changed"


def test_a_golden_scenario_recorded_anew_makes_exactly_what_rests_on_it_stale(tree: Path) -> None:
    put(tree, "tests/golden/values.json.gz", golden(audited={"/a": 1.0, "/b": 2}, trained={"/a": 4.0}, more={"/a": 1}))
    assert stale(tree) == {}
    put(tree, "tests/golden/values.json.gz", golden(audited={"/new/a": 1.0, "/b": 2}, trained={"/a": 3.0}))
    assert stale(tree) == {}, "a renamed path is a rename"
    put(tree, "tests/golden/values.json.gz", golden(audited={"/a": 1.5, "/b": 2}, trained={"/a": 3.0}))
    assert stale(tree) == {"studies/one": ["tests/golden/values.json.gz#audited has changed."]}
    put(tree, "tests/golden/values.json.gz", golden(trained={"/a": 3.0}))
    assert list(stale(tree)) == ["studies/one"]


# -- what is said --------------------------------------------------------------------------------------------------


def test_a_missing_file_the_command_and_the_pages_are_named(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tree / "studies/one/one.json").unlink()
    (tree / "studies/one/run.py").unlink()
    assert STALE.main([], tree) == 1
    assert capsys.readouterr().out.splitlines()[1:] == [
        "studies/one is stale. It is shown in README.md.",
        "  - studies/one/one.json is missing.",
        "  - studies/one/run.py is gone.",
        "  Make it again: python studies/one/run.py OUT",
        "  Then: python scripts/stale.py --mark studies/one",
        "2 results. Stale or unknown: 1.",
    ]


def test_a_result_without_an_entry_is_named(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(tree, "studies/two/values.npz", b"new")
    assert STALE.main([], tree) == 1
    assert "studies/two/values.npz belongs to no result. Add it to results.toml." in capsys.readouterr().out


def test_the_commit_that_changed_a_source_is_named(tree: Path) -> None:
    def git(*arguments: str) -> None:
        who = ("-c", "user.name=A", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *who, *arguments], cwd=tree, check=True, capture_output=True)

    git("init", "-q")
    for word, old, new in (("First", "300", "300"), ("More rounds", "300", "301"), ("A word", "Trains.", "It trains.")):
        change(tree, "studies/one/run.py", old, new)
        git("add", "-A")
        git("commit", "-qm", word)
    ((reason,),) = stale(tree).values()
    assert reason.startswith("studies/one/run.py has changed, in ")
    assert reason.endswith(" More rounds.")
    git("revert", "--no-commit", "HEAD~1")
    assert stale(tree) == {}
    git("commit", "-qm", "As before")
    change(tree, "studies/one/run.py", "300", "302")
    assert stale(tree) == {"studies/one": ["studies/one/run.py has changed, not committed yet."]}
    with pytest.raises(SystemExit, match="not what it was at"):
        STALE.main(["--mark", "studies/one"], tree)
    git("commit", "-qam", "302")
    for absent in ("deadbeefdead", "--help", "HEAD:studies"):
        with pytest.raises(SystemExit, match="There is no commit"):
            STALE.main(["--mark", "studies/one", f"--commit={absent}"], tree)
    STALE.main(["--mark", "studies/one"], tree)
    assert stale(tree) == {}


# -- the mark ------------------------------------------------------------------------------------------------------


def test_a_mark_says_what_was_made_or_verified(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(tree, "studies/one/run.py", "Settings", "Options")
    before = STALE.read(tree)
    STALE.main(["--mark", "studies/one", "--verified", "Settings is called Options now."], tree)
    after = STALE.read(tree)
    assert after["benchmarks/speed"] == before["benchmarks/speed"]
    assert after["studies/one"]["commit"] == "abc1234"
    assert STALE.main([], tree) == 0
    assert "  Not made again since. Settings is called Options now.\n" in capsys.readouterr().out
    STALE.main(["--mark", "studies/one", "--commit", "def5678", "--machine", "one H200"], tree)
    entry = STALE.read(tree)["studies/one"]
    assert (entry["commit"], entry["machine"], "verified" in entry) == ("def5678", "one H200", False)


def test_what_is_known_to_be_stale_stays_so_until_it_is_marked(tree: Path) -> None:
    change(tree, "results.toml", '["studies/one"]\n', '["studies/one"]\nstale = "Its \\"targets\\" recur."\n')
    assert stale(tree) == {"studies/one": ['Its "targets" recur.']}
    STALE.main(["--mark", "benchmarks/speed", "--commit", "abc1234"], tree)
    assert stale(tree) == {"studies/one": ['Its "targets" recur.']}
    STALE.main(["--mark", "studies/one", "--commit", "abc1234"], tree)
    assert stale(tree) == {}


def test_a_mark_that_cannot_be_true_is_refused(tree: Path) -> None:
    with pytest.raises(SystemExit, match="no result 'studies/two'"):
        STALE.main(["--mark", "studies/two"], tree)
    with pytest.raises(SystemExit, match="--commit COMMIT"):
        STALE.main(["--mark", "studies/one"], tree)
    (tree / "studies/one/one.json").unlink()
    with pytest.raises(SystemExit, match=r"studies/one/one\.json is gone"):
        STALE.main(["--mark", "studies/one", "--commit", "abc1234"], tree)


def test_a_result_held_by_a_test_needs_that_test(tree: Path) -> None:
    entry = {"held_by": "tests/test_a.py::test_b", "patterns": ["studies/*/one.json"]}
    put(tree, "tests/test_a.py", b"def test_b() -> None: ...")
    assert list(STALE.changes(tree, entry)) == []
    put(tree, "tests/test_a.py", b'def test_c() -> None:\n    """def test_b()"""\n# def test_b(')
    (gone,) = STALE.changes(tree, entry)
    assert "tests/test_a.py::test_b" in gone
    (tree / "tests/test_a.py").unlink()
    (tree / "studies/one/one.json").unlink()
    assert len(list(STALE.changes(tree, entry))) == 2


# -- what is committed ---------------------------------------------------------------------------------------------


def test_nothing_that_is_published_is_stale() -> None:
    entries = STALE.read(ROOT)
    reasons = {
        name: [*STALE.changes(ROOT, entry), *filter(None, [entry.get("stale")])] for name, entry in entries.items()
    }
    assert {name: why for name, why in reasons.items() if why} == {}
    assert STALE.unlisted(ROOT, entries) == []


def test_the_manifest_is_as_the_script_writes_it_and_its_pages_exist() -> None:
    entries = STALE.read(ROOT)
    assert STALE.written(entries) == (ROOT / "results.toml").read_text(encoding="utf-8")
    assert [page for entry in entries.values() for page in entry["pages"] if not (ROOT / page).is_file()] == []
    recorded = json.loads(gzip.decompress((ROOT / "tests/golden/values.json.gz").read_bytes()))["scenarios"]
    sources = {source for entry in entries.values() for source in entry.get("sources", ())}
    assert {source.partition("#")[2] for source in sources if ".gz#" in source} <= set(recorded)
