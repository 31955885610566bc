import pytest

from keras_mwms.engine.install import binding
from keras_mwms.engine.install import substitutions
from keras_mwms.engine.install.errors import InstallError


@pytest.fixture
def sources(tmp_path):
    folder = tmp_path / "csrc"
    folder.mkdir()
    (folder / "CMakeLists.txt").write_text("return()\n")
    (folder / "a.cc").write_text("int a;\n")
    return folder


def test_the_package_ships_its_sources():
    names = [
        file.name for file in binding.source_files(binding.DEFAULT_SOURCES)
    ]
    assert "CMakeLists.txt" in names
    assert any(name.endswith(".cc") for name in names)


def test_incomplete_sources(tmp_path):
    with pytest.raises(InstallError, match=f"Received: {tmp_path}"):
        binding.source_files(tmp_path)


@pytest.mark.parametrize("how", ["content", "name", "one more"])
def test_digest_changes_with(how, sources):
    before = binding.digest(sources)
    assert binding.digest(sources) == before
    if how == "content":
        (sources / "a.cc").write_text("int b;\n")
    elif how == "name":
        (sources / "a.cc").rename(sources / "b.cc")
    else:
        (sources / "b.cc").touch()
    assert binding.digest(sources) != before


def test_becomes_a_package_of_horovod(sources, tree):
    substitutions.apply_all(substitutions.JAX_BINDING, tree)
    binding.add(sources, tree)
    folder = tree / "horovod" / "jax"
    assert sorted(file.name for file in folder.iterdir()) == [
        "CMakeLists.txt",
        "__init__.py",
        "a.cc",
    ]
    assert (folder / "a.cc").read_text() == "int a;\n"
    compile((folder / "__init__.py").read_text(), "__init__.py", "exec")


def test_variables_of_the_build():
    jax = pytest.importorskip("jax")
    variables = binding.build_variables()
    assert variables == {
        "HOROVOD_JAX_INCLUDE_DIR": jax.ffi.include_dir(),
        "HOROVOD_JAX_VERSION": jax.__version__,
    }
