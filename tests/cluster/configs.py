"""Texts of `TF_CONFIG` for the tests."""

import json

MISSING = object()


def tf_config(cluster, task_type=MISSING, index=MISSING, **others):
    """Writes a `TF_CONFIG`; what is `MISSING` is left out."""
    task = {"type": task_type, "index": index}
    return json.dumps(
        {
            "cluster": cluster,
            "task": {k: v for k, v in task.items() if v is not MISSING},
            **others,
        }
    )
