"""The list of bugs fits the files that it is about: it is tried by hand, and files move."""

from collections import Counter
from pathlib import Path

from benchmarks.mutation_list import MUTATIONS

ROOT = Path(__file__).parents[2]


def test_what_a_bug_replaces_stands_once_in_its_file_and_its_tests_are_there():
    for bug in MUTATIONS:
        assert (ROOT / bug.file).read_text(encoding="utf-8").count(bug.old) == 1, bug
        assert bug.new != bug.old
        assert all((ROOT / "tests" / name.partition("::")[0]).exists() for name in bug.tests.split()), bug


def test_no_bug_is_listed_twice():
    assert max(Counter((bug.file, bug.old, bug.new) for bug in MUTATIONS).values()) == 1
