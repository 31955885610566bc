import dataclasses

import pytest

from keras_mwms.engine.install import substitutions
from keras_mwms.engine.install.errors import SubstitutionError

ALL = substitutions.COMMON + substitutions.JAX_BINDING
each = pytest.mark.parametrize("change", ALL, ids=lambda change: change.name)


def test_all_fit_the_release_together(tree):
    substitutions.apply_all(ALL, tree)
    for change in ALL:
        text = (tree / change.path).read_text()
        assert change.new in text
        assert change.old in change.new or change.old not in text


def test_what_the_build_reads_afterwards(tree):
    substitutions.apply_all(ALL, tree)

    def lines(path, word):
        text = (tree / path).read_text()
        return [
            line.strip()
            for line in text.splitlines()
            if line.strip().startswith(word)
        ]

    assert lines("CMakeLists.txt", "set(CMAKE_CXX_STANDARD ") == [
        "set(CMAKE_CXX_STANDARD 17)"
    ]
    assert lines("CMakeLists.txt", "add_subdirectory(horovod/") == [
        "add_subdirectory(horovod/tensorflow)",
        "add_subdirectory(horovod/torch)",
        "add_subdirectory(horovod/mxnet)",
        "add_subdirectory(horovod/jax)",
        "add_subdirectory(horovod/common/ops/cuda)",
        "add_subdirectory(horovod/common/ops/rocm)",
    ]
    assert lines("horovod/torch/CMakeLists.txt", "set(CMAKE_CXX_STANDARD") == [
        "set(CMAKE_CXX_STANDARD 17)"
    ]
    assert lines(
        "horovod/tensorflow/CMakeLists.txt", "list(APPEND TF_SOURCES"
    ) == [
        "list(APPEND TF_SOURCES "
        '"${PROJECT_SOURCE_DIR}/horovod/tensorflow/mpi_ops.cc")'
    ]
    distutils = [
        str(file)
        for pattern in ("*.py", "CMakeLists.txt")
        for file in (tree / "horovod").rglob(pattern)
        if "distutils" in file.read_text()
    ]
    assert distutils == []


def test_changed_python_still_compiles(tree):
    substitutions.apply_all(ALL, tree)
    for path in {c.path for c in ALL if c.path.endswith(".py")}:
        compile((tree / path).read_text(), path, "exec")


@each
def test_fails_when_the_text_is_not_there(tree, change):
    file = tree / change.path
    file.write_text(file.read_text().replace(change.old, "something else"))
    with pytest.raises(SubstitutionError, match="with 0 place") as caught:
        substitutions.apply_all(ALL, tree)
    assert change.name in str(caught.value)
    assert change.path in str(caught.value)


@each
def test_fails_when_the_text_is_there_twice(tree, change):
    file = tree / change.path
    before = file.read_text().replace(change.old, 2 * change.old)
    file.write_text(before)
    with pytest.raises(SubstitutionError, match="with 2 place"):
        change.apply(tree)
    assert file.read_text() == before


@each
def test_fails_when_the_file_is_not_there(tmp_path, change):
    with pytest.raises(SubstitutionError, match=change.path):
        change.apply(tmp_path)


@each
def test_says_what_it_is_for(change):
    assert all(dataclasses.astuple(change)[:3])
    assert change.why
    assert "issue" in change.answers
