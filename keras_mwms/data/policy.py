"""Who reads what: the policies by which data are split among replicas."""

import enum
from typing import Any


class AutoShardPolicy(enum.IntEnum):
    """How data are split among the replicas, as in `tf.data`.

    Attributes:
        OFF: each replica uses the data that it has, all of them.
        AUTO: `FILE` if a `tf.data` pipeline reads files, at least one a
            replica, else `DATA`.
        FILE: the files of a `tf.data` pipeline are dealt out to the replicas.
        DATA: every replica makes all batches and takes its slice of each.
        HINT: `dataset.shard(SHARD_HINT, SHARD_HINT)` stands where a `tf.data`
            pipeline is split; other objects are asked to shard themselves, by
            a method `shard(num_shards, index)`.
    """

    OFF = -1
    AUTO = 0
    FILE = 1
    DATA = 2
    HINT = 3


ALL_BUT_FILE = (
    AutoShardPolicy.AUTO,
    AutoShardPolicy.DATA,
    AutoShardPolicy.HINT,
    AutoShardPolicy.OFF,
)


def policy_of(value: Any) -> AutoShardPolicy:
    """A policy from what users write.

    Args:
        value: an `AutoShardPolicy`, TensorFlow's, a name of one in any case,
            or `None` for `AUTO`.

    Returns:
        The `AutoShardPolicy`.

    Raises:
        ValueError: there is no such policy.

    Example:
        >>> policy_of("file")
        <AutoShardPolicy.FILE: 1>
    """
    if value is None:
        return AutoShardPolicy.AUTO
    name = value if isinstance(value, str) else getattr(value, "name", "")
    try:
        return AutoShardPolicy[name.upper()]
    except KeyError:
        names = ", ".join(AutoShardPolicy.__members__)
        raise ValueError(
            f"auto_shard_policy must be one of {names}. Received: {value!r}"
        ) from None


def require(
    policy: AutoShardPolicy, allowed: tuple[AutoShardPolicy, ...], kind: str
) -> None:
    """Raises if data of a kind cannot be split by a policy.

    Args:
        policy: the policy asked for.
        allowed: those that data of the kind can be split by.
        kind: what the data are, in words.

    Raises:
        ValueError: if so.
    """
    if policy not in allowed:
        names = ", ".join(each.name for each in allowed)
        raise ValueError(
            f"{kind} cannot be split by the policy {policy.name}. Use one of "
            f"{names}. Received: auto_shard_policy={policy.name}"
        )
