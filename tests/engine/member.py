"""One member of a cluster, which needs neither a framework nor Horovod.

Joins the ring that `TF_CONFIG` describes, with a stand-in for Horovod that
meets the others through the rendezvous as Horovod does, and prints how that
went as JSON. Exit status 0 when the ring ran.
"""

import http.client
import json
import os
import sys
import time

from keras_mwms.cluster.choose import choose_cluster
from keras_mwms.engine import session


class Ring:
    """Members wait for all others at the start, the chief at the end too."""

    name = "stand-in"

    def __init__(self) -> None:
        self._environment: dict[str, str] = {}
        self._met = False

    def init(self) -> None:
        self._environment = dict(os.environ)
        self._tell("start")
        self._wait("start")
        self._met = True

    def shutdown(self) -> None:
        if self._met:
            self._met = False
            self._tell("end")
            if self.rank() == 0:
                # The others need nothing more of the chief, who serves them.
                self._wait("end")

    def is_initialized(self) -> bool:
        return self._met

    def rank(self) -> int:
        return int(self._environment["HOROVOD_RANK"])

    def size(self) -> int:
        return int(self._environment["HOROVOD_SIZE"])

    def local_rank(self) -> int:
        return int(self._environment["HOROVOD_LOCAL_RANK"])

    def local_size(self) -> int:
        return int(self._environment["HOROVOD_LOCAL_SIZE"])

    def _tell(self, scope: str) -> None:
        self._ask("PUT", f"/{scope}/{self.rank()}")

    def _wait(self, scope: str) -> None:
        deadline = time.monotonic() + 20
        for rank in range(self.size()):
            while self._ask("GET", f"/{scope}/{rank}") == 404:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{rank} did not come to the {scope}")
                time.sleep(0.02)

    def _ask(self, method: str, path: str) -> int:
        link = http.client.HTTPConnection(
            self._environment["HOROVOD_GLOO_RENDEZVOUS_ADDR"],
            int(self._environment["HOROVOD_GLOO_RENDEZVOUS_PORT"]),
            timeout=10,
        )
        try:
            link.request(method, path, b"1" if method == "PUT" else None)
            return link.getresponse().status
        finally:
            link.close()


def main() -> int:
    versions = json.loads(os.environ.get("MEMBER_VERSIONS", "{}"))
    cluster = choose_cluster()
    ring = Ring()
    before = set(os.environ)
    try:
        session.start(cluster, ring, versions)
        # Again: nothing happens.
        session.start(cluster, ring, versions)
        found = {"rank": ring.rank(), "size": ring.size()}
        found["left"] = sorted(set(os.environ) - before)
        session.stop()
    except (OSError, RuntimeError) as error:
        print(json.dumps({"error": type(error).__name__, "text": str(error)}))
        return 1
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
