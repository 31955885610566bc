"""`host:port` of one task."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_mwms.cluster import Address
from keras_mwms.cluster.address import parse_address
from keras_mwms.errors import ClusterConfigError


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("host1:5001", "host1", 5001),
        ("a-b.c_d.example:1", "a-b.c_d.example", 1),
        ("host.example.:65535", "host.example.", 65535),
        ("Host1.Example:5001", "host1.example", 5001),
        ("localhost:80", "localhost", 80),
        ("10.0.0.1:5001", "10.0.0.1", 5001),
        ("[::1]:5001", "::1", 5001),
        ("[2001:DB8:0:0::1]:5001", "2001:db8::1", 5001),
    ],
)
def test_address(text, host, port):
    assert parse_address(text) == Address(host, port)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("host1", "it has no port"),
        ("", "it has no port"),
        ("host1:", "its port is not a number from 1 to 65535"),
        ("host1:x", "its port"),
        ("host1:0", "its port"),
        ("host1:65536", "its port"),
        ("host1:-1", "its port"),
        ("host1:+1", "its port"),
        ("host1:1.0", "its port"),
        ("host1:1_0", "its port"),
        ("host1:\u0661", "its port"),
        ("host1:1\u0661", "its port"),
        ("host1:99999999999999999999", "its port"),
        (":5001", "it has no host"),
        ("::1:5001", "an IPv6 address needs brackets"),
        ("host1:5001:5002", "an IPv6 address needs brackets"),
        ("[::1]", "'[:' is neither a host name"),
        ("[::g]:5001", "'[::g]' is neither"),
        ("[]:5001", "'[]' is neither"),
        ("[::1%eth0]:5001", "'[::1%eth0]' is neither"),
        ("[10.0.0.1]:5001", "'[10.0.0.1]' is neither"),
        ("256.0.0.1:5001", "'256.0.0.1' is neither"),
        ("10.0.0:5001", "'10.0.0' is neither"),
        ("5001:5001", "'5001' is neither"),
        ("a..b:5001", "'a..b' is neither"),
        ("h\u00f6st:5001", "'h\u00f6st' is neither"),
        ("a/b:5001", "'a/b' is neither"),
        ("user@a:5001", "'user@a' is neither"),
        ("a" * 254 + ":5001", "'aaa"),
        (" host1:5001", "it has white space in it"),
        ("host1 :5001", "it has white space in it"),
        ("host1:5001\n", "it has white space in it"),
        ("http://host1:5001", "it has a scheme"),
        ("grpc://host1:5001", "it has a scheme"),
        ("a:1,b:2", "it looks like several addresses in one string"),
        (None, "it is not a string"),
        (5001, "it is not a string"),
        (b"host1:5001", "it is not a string"),
        (["host1:5001"], "it is not a string"),
    ],
)
def test_wrong_address_is_quoted(text, reason):
    with pytest.raises(ClusterConfigError) as caught:
        parse_address(text, "TF_CONFIG worker 3")
    message = str(caught.value)
    assert message.startswith(f"An address is wrong: {reason}")
    shown = repr(text) if len(repr(text)) < 100 else "'aaaa"
    assert f"Received: TF_CONFIG worker 3={shown}" in message
    assert len(message) < 1000


@given(st.ip_addresses(), st.integers(1, 65535))
def test_ip_addresses_round_trip(host, port):
    address = Address(str(host), port)
    assert parse_address(str(address)) == address


@given(st.text() | st.from_regex(r"[\[\].:a-c0-9%-]*:[0-9]+", fullmatch=True))
def test_any_text_is_a_stable_address_or_the_error(text):
    try:
        address = parse_address(text)
    except ClusterConfigError:
        return
    assert 1 <= address.port <= 65535
    assert address.host == address.host.lower() != ""
    assert address.host.isascii()
    assert parse_address(str(address)) == address
