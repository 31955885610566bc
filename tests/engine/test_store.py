import pytest

from keras_mwms.engine.store import Store
from keras_mwms.engine.store import StoreFullError


@pytest.fixture
def store():
    return Store(most_keys=2, most_bytes=3)


def test_values_are_kept_by_scope_and_key(store):
    store.put("global", "0", b"a")
    store.put("local", "0", b"")
    assert store.get("global", "0") == b"a"
    assert store.get("local", "0") == b""
    assert store.get("global", "1") is None


def test_delete_forgets_one_key(store):
    store.put("global", "0", b"a")
    store.put("global", "1", b"b")
    store.delete("global", "0")
    store.delete("global", "7")
    assert store.get("global", "0") is None
    assert store.get("global", "1") == b"b"


def test_a_full_store_still_replaces(store):
    store.put("global", "0", b"a")
    store.put("global", "1", b"b")
    with pytest.raises(StoreFullError):
        store.put("global", "2", b"c")
    store.put("global", "1", b"d")
    assert store.get("global", "1") == b"d"


def test_a_large_value_is_refused(store):
    with pytest.raises(StoreFullError):
        store.put("global", "0", b"abcd")


def test_horovods_start_fits():
    size = 300
    store = Store.for_members(size)
    for rank in range(size):
        for scope in ("global", "local_a", "cross_0"):
            store.put(scope, f"rank_{rank}", b"host")
            store.put(scope, str(rank), bytes(150 * size))
