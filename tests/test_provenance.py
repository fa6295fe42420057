"""Code digests: what changes them, what does not, and how far they reach."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dibs import provenance
from dibs.arguments import family_digest
from dibs.arguments import provenance as made_by
from dibs.evaluation.evaluate import EvaluationSettings
from dibs.families import get_family

SOURCES = {
    "__init__.py": "",
    "stage.py": '''
"""What the stage does."""

from dibs.helper import double
import dibs.pack.inner


def run(x: int) -> int:
    """Docs."""
    return double(x)  # a comment
''',
    "helper.py": "from dibs.deep import K\n\ndef double(x):\n    return K * x\n",
    "deep.py": "K = 2\n",
    "lazy.py": "def later():\n    from dibs.pack import inner\n    return inner\n",
    "unused.py": "X = 1\n",
    "pack/__init__.py": "Y = 1\n",
    "pack/inner.py": "Z = 1\n",
    "families/__init__.py": "",
    "families/paper.py": "FAMILIES = 1\n",
}


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package in place of dibs; calling it with changed sources gives the digest of an entry module."""
    caches = (provenance.code_digest, provenance._tree, provenance._essence, provenance._imports)

    def digest(entry: str = "dibs.stage", **changes: str) -> str:
        for name, text in (SOURCES | {key.replace("__", "/") + ".py": v for key, v in changes.items()}).items():
            file = tmp_path / name
            file.parent.mkdir(exist_ok=True)
            file.write_text(text)
        for cache in caches:
            cache.cache_clear()
        return provenance.code_digest(entry)

    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    yield digest
    for cache in caches:
        cache.cache_clear()


@pytest.mark.parametrize(
    "change",
    [
        {"stage": SOURCES["stage.py"].replace("What the stage does", "Something else")},
        {"stage": SOURCES["stage.py"].replace('    """Docs."""\n', "")},
        {"stage": SOURCES["stage.py"].replace("  # a comment", "")},
        {"stage": SOURCES["stage.py"].replace("double(x)  #", "double( x )   #")},
        {"helper": "from dibs.deep import K\n\n\n\ndef double(x):\n    # why\n    return K * x\n"},
        {"deep": 'K = 2\n"""What K is for."""\n'},
    ],
)
def test_prose_and_layout_do_not_change_it(package, change):
    assert package(**change) == package()


@pytest.mark.parametrize(
    "change",
    [
        {"stage": SOURCES["stage.py"].replace("return double(x)", "return double(x + 1)")},
        {"helper": "from dibs.deep import K\n\ndef double(x):\n    return K + x\n"},
        {"deep": "K = 3\n"},
        {"pack__inner": "Z = 2\n"},
    ],
)
def test_code_that_is_reached_changes_it(package, change):
    assert package(**change) != package()


def test_code_that_is_not_reached_does_not(package):
    assert package(unused="X = 2\n", lazy="LATER = 1\n") == package()


def test_imports_inside_functions_are_followed(package):
    assert package("dibs.lazy", pack__inner="Z = 2\n") != package("dibs.lazy")


def test_the_paper_families_are_not_code(package):
    text = "from dibs.families import paper\n"
    assert package(stage=text, families__paper="FAMILIES = 2\n") == package(stage=text)


def test_several_entries_are_more_than_one(package):
    package()
    assert provenance.code_digest("dibs.helper", "dibs.unused") != provenance.code_digest("dibs.helper")


# --- this package ----------------------------------------------------------------------------------------


def reached(*entries: str) -> set[str]:
    todo, done = list(entries), set()
    while todo:
        module = todo.pop()
        if module not in done and module not in provenance.NOT_CODE and provenance._source(module) is not None:
            done.add(module)
            todo += provenance._imports(module)
    return done


def test_stages_reach_what_they_run_and_no_more():
    fit, teacher = reached("dibs.templates.fit"), reached("dibs.teachers.train")
    assert {"dibs.templates.polynomial", "dibs.policies.network"} <= fit
    assert {"dibs.teachers.ars", "dibs.teachers.confidence", "dibs.envs.car2d", "dibs.spectrl.stages"} <= teacher
    assert not any(module.startswith("dibs.teachers") for module in fit)
    assert not any(module.startswith(("dibs.templates", "dibs.baselines", "dibs.evaluation")) for module in teacher)


def test_digests_are_the_same_in_another_process():
    """Whatever the order of sets and dictionaries there."""
    script = "from dibs.provenance import code_digest; print(code_digest('dibs.teachers.train'))"
    digests = {
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env, check=True).stdout
        for env in ({"PYTHONHASHSEED": str(n), "PYTHONPATH": ":".join(sys.path)} for n in (1, 2))
    }
    assert digests == {provenance.code_digest("dibs.teachers.train") + "\n"}


def test_digest_of_data():
    assert provenance.digest({"a": 1, "b": [1, 2]}) == provenance.digest({"b": [1, 2], "a": 1})
    assert provenance.digest({"a": 1}) != provenance.digest({"a": 2})
    assert len(provenance.digest({})) == 16


def test_a_familys_digest_ignores_what_training_does_not_see():
    family = get_family("car2d-reach")
    same = family.model_copy(update={"description": "x", "gaps": [1], "benchmarks": {}})
    other = family.model_copy(update={"horizon": 21})
    assert family_digest(same) == family_digest(family) != family_digest(other)


def test_what_a_file_says_of_its_making():
    told = made_by(get_family("car2d-reach"), EvaluationSettings(), "dibs.evaluation.evaluate")
    more = made_by(get_family("car2d-reach"), EvaluationSettings(rollouts=10), "dibs.evaluation.evaluate")
    assert set(told) == {"version", "family_digest", "config_digest", "code_digest", "states"}
    assert {key for key in told if told[key] != more[key]} == {"config_digest"}
