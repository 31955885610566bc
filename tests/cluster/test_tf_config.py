"""`TF_CONFIG`, row by row of the table of what it means."""

import json
import re
import warnings

import pytest

from keras_mwms.cluster import Address
from keras_mwms.cluster import Cluster
from keras_mwms.cluster import Member
from keras_mwms.cluster.spec import Origin
from keras_mwms.cluster.spec import Placement
from keras_mwms.cluster.tf_config import parse_tf_config
from keras_mwms.errors import ClusterConfigError
from tests.cluster.configs import MISSING
from tests.cluster.configs import tf_config

ALONE = Cluster(Origin.ALONE)
TWO_WORKERS = {"worker": ["a:1", "b:2"]}
TASK = {"type": "worker", "index": 0}


def wrong(text):
    """Parses a wrong `TF_CONFIG` and returns the message."""
    with pytest.raises(ClusterConfigError) as caught:
        parse_tf_config(text)
    message = str(caught.value)
    assert "TF_CONFIG" in message
    assert "Received: " in message
    assert "\n" not in message
    assert len(message) < 1500
    return message


def members(*tasks):
    return tuple(
        Member(rank, task_type, task_id, Address(host, port))
        for rank, (task_type, task_id, host, port) in enumerate(tasks)
    )


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        " \n",
        "{}",
        "null",
        '{"cluster": null}',
        '{"cluster": {}}',
        json.dumps({"task": TASK}),
        json.dumps({"cluster": {}, "task": TASK}),
        json.dumps({"cluster": {}, "task": {"type": "chief", "index": 7}}),
        '{"cluster": {}, "task": null}',
        '{"environment": "cloud"}',
    ],
)
def test_no_cluster_is_a_world_of_one(text):
    assert parse_tf_config(text) == ALONE
    assert ALONE.is_chief
    assert ALONE.in_ring


def test_workers_have_ranks_in_order_and_the_first_is_chief():
    cluster = {"worker": ["a:1", "b:2", "a:3"]}
    everyone = members(
        ("worker", 0, "a", 1), ("worker", 1, "b", 2), ("worker", 2, "a", 3)
    )
    placements = [
        Placement(0, 2, 0, 2),
        Placement(0, 1, 1, 2),
        Placement(1, 2, 0, 1),
    ]
    for index, placement in enumerate(placements):
        found = parse_tf_config(tf_config(cluster, "worker", index))
        assert found == Cluster(
            Origin.TF_CONFIG, index, 3, placement, everyone, "worker", index
        )
        assert found.is_chief == (index == 0)
        assert found.me == everyone[index]


@pytest.mark.parametrize(
    ("task_type", "index", "rank"),
    [("chief", 0, 0), ("worker", 0, 1), ("worker", 1, 2)],
)
@pytest.mark.parametrize("chief_first", [True, False])
def test_chief_stands_before_the_workers(task_type, index, rank, chief_first):
    cluster = {"chief": ["a:1"], "worker": ["b:2", "c:3"]}
    if not chief_first:
        cluster = dict(reversed(cluster.items()))
    assert parse_tf_config(tf_config(cluster, task_type, index)) == Cluster(
        Origin.TF_CONFIG,
        rank,
        3,
        Placement(0, 1, rank, 3),
        members(
            ("chief", 0, "a", 1), ("worker", 0, "b", 2), ("worker", 1, "c", 3)
        ),
        task_type,
        index,
    )


def test_one_worker_is_a_ring_of_one():
    found = parse_tf_config(tf_config({"worker": ["a:1"]}, "worker", 0))
    assert (found.size, found.rank) == (1, 0)
    assert found.members == members(("worker", 0, "a", 1))


@pytest.mark.parametrize(
    ("job", "task_type"),
    [("master", "master"), ("chief", "master"), ("master", "chief")],
)
def test_master_is_the_chief_and_deprecated(job, task_type):
    cluster = {job: ["a:1"], "worker": ["b:2"]}
    with pytest.warns(DeprecationWarning, match="'master'.*write 'chief'"):
        found = parse_tf_config(tf_config(cluster, task_type, 0))
    chief = tf_config({"chief": ["a:1"], "worker": ["b:2"]}, "chief", 0)
    assert found == parse_tf_config(chief)


def test_nothing_warns_without_master():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parse_tf_config(tf_config(TWO_WORKERS, "worker", 0))


@pytest.mark.parametrize(
    ("cluster", "received"),
    [
        ({"chief": ["a:1", "b:2"]}, "TF_CONFIG chief=['a:1', 'b:2']"),
        ({"master": ["a:1", "b:2"]}, "TF_CONFIG chief=['a:1', 'b:2']"),
        (
            {"chief": ["a:1"], "master": ["b:2"]},
            "TF_CONFIG cluster={'chief': ['a:1'], 'master': ['b:2']}",
        ),
        (
            {"worker": ["a:1"], "evaluator": ["b:2", "c:3"]},
            "TF_CONFIG evaluator=['b:2', 'c:3']",
        ),
    ],
)
def test_more_than_one_of_a_kind(cluster, received):
    message = wrong(tf_config(cluster, "worker", 0))
    assert f"Received: {received}" in message


@pytest.mark.parametrize(
    ("cluster", "task_type", "index", "received"),
    [
        (
            TWO_WORKERS,
            "chief",
            0,
            "type='chief', index=0 but a cluster of 'worker'.",
        ),
        (
            {"chief": ["c:3"], **TWO_WORKERS},
            "Worker",
            0,
            "type='Worker', index=0 but a cluster of 'chief', 'worker'.",
        ),
        (TWO_WORKERS, "ps", 0, "type='ps', index=0 but a cluster of 'worker'."),
        (TWO_WORKERS, "gpu", 1, "type='gpu', index=1 but a cluster of"),
        (TWO_WORKERS, "", 0, "type='', index=0 but a cluster of"),
        (TWO_WORKERS, None, 0, "type=None, index=0 but a cluster of"),
        (TWO_WORKERS, ["worker"], 0, "type=['worker'], index=0 but a cluster"),
        (TWO_WORKERS, MISSING, 0, "type missing, index=0 but a cluster of"),
        (
            TWO_WORKERS,
            "worker",
            2,
            "index=2 but job 'worker' has 2 tasks.",
        ),
        (TWO_WORKERS, "worker", -1, "index=-1 but job 'worker' has 2 tasks."),
        (
            {"worker": ["a:1"]},
            "worker",
            1,
            "index=1 but job 'worker' has 1 task.",
        ),
        ({"worker": []}, "worker", 0, "index=0 but job 'worker' has 0 tasks."),
        (
            {"worker": {"0": "a:1", "2": "b:2"}},
            "worker",
            1,
            "index=1 but job 'worker' has 2 tasks, with the indices [0, 2].",
        ),
    ],
)
def test_a32_task_type_not_in_cluster(cluster, task_type, index, received):
    message = wrong(tf_config(cluster, task_type, index))
    assert f"Received: TF_CONFIG task {received}" in message


@pytest.mark.parametrize(
    ("task", "quoted"),
    [
        ({}, "task=None"),
        ({"task": None}, "task=None"),
        ({"task": []}, "task=[]"),
        ({"task": "worker"}, "task='worker'"),
        ({"task": 0}, "task=0"),
    ],
)
def test_a32_task_missing(task, quoted):
    message = wrong(json.dumps({"cluster": TWO_WORKERS, **task}))
    assert f"Received: TF_CONFIG {quoted} and a cluster of 'worker'" in message


@pytest.mark.parametrize("index", [1, "1"])
def test_index_may_be_a_string(index):
    assert parse_tf_config(tf_config(TWO_WORKERS, "worker", index)).rank == 1


@pytest.mark.parametrize(
    ("index", "quoted"),
    [
        (1.7, "=1.7"),
        (1.0, "=1.0"),
        (True, "=True"),
        (None, "=None"),
        ("01", "='01'"),
        (" 1", "=' 1'"),
        ("1.0", "='1.0'"),
        ("-1", "='-1'"),
        ("", "=''"),
        ("\u0661", "='\u0661'"),
        ([1], "=[1]"),
        ({"0": 1}, "={'0': 1}"),
        (10**4000, "=1000"),
        ("9" * 5000, "='9999"),
        (MISSING, " missing"),
    ],
)
def test_wrong_index(index, quoted):
    message = wrong(tf_config(TWO_WORKERS, "worker", index))
    assert f"Received: TF_CONFIG task index{quoted}" in message
    assert " but job 'worker' has 2 tasks." in message


def test_sparse_form_is_ordered_by_index():
    cluster = {"worker": {"10": "c:3", "0": "a:1", "2": "b:2"}}
    found = parse_tf_config(tf_config(cluster, "worker", 10))
    assert found.members == members(
        ("worker", 0, "a", 1), ("worker", 2, "b", 2), ("worker", 10, "c", 3)
    )
    assert (found.rank, found.size, found.task_id) == (2, 3, 10)


def test_sparse_form_beside_a_chief():
    cluster = {"worker": {"1": "b:2"}, "chief": {"0": "a:1"}}
    found = parse_tf_config(tf_config(cluster, "worker", "1"))
    assert found.members == members(("chief", 0, "a", 1), ("worker", 1, "b", 2))
    assert found.rank == 1


@pytest.mark.parametrize("key", ["", "a", "-1", "01", "1.0", " 1", "9" * 5000])
def test_sparse_form_with_a_wrong_key(key):
    cluster = {"worker": {"0": "a:1", key: "b:2"}}
    message = wrong(tf_config(cluster, "worker", 0))
    quoted = repr(key) if len(key) < 100 else "'9999"
    assert f"Received: TF_CONFIG worker key={quoted}" in message


@pytest.mark.parametrize(
    "address",
    ["b", "b:x", "b:0", "b:65536", "::1:5001", "a:1,b:2", "http://b:2", " b:2"],
)
@pytest.mark.parametrize("job", ["worker", "ps", "evaluator"])
def test_wrong_address_is_quoted_with_its_task(address, job):
    cluster = {"worker": ["a:1"], "evaluator": ["e:1"], "ps": ["p:1"]}
    cluster[job] = [address]
    message = wrong(tf_config(cluster, "worker", 0))
    assert f"Received: TF_CONFIG {job} 0={address!r}." in message


@pytest.mark.parametrize("address", [None, 5, True, ["a:1"], {"0": "a:1"}])
def test_address_that_is_no_string(address):
    message = wrong(tf_config({"worker": ["a:1", address]}, "worker", 0))
    assert f"Received: TF_CONFIG worker 1={address!r}." in message


def test_ipv6_addresses():
    cluster = {"worker": ["[::1]:5001", "[::1]:5002"]}
    found = parse_tf_config(tf_config(cluster, "worker", 1))
    assert found.me == Member(1, "worker", 1, Address("::1", 5002))
    assert str(found.me) == "worker 1 ([::1]:5002)"
    assert found.placement == Placement(1, 2, 0, 1)


@pytest.mark.parametrize(
    ("cluster", "both"),
    [
        ({"worker": ["a:1", "b:2", "a:1"]}, "worker 0 and worker 2"),
        ({"chief": ["a:1"], "worker": ["b:2", "a:1"]}, "chief 0 and worker 1"),
        ({"worker": {"3": "a:1", "9": "A:1"}}, "worker 3 and worker 9"),
    ],
)
def test_the_same_address_twice(cluster, both):
    message = wrong(tf_config(cluster, "worker", 0))
    assert f"Received: TF_CONFIG address 'a:1' of both {both}." in message


def test_the_same_ipv6_address_written_in_two_ways():
    cluster = {"worker": ["[::1]:5001", "[0:0::1]:5001"]}
    message = wrong(tf_config(cluster, "worker", 0))
    assert "address '[::1]:5001' of both worker 0 and worker 1." in message


def test_the_same_address_outside_the_ring_is_not_checked():
    cluster = {"worker": ["a:1", "b:2"], "ps": ["a:1"], "evaluator": ["a:1"]}
    assert parse_tf_config(tf_config(cluster, "worker", 0)).size == 2


@pytest.mark.parametrize("first", ["ps", "worker"])
def test_parameter_servers_are_not_counted(first):
    cluster = {"ps": ["p:1", "q:2"], **TWO_WORKERS}
    cluster = {first: cluster[first], **cluster}
    found = parse_tf_config(tf_config(cluster, "worker", 1))
    assert found == parse_tf_config(tf_config(TWO_WORKERS, "worker", 1))
    found.require_ring()


def test_a_parameter_server_is_not_in_the_ring():
    cluster = {"ps": ["p:1", "q:2"], **TWO_WORKERS}
    found = parse_tf_config(tf_config(cluster, "ps", 1))
    assert found == Cluster(Origin.TF_CONFIG, task_type="ps", task_id=1)
    assert not found.in_ring
    assert not found.is_chief
    with pytest.raises(
        ClusterConfigError, match="Received: task type='ps', index=1"
    ):
        found.require_ring()


def test_a_parameter_server_without_a_cluster_is_not_in_the_ring_either():
    text = json.dumps({"task": {"type": "ps", "index": 0}})
    assert not parse_tf_config(text).in_ring


EVALUATOR = Cluster(Origin.TF_CONFIG, task_type="evaluator", task_id=0)


@pytest.mark.parametrize("index", [0, "0"])
@pytest.mark.parametrize(
    "listed", [{}, {"evaluator": []}, {"evaluator": ["e:1"]}]
)
def test_a34_evaluator_task_is_a_world_of_its_own(listed, index):
    text = tf_config({**TWO_WORKERS, **listed}, "evaluator", index)
    found = parse_tf_config(text)
    assert found == EVALUATOR
    assert (found.size, found.rank, found.members) == (1, 0, ())
    assert found.is_chief
    found.require_ring()


def test_a34_evaluator_in_the_sparse_form():
    cluster = {**TWO_WORKERS, "evaluator": {"3": "e:1"}}
    assert parse_tf_config(tf_config(cluster, "evaluator", 3)).task_id == 3
    message = wrong(tf_config(cluster, "evaluator", 0))
    assert "job 'evaluator' has 1 task, with the indices [3]." in message


@pytest.mark.parametrize("listed", [{}, {"evaluator": ["e:1"]}])
def test_a34_evaluator_does_not_move_the_ranks(listed):
    for index in (0, 1):
        found = parse_tf_config(
            tf_config({**listed, **TWO_WORKERS}, "worker", index)
        )
        assert (found.size, found.rank) == (2, index)
        assert found.members == members(
            ("worker", 0, "a", 1), ("worker", 1, "b", 2)
        )


@pytest.mark.parametrize("listed", [{}, {"evaluator": ["e:1"]}])
@pytest.mark.parametrize("index", [1, -1, None, MISSING])
def test_a34_there_is_no_second_evaluator(listed, index):
    message = wrong(tf_config({**TWO_WORKERS, **listed}, "evaluator", index))
    assert "but job 'evaluator' has 1 task." in message


@pytest.mark.parametrize("task_type", ["worker", "evaluator"])
def test_a34_two_evaluators(task_type):
    cluster = {**TWO_WORKERS, "evaluator": ["e:1", "e:2"]}
    assert "more than one evaluator" in wrong(tf_config(cluster, task_type, 0))


@pytest.mark.parametrize("task", [{}, {"index": 0}, {"index": None}])
def test_a34_evaluator_without_a_cluster(task):
    text = json.dumps({"task": {"type": "evaluator", **task}})
    assert parse_tf_config(text) == EVALUATOR


@pytest.mark.parametrize(
    "others",
    [
        {"environment": "cloud", "rpc_layer": "grpc"},
        {"environment": 5, "rpc_layer": None, "job": [1]},
        {"rpc_layer": "grpc+verbs", "anything": {"cluster": {}}},
        {"sparseCluster": {"worker": {"0": "z:1"}}},
    ],
)
def test_other_keys_are_ignored(others):
    plain = parse_tf_config(tf_config(TWO_WORKERS, "worker", 1))
    text = tf_config(TWO_WORKERS, "worker", 1, **others)
    assert parse_tf_config(text) == plain


def test_sparse_cluster_of_kubeflow_does_not_train_alone():
    sparse = {"worker": {"1": "b:2"}, "ps": ["p:1"]}
    text = json.dumps({"sparseCluster": sparse, "task": TASK})
    assert "Received: TF_CONFIG sparseCluster={" in wrong(text)


@pytest.mark.parametrize(
    ("cluster", "quoted"),
    [
        ({"Worker": ["a:1"]}, "cluster={'Worker': ['a:1']}"),
        ({"worker": ["a:1"], "gpu": ["b:2"]}, "cluster={'gpu': ['b:2']}"),
        ({"worker": ["a:1"], "": []}, "cluster={'': []}"),
        ([], "cluster=[]"),
        (["a:1"], "cluster=['a:1']"),
        ("", "cluster=''"),
        ("a:1", "cluster='a:1'"),
        (0, "cluster=0"),
        (False, "cluster=False"),
    ],
)
def test_wrong_cluster(cluster, quoted):
    message = wrong(tf_config(cluster, "worker", 0))
    assert f"Received: TF_CONFIG {quoted}." in message


@pytest.mark.parametrize(
    ("text", "received"),
    [
        (
            "{'cluster': {'worker': ['a:1']}}",
            "TF_CONFIG=\"{'cluster': {'worker': ['a:1']}}\"",
        ),
        ("{", "TF_CONFIG='{'"),
        ("worker", "TF_CONFIG='worker'"),
        ("[]", "TF_CONFIG=[]"),
        ('"a:1"', "TF_CONFIG='a:1'"),
        ('""', "TF_CONFIG=''"),
        ("0", "TF_CONFIG=0"),
        ("false", "TF_CONFIG=False"),
        ("NaN", "TF_CONFIG='NaN'"),
        ('{"a": NaN}', "TF_CONFIG='{\"a\": NaN}'"),
        ('{"a": -Infinity}', "TF_CONFIG='{\"a\": -Infinity}'"),
        ('{"a": 1, "a": 2}', 'TF_CONFIG=\'{"a": 1, "a": 2}\''),
        ('{"a": 1,}', "TF_CONFIG='{\"a\": 1,}'"),
        ("{} {}", "TF_CONFIG='{} {}'"),
        ("\ufeff{}", "TF_CONFIG='\\ufeff{}'"),
        ("b'{}'", "TF_CONFIG=\"b'{}'\""),
        ("\udcff", "TF_CONFIG='\\udcff'"),
        ("[" * 100_000, "TF_CONFIG='[[["),
        ('{"a":' * 100_000, 'TF_CONFIG=\'{"a":{"a":'),
        ('{"a": ' + "9" * 5000 + "}", 'TF_CONFIG=\'{"a": 999'),
    ],
)
def test_a35_malformed_tf_config(text, received):
    assert f"Received: {received}" in wrong(text)


@pytest.mark.parametrize(
    ("cluster", "received"),
    [
        ({"worker": "a:1,b:2"}, "worker='a:1,b:2'"),
        ({"worker": ["a:1,b:2"]}, "worker 0='a:1,b:2'"),
        ({"worker": ["a:1"], "ps": ""}, "ps=''"),
        ({"worker": ["a:1"], "ps": [""]}, "ps 0=''"),
        ({"worker": ["a:1"], "ps": None}, "ps=None"),
        ({"worker": ["a"]}, "worker 0='a'"),
        ({"worker": ["a:x"]}, "worker 0='a:x'"),
        ({"worker": ["\ud800:1"]}, r"worker 0='\ud800:1'"),
        ({"worker": [[[[[[["a:1"]]]]]]]}, "worker 0=[[[[...]]]]"),
        ({"worker": ["a" * 10**6 + ":1"]}, "worker 0='aaaa"),
        ({"worker": 10**4000}, "worker=1000"),
    ],
)
def test_a35_malformed_cluster(cluster, received):
    message = wrong(tf_config(cluster, "worker", 0))
    assert f"Received: TF_CONFIG {received}" in message


def test_a35_unusual_tf_config():
    """The unusual forms that are fine all mean the same."""
    plain = parse_tf_config(tf_config(TWO_WORKERS, "worker", 1))
    sparse = {"worker": {"0": "a:1", "1": "b:2"}}
    assert parse_tf_config(tf_config(sparse, "worker", 1)) == plain
    assert parse_tf_config(tf_config(sparse, "worker", "1")) == plain
    others = {"environment": "cloud", "rpc_layer": "grpc"}
    assert parse_tf_config(tf_config(sparse, "worker", 1, **others)) == plain


def test_a35_bytes_are_not_text():
    assert "Received: TF_CONFIG=b'{}'" in wrong(b"{}")


def test_the_place_of_a_mistake_in_a_long_text_is_quoted():
    hosts = [f"host{i}:5001" for i in range(1000)]
    text = tf_config({"worker": hosts}, "worker", 0)
    message = wrong(text.replace('"host700:5001"', "'host700:5001'"))
    assert "host700:5001" in message
    assert "host600:5001" not in message
    assert re.search(r"at character \d+", message)


def test_a_large_cluster():
    hosts = [f"host{i // 8}:{5000 + i % 8}" for i in range(10_000)]
    found = parse_tf_config(tf_config({"worker": hosts}, "worker", 9_999))
    assert (found.rank, found.size) == (9_999, 10_000)
    assert found.placement == Placement(7, 8, 1_249, 1_250)


def test_clusters_are_values():
    text = tf_config(TWO_WORKERS, "worker", 1)
    assert hash(parse_tf_config(text)) == hash(parse_tf_config(text))
