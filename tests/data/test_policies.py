"""The policies of `tf.data`, as TensorFlow's documentation tells them."""

import pytest

from tests.data import kinds

pytestmark = pytest.mark.needs("tensorflow")


def by_policy(folder, policy, cases):
    """What a replica reads, or the error, for files of so many rows."""
    from keras_mwms.data import policy_of

    results = []
    for counts, size in cases:
        data = kinds.tf_records(folder, counts, size)
        try:
            steps = kinds.recorded(data, policy=policy_of(policy))
        except ValueError as error:
            steps = str(error)
        results.append(steps)
    return results


@pytest.fixture
def run(cluster, tmp_path_factory):
    """What each replica reads, for each case."""

    def run(policy, cases, replicas=2):
        folders = [tmp_path_factory.mktemp("files") for _ in range(replicas)]
        from tests.pool import PerRank

        of_replicas = cluster(replicas).run(
            by_policy, PerRank(list(map(str, folders))), policy, cases
        )
        return list(zip(*of_replicas, strict=True))

    return run


def test_files_are_dealt_out(run):
    two, three, uneven, odd, late = run(
        "FILE",
        [((6, 6), 4), ((4, 4, 4), 4), ((5, 0), 4), ((5, 5), 5), ((1, 5), 4)],
    )
    assert two == (
        [[0, 1], [2, 3], [4, 5]],
        [[6, 7], [8, 9], [10, 11]],
    )
    assert three == (
        [[0, 1], [2, 3], [8, 9], [10, 11]],
        [[4, 5], [6, 7], [], []],
    )
    # A replica without a row from the beginning.
    assert uneven == ([[0, 1], [2, 3], [4]], [[], [], []])
    # Together they take five rows in each step.
    assert odd == ([[0, 1, 2], [3, 4]], [[5, 6], [7, 8, 9]])
    assert late == ([[0], [], []], [[1, 2], [3, 4], [5]])
