"""`TF_CONFIG` under any input: a sound cluster or the one error."""

import json
import warnings

import pytest
from hypothesis import HealthCheck
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from keras_mwms.cluster.tf_config import parse_tf_config
from keras_mwms.errors import ClusterConfigError
from tests.cluster.configs import tf_config

pytestmark = pytest.mark.filterwarnings(
    "ignore:TF_CONFIG says 'master':DeprecationWarning"
)

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=6)
)
ANY_JSON = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)


def mostly(usual, odd=ANY_JSON):
    """Draws `usual` nineteen times in twenty."""
    return st.integers(0, 19).flatmap(lambda n: odd if n == 19 else usual)


HOSTS = st.sampled_from(["a", "b", "c.example", "10.0.0.1", "[::1]", "B"])
ADDRESSES = st.builds("{}:{}".format, HOSTS, st.integers(1, 9))
ODD_ADDRESSES = ANY_JSON | st.sampled_from(
    ["a", "a:0", "a:x", "::1:1", "a:1,b:1", "http://a:1", "", "\ud800:1"]
)
ANY_ADDRESS = mostly(ADDRESSES, ODD_ADDRESSES)
INDEX_KEYS = mostly(
    st.integers(0, 3).map(str), st.sampled_from(["x", "01", "-1", "", "1.0"])
)
TASKS = mostly(
    st.lists(ANY_ADDRESS, min_size=1, max_size=3)
    | st.dictionaries(INDEX_KEYS, ANY_ADDRESS, min_size=1, max_size=3)
)
NAMES = mostly(
    st.sampled_from(["worker", "chief", "master", "ps", "evaluator"]),
    st.sampled_from(["Worker", "gpu", ""]),
)
CLUSTERS = st.dictionaries(NAMES, TASKS, max_size=2) | st.fixed_dictionaries(
    {"worker": TASKS}, optional={"chief": TASKS, "ps": TASKS}
)
TASK = st.fixed_dictionaries(
    {
        "type": mostly(st.just("worker") | NAMES),
        "index": mostly(st.integers(0, 3) | INDEX_KEYS),
    }
)
NEARLY = st.fixed_dictionaries(
    {"cluster": mostly(CLUSTERS), "task": mostly(TASK)},
    optional={"environment": ANY_JSON, "sparseCluster": ANY_JSON},
)


def check(text):
    """Parses any text; what comes out must be sound."""
    try:
        cluster = parse_tf_config(text)
    except ClusterConfigError as error:
        message = str(error)
    else:
        check_sound(cluster)
        return
    assert len(message) < 3000
    assert message.isprintable()


def check_sound(cluster):
    assert 0 <= cluster.rank < cluster.size
    assert [m.rank for m in cluster.members] == list(
        range(len(cluster.members))
    )
    assert cluster.is_chief == (cluster.rank == 0 and cluster.in_ring)
    if not cluster.members:
        assert cluster.size == 1
        assert cluster.task_type in (None, "ps", "evaluator")
        return
    assert cluster.size == len(cluster.members)
    assert cluster.me.task_type == cluster.task_type
    assert cluster.me.task_id == cluster.task_id
    assert len({m.address for m in cluster.members}) == cluster.size
    assert len({m.task for m in cluster.members}) == cluster.size
    assert {m.task_type for m in cluster.members} <= {"chief", "worker"}
    assert "chief" not in {m.task_type for m in cluster.members[1:]}


@given(st.text())
def test_any_text(text):
    check(text)


@given(ANY_JSON)
def test_any_json(value):
    check(json.dumps(value))


@settings(
    max_examples=1000,
    suppress_health_check=[HealthCheck.too_slow],
    deadline=None,
)
@given(NEARLY)
def test_nearly_a_tf_config(value):
    check(json.dumps(value))


@given(NEARLY.map(json.dumps), st.data())
def test_a_broken_text(text, data):
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    check(text[:start] + data.draw(st.text(max_size=3)) + text[end:])


@st.composite
def rings(draw):
    """Draws a right cluster: the chief's address or `None`, the workers'."""
    addresses = draw(
        st.lists(ADDRESSES.map(str.lower), min_size=1, max_size=8, unique=True)
    )
    with_chief = draw(st.booleans())
    chief = addresses.pop() if with_chief else None
    indices = draw(
        st.lists(
            st.integers(0, 99),
            min_size=len(addresses),
            max_size=len(addresses),
            unique=True,
        )
    )
    return chief, dict(zip(sorted(indices), addresses, strict=True))


@given(rings(), st.booleans())
def test_round_trip(ring, sparse):
    chief, workers = ring
    if not sparse:
        workers = dict(enumerate(workers.values()))
    tasks = [("chief", 0, chief)] if chief else []
    tasks += [("worker", i, address) for i, address in workers.items()]
    cluster = {"worker": workers if sparse else list(workers.values())}
    if chief:
        cluster["chief"] = [chief]
    for rank, (task_type, index, _) in enumerate(tasks):
        found = parse_tf_config(tf_config(cluster, task_type, index))
        assert (found.rank, found.size) == (rank, len(tasks))
        assert tasks == [
            (m.task_type, m.task_id, str(m.address)) for m in found.members
        ]


def test_the_generators_reach_right_and_wrong_configurations():
    """Otherwise the tests above would show nothing."""
    outcomes = []

    @settings(
        max_examples=300,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
        deadline=None,
    )
    @given(NEARLY)
    def run(value):
        try:
            outcomes.append(parse_tf_config(json.dumps(value)).size)
        except ClusterConfigError:
            outcomes.append(0)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run()
    assert 0 in outcomes
    assert max(outcomes) > 1
