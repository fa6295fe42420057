"""The commands of the documents: the quick ones run, the others are parsed and planned, and unknown ones are an error.

A block of code after `<!-- file: NAME -->` is a file that the commands after it use. A console block shows what its
commands print, where … stands for anything.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest
from PIL import Image
from snakemake.cli import get_argument_parser

from dibs import cli, registry
from dibs.errors import DibsError
from dibs.families import find_benchmarks, get_family

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "CONTRIBUTING.md", "config/README.md", "results/README.md")
DOCUMENTS = [*(ROOT / page for page in PAGES), *sorted((ROOT / "docs").rglob("*.md"))]
LINKED = ("Snakefile", "Makefile", "config.yaml", "config", "workflow", "profiles", "dibs", "examples", "docs")

QUICK = ("benchmarks", "methods", "spec", "family", "draw", "config")
"""Commands of `dibs` that run on every page. On the others, some page or test runs each."""
ELSEWHERE = ("git", "tmux", "sbatch", "$EDITOR", "ls", "pip", "conda", ".", "source", "mkdir", "rm", "cd")
"""Commands that are not ours, or that change the machine."""


class Block(NamedTuple):
    """A block of code in a document."""

    language: str
    file: str
    """The name of the file that it is; empty if it is none."""
    text: str


def blocks(page: Path) -> list[Block]:
    """Return the blocks of code of a page."""
    fences = r"(?:<!-- file: (\S+) -->\n)?^```(\w+)\n(.*?)^```"
    found = re.findall(fences, page.read_text(), re.DOTALL | re.MULTILINE)
    named = [(name or "".join(re.findall(r"\A# (\S+\.yaml)\n", text)), kind, text) for name, kind, text in found]
    return [Block(kind, name, text) for name, kind, text in named]


def commands(text: str, values: dict[str, str]) -> Iterator[list[str]]:
    """Return the words of every command of a block; of a loop, the first round. `values` are those of variables."""
    joined = re.sub(r"\\\n\s*", " ", text)
    joined = re.sub(r"^for (\w+) in (\S+).*?; do\n?(.*?)\s*;?\s*done", r"\1=\2\n\3", joined, flags=re.DOTALL | re.M)
    for line in re.split(r"\n| && ", joined):
        words = shlex.split(re.sub(r"\$(\w+)", lambda m: values.get(m[1], m[0]), line), comments=True)
        if len(words) == 1 and re.match(r"\w+=", words[0]):
            name, _, values[name] = words[0].partition("=")
        elif words:
            yield words


def shown(page: Path) -> list[list[str]]:
    """Return the commands of a page's shell blocks."""
    values: dict[str, str] = {}
    return [words for block in blocks(page) if block.language == "sh" for words in commands(block.text, values)]


def run(words: list[str], more: tuple[str, ...] = ()) -> str:
    """Run a command of `dibs` in this process and return what it prints."""
    assert words[0] == "dibs", words
    words, _, target = (words, "", "") if ">" not in words else (words[: words.index(">")], ">", words[-1])
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        status = cli.main([*words[1:], *more])
    assert status == 0, f"{shlex.join(words)}\n{printed.getvalue()}"
    if target:
        Path(target).write_text(printed.getvalue())
    return printed.getvalue()


def check_names(words: list[str]) -> None:
    """Parse a command of `dibs` and look up the families, benchmarks, methods and reports that it names."""
    try:
        args = vars(cli.parser().parse_args(words[1:]))
    except SystemExit:
        pytest.fail(f"not a command of dibs: {shlex.join(words)}")
    for name in filter(None, [args.get("benchmark"), args.get("family") if words[1] in ("run", "teacher") else None]):
        try:
            find_benchmarks(name)
        except DibsError as error:
            if "a package is missing" not in str(error):  # of an extra that is not installed here
                get_family(name)
    methods = args.get("methods") or args.get("method") or ()
    for method in methods.split(",") if isinstance(methods, str) else methods:
        assert method in registry.names("methods"), shlex.join(words)
    for key in ("config", "settings"):
        for file in [args[key]] if isinstance(args.get(key), str | Path) else args.get(key) or ():
            assert not str(file).endswith(".yaml") or Path(file).is_file(), shlex.join(words)


def planned(words: list[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return configs and targets of a Snakemake command."""
    parser = get_argument_parser()
    try:
        args = parser.parse_args(words[1:])
    except SystemExit:
        pytest.fail(f"not a command of Snakemake: {shlex.join(words)}")
    for file in [*(args.configfile or ()), *(Path(profile) / "config.yaml" for profile in args.profile or ())]:
        assert Path(file).is_file(), f"{shlex.join(words)}: no {file}"
    return tuple(map(str, args.configfile or ())), tuple(map(str, args.targets))


@pytest.fixture
def workspace(tmp_path, monkeypatch) -> Path:
    """A folder like that of the Snakefile, without results."""
    for name in LINKED:
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("SNAKEMAKE_PROFILE", raising=False)
    return tmp_path


def write_files(page: Path) -> None:
    """Write the files that a page shows; pages that name `mine.yaml` get the family that README prints."""
    Path("mine.yaml").write_text(run(["dibs", "family", "car2d-reach"]))
    for block in blocks(page):
        if block.file:
            Path(block.file).write_text(block.text)


# --- every page ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_of_the_documents(page: Path, workspace: Path):
    """Run the quick ones in order; parse the others and check what they name."""
    write_files(page)
    for words in shown(page):
        match words:
            case ["dibs", command, *_] if command in QUICK:
                run(words)
            case ["dibs", *_]:
                check_names(words)
            case ["snakemake", *_]:
                planned(words)
            case ["make", *rest]:
                done = subprocess.run(["make", "-n", *rest], capture_output=True, text=True, cwd=ROOT)
                assert done.returncode == 0, done.stderr
            case ["python" | ".venv/bin/python", file, *_] if file.endswith(".py"):
                assert (ROOT / file).is_file(), file
            case [file] if file.startswith(".ci/"):
                assert (ROOT / file).is_file(), file
            case [other, *_]:
                assert other in ELSEWHERE, f"{page.name}: what is {shlex.join(words)}?"


@pytest.mark.slow
def test_workflow_commands_of_the_documents_can_be_planned(workspace: Path):
    """One plan per set of configs, for the targets of all pages, with one seed to be quicker.

    Of all ablations or sweeps, only those that pages name: the rest takes half a minute to plan.
    """
    targets: dict[tuple[str, ...], set[str]] = {}
    for page in DOCUMENTS:
        write_files(page)
        for words in shown(page):
            if words[0] == "snakemake":
                configs, wanted = planned(words)
                targets.setdefault(configs, set()).update(wanted or {"all"})
    assert len(targets) > 3 and len(targets[()]) > 3
    for configs, wanted in targets.items():
        wanted = wanted - {"ablations", "sweeps"} or wanted
        plan(*sorted(wanted), *(["--configfile", *configs] if configs else []))


def plan(*arguments: str) -> None:
    """Plan targets with one seed."""
    command = [sys.executable, "-m", "snakemake", *arguments, "-n", "--quiet", "all", "--config", "seeds=1"]
    done = subprocess.run(command, stdout=-1, stderr=-2, text=True, timeout=200)
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout[-3000:]}"


# --- what console blocks show ----------------------------------------------------------------------------


class Shown(NamedTuple):
    """A command of a console block and what it prints; a command that prepares the next ones has no output."""

    command: str
    printed: str | None


def shown_output(page: Path) -> list[Shown]:
    """Return commands of a page's console blocks, with what `<!-- setup: COMMAND -->` runs before them."""
    parts = re.findall(r"^<!-- setup: ([^\n]*) -->$|^```console\n(.*?)^```", page.read_text(), re.M | re.S)
    found = []
    for setup, block in parts:
        found += [Shown(setup, None)] if setup else []
        found += [Shown(*part) for part in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.M)]
    return found


def assert_prints(printed: str, expected: str) -> None:
    """Compare, apart from line breaks; … stands for anything."""
    pattern = ".*".join(re.escape(" ".join(part.split())) for part in expected.split("…"))
    assert re.search(pattern, " ".join(printed.split())), f"expected\n{expected}\nfound\n{printed}"


@pytest.mark.slow
def test_the_page_on_errors(workspace: Path):
    """Provoke every message that the page shows."""
    write_files(ROOT / "docs" / "tutorial.md")
    write_files(ROOT / "docs" / "errors.md")
    for command, expected in shown_output(ROOT / "docs" / "errors.md"):
        if "point-maze" in command and find_spec("gymnasium_robotics"):
            continue  # nothing is missing here
        words = shlex.split(command)
        if words[0] == "dibs":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                cli.main(words[1:])
            text = printed.getvalue()
        else:
            prefix = f"{shlex.quote(sys.executable)} -m " if words[0] == "snakemake" else ""
            text = subprocess.run(prefix + command, shell=True, stdout=-1, stderr=-2, text=True, timeout=100).stdout
        if expected is not None:
            assert_prints(text, expected)


# --- the tutorial ----------------------------------------------------------------------------------------

LESS: Mapping[str, tuple[str, ...]] = {
    "requires": ("--settings", '{"search": {"searches": 1, "population": 32, "generations": 8}, "ars_factor": 0}'),
}
"""What makes commands of the tutorial and of README quicker."""


@pytest.mark.slow
def test_the_commands_of_readme(workspace: Path):
    """Run those of `dibs` in order; the example in Python is that of docs/python.md, whose test runs it."""
    printed = [run(words, LESS.get(words[1], ())) for words in shown(ROOT / "README.md") if words[0] == "dibs"]
    assert len(printed) >= 4 and "car2d-turn: motion" in printed[-2]
    table = dict(line.split()[1:5:3] for line in printed[-1].splitlines() if line.startswith("car2d-turn  "))
    assert table["dibs-plus"] == "1.000" and float(table["bc-index"]) < 0.5  # zero-shot, as the picture shows
    models = [f"results/models/{name}/car2d-turn/gap10/seed0.safetensors" for name in ("bc-index", "dibs-plus")]
    options = ["--indices", "0-1", "1000", "--rollouts", "5"]
    subprocess.run([sys.executable, "examples/film_family.py", "turn.gif", *models, *options], check=True, timeout=200)
    with Image.open("turn.gif") as film:
        assert film.n_frames == 3


@pytest.mark.slow
def test_the_tutorial(workspace: Path):
    """Run its commands in order, apart from the seeds and reports of the study."""
    page = ROOT / "docs" / "tutorial.md"
    names, printed = dict[str, object](), ""
    for block in blocks(page):
        if block.file:
            Path(block.file).write_text(block.text)
        elif block.language == "python":
            exec(compile(block.text, str(page), "exec"), names)
        elif block.language == "text":
            assert_same_verdicts(printed, block.text)
        for words in commands(block.text, {}) if block.language == "sh" else ():
            if words[0] == "dibs":
                printed = run(words, LESS.get(words[1], ()))
            elif words[0] == "snakemake":
                small = ["--config", "seeds=1", "gaps=[5]", "reports=[benchmarks, ratios]"]
                done = subprocess.run([sys.executable, "-m", *words, *small], stdout=-1, stderr=-2, text=True)
                assert done.returncode == 0, done.stdout
    assert names["info"]["success"]
    assert {"mail.png", "mail-7.png", "mail-7.gif", "mail.html"} <= {file.name for file in workspace.iterdir()}
    assert not list(Path("results/models").rglob("seed1*"))  # the study used what `dibs run` had made


def assert_same_verdicts(printed: str, expected: str) -> None:
    """Compare the ratios of the two tables up to 0.2, and sentences up to the numbers in them."""
    found, wanted = (
        {
            line.split()[1]: list(map(float, line.split()[3:5]))
            for line in text.splitlines()
            if line.startswith("mail  ")
        }
        for text in (printed, expected)
    )
    assert found.keys() == wanted.keys()
    for method, ratios in wanted.items():
        assert found[method] == pytest.approx(ratios, abs=0.2), method
    if not wanted:
        assert expected.split("(")[0] in printed
