"""Read the text of `TF_CONFIG` as strict JSON."""

import json
from typing import Any
from typing import NoReturn

from keras_mwms.cluster.wording import config_error
from keras_mwms.cluster.wording import quote

_ADVICE = (
    "Write it as json.dumps does, for example "
    '{"cluster": {"worker": ["host1:5001", "host2:5001"]}, '
    '"task": {"type": "worker", "index": 0}}.'
)
_BEFORE = 40
_AFTER = 60


def load_tf_config(text: object) -> dict[str, Any]:
    """Reads the text of `TF_CONFIG`.

    Args:
        text: the text, or `None` when the variable is unset.

    Returns:
        The JSON object; empty for an unset or empty variable and for `null`.

    Raises:
        ClusterConfigError: the text is anything else.
    """
    if text is None:
        return {}
    if not isinstance(text, str):
        raise config_error(
            "TF_CONFIG is not a string.", f"TF_CONFIG={quote(text)}", _ADVICE
        )
    if not text.strip():
        return {}
    value = _loads(text)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise config_error(
            "TF_CONFIG is not a JSON object.",
            f"TF_CONFIG={quote(value)}",
            _ADVICE,
        )
    return value


def _loads(text: str) -> Any:
    """Parses JSON, and refuses what Python's parser would let pass."""
    position = None
    try:
        return json.loads(
            text,
            object_pairs_hook=_object_of_unique_keys,
            parse_constant=_refuse_constant,
        )
    except json.JSONDecodeError as error:
        reason = f"{error.msg} at character {error.pos}"
        position = error.pos
    except ValueError as error:  # the hooks below, or an endless number
        reason = str(error)
    except RecursionError:
        reason = "it is nested too deeply"
    raise config_error(
        f"TF_CONFIG is not valid JSON: {reason}.",
        f"TF_CONFIG={_excerpt(text, position)}",
        _ADVICE,
    )


def _object_of_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"the key {quote(key)} stands twice in one object")
        result[key] = value
    return result


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _excerpt(text: str, position: int | None) -> str:
    """Quotes the text, when it is long only what is around `position`."""
    if position is None or len(text) <= _BEFORE + _AFTER:
        return quote(text)
    start = max(0, position - _BEFORE)
    return f"...{text[start : position + _AFTER]!r}..."
