"""Parse the `host:port` of one task."""

import ipaddress
import re

from keras_mwms.cluster.spec import Address
from keras_mwms.cluster.wording import config_error
from keras_mwms.cluster.wording import quote

_ADVICE = (
    "Write one host and one port from 1 to 65535, for example 'host1:5001', "
    "'10.0.0.1:5001' or '[::1]:5001'."
)
# Underscores are no part of host names by RFC 952, but of container names.
_NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?")
_MAX_NAME_LENGTH = 253
_PORT = re.compile(r"[1-9][0-9]{0,4}")
_MAX_PORT = 65535


def parse_address(text: object, source: str = "address") -> Address:
    """Parses the address of one task.

    Names are turned into lower case and IPv6 addresses into their shortest
    form, so that equal hosts compare equal. Nothing is looked up.

    Args:
        text: the address as found, normally a string.
        source: what the address belongs to, for the error message.

    Returns:
        The `Address`.

    Raises:
        ClusterConfigError: `text` is no address.

    Example:
    >>> parse_address("[::1]:5001")
    Address(host='::1', port=5001)
    """
    reason = _why_not_split(text)
    if reason is None and isinstance(text, str):
        host_text, _, port_text = text.rpartition(":")
        host, port = _host(host_text), _port(port_text)
        if host is not None and port is not None:
            return Address(host, port)
        reason = _why_not_parsed(host_text, host)
    raise config_error(
        f"An address is wrong: {reason}.", f"{source}={quote(text)}", _ADVICE
    )


def _why_not_split(text: object) -> str | None:
    """Says why `text` cannot be split into host and port, if so."""
    if not isinstance(text, str):
        return "it is not a string"
    if "://" in text:
        return "it has a scheme"
    if "," in text:
        return "it looks like several addresses in one string"
    if any(c.isspace() for c in text):
        return "it has white space in it"
    if ":" not in text:
        return "it has no port"
    return None


def _why_not_parsed(host_text: str, host: str | None) -> str:
    """Says which part is wrong when a split address did not parse."""
    if not host_text:
        return "it has no host"
    if host is None and ":" in host_text and not host_text.startswith("["):
        return "an IPv6 address needs brackets around it"
    if host is None:
        return f"{quote(host_text)} is neither a host name nor an IP address"
    return "its port is not a number from 1 to 65535"


def _host(text: str) -> str | None:
    """Returns the host in its normal form, `None` when it is not one."""
    if text.startswith("[") and text.endswith("]"):
        return _ip(text[1:-1], ipaddress.IPv6Address)
    # A last label of digits makes it an IPv4 address for every resolver.
    if text.rstrip(".").rpartition(".")[2].isdigit():
        return _ip(text, ipaddress.IPv4Address)
    if len(text) > _MAX_NAME_LENGTH or not _NAME.fullmatch(text):
        return None
    return text.lower()


def _ip(
    text: str, kind: type[ipaddress.IPv4Address] | type[ipaddress.IPv6Address]
) -> str | None:
    if "%" in text:  # a scope means something on its own host only
        return None
    try:
        return str(kind(text))
    except ValueError:
        return None


def _port(text: str) -> int | None:
    if not _PORT.fullmatch(text) or int(text) > _MAX_PORT:
        return None
    return int(text)
