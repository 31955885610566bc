"""The policies of `tf.data`, as TensorFlow's documentation tells them."""

import shutil

import pytest

from tests.data import kinds
from tests.data import pipelines
from tests.data.pipelines import flat
from tests.data.pipelines import joined
from tests.pool import PerRank

pytestmark = pytest.mark.needs("tensorflow")


def by_policy(folder, policy, cases):
    """What a replica reads, or the error, for files of so many rows."""
    from keras_mwms.data import policy_of

    return [
        pipelines.error_or(
            kinds.recorded,
            kinds.tf_records(folder, counts, size),
            policy=policy_of(policy),
        )
        for counts, size in cases
    ]


@pytest.fixture
def folders(tmp_path_factory):
    """A folder of its own for each replica."""
    return lambda replicas: PerRank(
        [str(tmp_path_factory.mktemp("files")) for _ in range(replicas)]
    )


@pytest.fixture
def run(cluster, folders):
    """What each replica reads, for each case."""

    def run(policy, cases, replicas=2):
        of_replicas = cluster(replicas).run(
            by_policy, folders(replicas), policy, cases
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


def test_files_are_dealt_out_to_one_and_to_three(run):
    cases = [((2, 2, 2), 4), ((2, 2, 2, 2), 3)]
    # Batches of one process.
    assert run("FILE", cases, 1) == [
        ([[0, 1, 2, 3], [4, 5]],),
        ([[0, 1, 2], [3, 4, 5], [6, 7]],),
    ]
    # A batch of four is two rows on one of three, in turn.
    assert run("FILE", cases, 3) == [
        ([[0, 1], []], [[2], [3]], [[4], [5]]),
        ([[0], [1], [6], [7]], [[2], [3], [], []], [[4], [5], [], []]),
    ]


def test_slices_of_section_3(run):
    cases = [
        ((6, 6), 4),
        ((5, 5), 4),
        ((5, 4), 4),
        ((5, 5), 5),
    ]
    assert run("DATA", cases, 2) == [
        ([[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [10, 11]]),
        ([[0, 1], [4, 5], [8]], [[2, 3], [6, 7], [9]]),
        ([[0, 1], [4, 5], [8]], [[2, 3], [6, 7], []]),
        ([[0, 1, 2], [5, 6, 7]], [[3, 4], [8, 9]]),
    ]
    assert run("DATA", [((7,), 7), ((4,), 4)], 3) == [
        ([[0, 1, 2]], [[3, 4, 5]], [[6]]),
        ([[0, 1]], [[2, 3]], [[]]),
    ]
    assert run("DATA", [((5,), 4)], 1) == [([[0, 1, 2, 3], [4]],)]


# One file (A18) -------------------------------------------------------------


def of_one_file(folder):
    """What each policy makes of one file of ten rows, and what it tells."""
    (path,) = pipelines.write(folder, "tfrecord", [10])
    results = {}
    for policy in ("FILE", "AUTO", "DATA", "OFF"):
        import tensorflow as tf

        dataset = pipelines.parsed(tf.data.TFRecordDataset(path)).batch(4)
        results[policy] = pipelines.told_by(by_argument, dataset, policy)
    return results


def by_argument(dataset, policy):
    from keras_mwms.data import policy_of

    return pipelines.error_or(
        pipelines.epochs_of, dataset, policy=policy_of(policy)
    )


def test_a18_fewer_files_than_workers(cluster, folders):
    of_replicas = cluster(2).run(of_one_file, folders(2))
    for results in of_replicas:
        error, _ = results["FILE"]
        assert "1 file for 2 workers" in error
        assert results["DATA"][1] == results["OFF"][1] == []
    for policy in ("AUTO", "DATA"):
        steps = [results[policy][0][0] for results in of_replicas]
        assert joined(steps) == pipelines.one_process()
    chief, other = (results["AUTO"][1] for results in of_replicas)
    (text,) = chief
    assert "1 file for 2 workers" in text
    assert "policy DATA" in text
    assert "\n" not in text
    assert other == []
    visits = [flat(results["OFF"][0][0]) for results in of_replicas]
    assert visits == [list(range(10))] * 2


# Where a policy is said -----------------------------------------------------


def with_option(dataset, policy):
    import tensorflow as tf

    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = getattr(
        tf.data.experimental.AutoShardPolicy, policy
    )
    return dataset.with_options(options)


def by_option_and_argument(folder):
    """By the option alone, and with an argument that says something else."""
    dataset = pipelines.parsed(pipelines.records(folder, (5, 5))).batch(4)
    by_option = [
        by_argument(with_option(dataset, policy), "AUTO")[0]
        for policy in ("FILE", "DATA", "OFF", "AUTO")
    ]
    both = [
        by_argument(with_option(dataset, "DATA"), "FILE")[0],
        by_argument(with_option(dataset, "AUTO"), "OFF")[0],
    ]
    return by_option + both


def test_an_option_of_the_data_goes_before_the_argument(cluster, folders):
    results = cluster(2).run(by_option_and_argument, folders(2))
    by_file, by_data, off, auto, data_wins, off_by_argument = zip(
        *results, strict=True
    )
    assert by_file == ([[0, 1], [2, 3], [4]], [[5, 6], [7, 8], [9]])
    assert by_data == ([[0, 1], [4, 5], [8]], [[2, 3], [6, 7], [9]])
    assert auto == by_file
    assert data_wins == by_data
    for visits in (off, off_by_argument):
        assert [flat(steps) for steps in visits] == [list(range(10))] * 2


# What TensorFlow cannot deal out --------------------------------------------


def of_hints(folder):
    """By HINT, by AUTO, by DATA, and the rows of `predict`."""
    from keras_mwms import data
    from keras_mwms import world

    ring = world.join().ring
    dataset = pipelines.with_hint(
        pipelines.parsed(pipelines.records(folder))
    ).batch(4)
    adapter = data.shard(ring, dataset, with_share=False)
    predicted = [
        int(y)
        for batch in pipelines.batches_of(adapter)
        for y in keras_numpy(batch[1])
    ]
    return [
        by_argument(dataset, policy)[0] for policy in ("HINT", "AUTO", "DATA")
    ], predicted


def keras_numpy(array):
    import keras

    return keras.ops.convert_to_numpy(array)


def test_a_hint_says_where_rows_are_dealt_out(cluster, folders):
    results = cluster(2).run(of_hints, folders(2))
    by_hint, by_auto, by_data = zip(
        *[steps for steps, _ in results], strict=True
    )
    assert by_hint == (
        [[0, 2], [4, 6], [8]],
        [[1, 3], [5, 7], [9]],
    )
    assert by_auto == by_hint
    # The hint is left out.
    assert joined(by_data) == pipelines.one_process()
    # predict keeps the order of one process.
    assert sorted(results[0][1] + results[1][1]) == list(range(10))
    assert results[0][1][:2] == [0, 1]


def of_grouped_files(folder):
    """Files that are sampled, by FILE and by AUTO, and an endless list."""
    import tensorflow as tf

    paths = pipelines.write(folder, "tfrecord")
    read = tf.data.TFRecordDataset
    grouped = tf.data.Dataset.choose_from_datasets(
        [read(paths[:2]), read(paths[2:])],
        tf.data.Dataset.range(2).repeat(5),
        stop_on_empty_dataset=False,
    )
    dataset = pipelines.parsed(grouped).batch(4)
    return (
        by_argument(dataset, "FILE"),
        pipelines.told_by(by_argument, dataset, "AUTO"),
    )


def test_files_that_cannot_be_dealt_out(cluster, folders):
    of_replicas = cluster(2).run(of_grouped_files, folders(2))
    for error, _ in of_replicas:
        assert "cannot deal out" in error
    steps = [result[0] for _, (result, _) in of_replicas]
    assert sorted(flat(joined(steps))) == list(range(10))
    assert [len(told) for _, (_, told) in of_replicas] == [1, 0]


def of_endless_files(folder):
    """Rows of the first steps, of names that are repeated without end."""
    import itertools

    import tensorflow as tf

    from keras_mwms import data
    from keras_mwms import world
    from keras_mwms.data import policy_of

    ring = world.join().ring
    names = pipelines.names(folder, (2, 2)).repeat()
    dataset = pipelines.parsed(names.flat_map(tf.data.TFRecordDataset)).batch(2)
    adapter = data.shard(ring, dataset, policy=policy_of("FILE"), steps=4)
    steps = itertools.islice(pipelines.batches_of(adapter), 4)
    few = pipelines.names(folder, (2,)).repeat()
    few = pipelines.parsed(few.flat_map(tf.data.TFRecordDataset)).batch(2)
    return (
        [[int(y) for y in keras_numpy(batch.data[1])] for batch in steps],
        by_argument(few, "FILE"),
    )


def test_names_of_files_without_end(cluster, folders):
    of_replicas = cluster(2).run(of_endless_files, folders(2))
    rows, errors = zip(*of_replicas, strict=True)
    assert rows == ([[0], [1], [0], [1]], [[2], [3], [2], [3]])
    for error in errors:
        assert "1 file for 2 workers" in error


def of_what_is_wrong(folder):
    """The errors of each case."""
    import tensorflow as tf

    from keras_mwms import world

    rank = world.join().ring.rank
    arrays = pipelines.rows_of_arrays().batch(4)
    paths = pipelines.write(folder, "tfrecord")
    # One more file on the first replica.
    other = tf.data.TFRecordDataset(paths[rank:])
    turned = tf.data.TFRecordDataset(paths[::-1] if rank else paths)
    on_device = arrays.apply(tf.data.experimental.copy_to_device("/cpu:0"))
    return {
        "no reader": by_argument(arrays, "FILE"),
        "no hint": by_argument(arrays, "HINT"),
        "other files": by_argument(pipelines.parsed(other).batch(4), "AUTO"),
        "turned": by_argument(pipelines.parsed(turned).batch(4), "FILE"),
        "pipelines": by_argument(
            arrays.shuffle(3, seed=1) if rank else arrays, "DATA"
        ),
        "files or not": by_argument(
            pipelines.parsed(turned).batch(4) if rank else arrays, "DATA"
        ),
        "no graph": by_argument(on_device, "DATA"),
    }


def test_errors_come_on_all_replicas(cluster, folders):
    expected = {
        "no reader": "reads no files for 2 workers",
        "no hint": "HINT needs",
        "other files": r"[4, 3] files",
        "turned": "another order",
        "pipelines": "different tf.data pipelines",
        "files or not": "different tf.data pipelines",
        "no graph": "as a graph",
    }
    for errors in cluster(2).run(of_what_is_wrong, folders(2)):
        for case, words in expected.items():
            assert words in errors[case], case


# What is told ---------------------------------------------------------------


def told_in_a_run(folder):
    """What two uses of each kind tell in one run."""
    pipelines.without_a_global_seed()
    records = pipelines.parsed(pipelines.records(folder)).batch(4)
    arrays = pipelines.rows_of_arrays().shuffle(10).batch(4)

    def use():
        for _ in range(2):
            by_argument(records, "AUTO")
            by_argument(arrays, "AUTO")

    return pipelines.told_by(use)[1]


def test_policies_are_told_once_on_the_chief(cluster, folders):
    chief, other = cluster(2).run(told_in_a_run, folders(2))
    files, common, data = chief
    assert "policy FILE" in files
    assert "4 files" in files
    assert "common" in common
    assert "every worker runs the whole pipeline" in data
    assert "policy DATA" in data
    assert not any("\n" in text for text in chief)
    assert other == []


def test_folders_may_differ_if_the_names_do_not(cluster, tmp_path):
    # As `test_files_are_dealt_out`, where each replica has its own folder;
    # here the list is sorted by what the folder is called.
    places = [tmp_path / "a" / "x", tmp_path / "b" / "longer"]
    pipelines.write(make(places[0]), "tfrecord")
    shutil.copytree(places[0], places[1])
    of_replicas = cluster(2).run(
        of_listed_files, PerRank([str(place) for place in places])
    )
    assert sorted(flat(flat(of_replicas))) == list(range(10))


def make(folder):
    folder.mkdir(parents=True)
    return folder


def of_listed_files(folder):
    import tensorflow as tf

    names = tf.data.Dataset.list_files(f"{folder}/*.tfrecord")
    dataset = names.interleave(tf.data.TFRecordDataset)
    return by_argument(pipelines.parsed(dataset).batch(4), "FILE")[0]
