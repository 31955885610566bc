import dataclasses
import json

import pytest

from keras_mwms.engine import views
from keras_mwms.engine.views import ProtocolError
from keras_mwms.engine.views import View
from keras_mwms.errors import StartError
from tests.engine.clusters import make_view

CHIEF = make_view(0)


def test_members_that_agree_pass():
    views.compare([CHIEF, make_view(1), make_view(2)])


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (
            make_view(1, "ab"),
            ["number of members", "3 on worker 0 (a:1)", "2 on worker 1"],
        ),
        (
            make_view(1, ["a", "b", "d"]),
            ["rank 2", "worker 2 (c:3) on worker 0", "worker 2 (d:3) on work"],
        ),
        (
            make_view(1, keras="3.15.2"),
            ["keras differs", "3.15.1 on worker 0 (a:1), 3.15.2 on worker 1"],
        ),
        (
            make_view(1, torch="2.13"),
            ["torch differs", "none on worker 0 (a:1), 2.13 on worker 1 (b:2)"],
        ),
        (
            make_view(0),
            ["worker 0 (a:1) was started twice", f"process {CHIEF.pid} on"],
        ),
    ],
    ids=["size", "address", "version", "absent version", "twice"],
)
def test_members_that_disagree_are_named(other, words):
    with pytest.raises(StartError) as raised:
        views.compare([CHIEF, make_view(2), other])
    for word in words:
        assert word in str(raised.value)


def test_every_difference_is_told():
    others = [make_view(1, keras="3.16.0", python="3.12.1"), make_view(1, "ab")]
    found = views.differences([CHIEF, *others])
    assert [sentence.split(" differs")[0] for sentence in found] == [
        "keras",
        "python",
        "The number of members",
    ]


def test_a_long_list_is_cut():
    text = views.summary([f"line {n}" for n in range(14)])
    assert "line 9" in text
    assert "line 10" not in text
    assert "4 more" in text


def test_json_gives_the_same_view():
    assert View.from_json(CHIEF.to_json()) == CHIEF


def test_two_views_of_one_process_differ():
    assert make_view(0).process != CHIEF.process


@pytest.mark.parametrize(
    "change",
    [
        {"rank": "0"},
        {"rank": True},
        {"members": [1]},
        {"members": None},
        {"versions": [["keras"]]},
        {"versions": [["keras", 3]]},
        {"process": None},
    ],
)
def test_what_is_no_view_is_refused(change):
    data = json.loads(CHIEF.to_json()) | change
    with pytest.raises(ValueError, match="view"):
        View.from_json(json.dumps(data).encode())


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff", b"3"])
def test_what_is_no_json_object_is_refused(text):
    with pytest.raises(ValueError):  # noqa: PT011 (any text of json's)
        View.from_json(text)


def test_another_protocol_names_its_speaker():
    data = json.loads(CHIEF.to_json()) | {"protocol": 7}
    with pytest.raises(ProtocolError, match=r"worker 0 \(a:1\) protocol 7"):
        View.from_json(json.dumps(data).encode())


def test_a_launchers_member_is_named_by_its_rank():
    view = dataclasses.replace(CHIEF, label="rank 0", members=())
    other = dataclasses.replace(
        make_view(1, keras="3.16.0"), label="rank 1", members=()
    )
    with pytest.raises(StartError, match=r"3\.16\.0 on rank 1"):
        views.compare([view, other])
