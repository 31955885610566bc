"""How much memory something takes."""

import contextlib
import gc
import threading


def anonymous():
    """What this process has allocated for itself, in MB.

    Not the pages of files that are mapped: they can be had again.
    """
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) / 1024
    raise OSError("/proc/self/status has no RssAnon")


@contextlib.contextmanager
def peak():
    """Gives a list whose one number is, at the end, the growth in MB."""
    gc.collect()
    before = anonymous()
    seen, ended, growth = [before], threading.Event(), []

    def look():
        while not ended.wait(0.005):
            seen.append(anonymous())

    watch = threading.Thread(target=look)
    watch.start()
    try:
        yield growth
    finally:
        seen.append(anonymous())
        ended.set()
        watch.join()
    growth.append(max(seen) - before)
