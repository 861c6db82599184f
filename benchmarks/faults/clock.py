"""A wall clock that jumps: a shim before libc that adds, to the wall clock alone, what a file says at that moment.

The monotonic clock is left as it is. Refuses where there is no C compiler: then the phase is not run, and says so.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

static volatile long long none, *offset_s = &none;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("CLOCK_OFFSET_FILE");
    int fd = path ? open(path, O_RDONLY) : -1;
    void *at = fd < 0 ? MAP_FAILED : mmap(0, sizeof none, PROT_READ, MAP_SHARED, fd, 0);
    if (at != MAP_FAILED) offset_s = at;
}

int clock_gettime(clockid_t id, struct timespec *t) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(id, t);
    if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) t->tv_sec += *offset_s;
    return failed;
}

time_t time(time_t *out) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    if (out) *out = t.tv_sec;
    return t.tv_sec;
}

int gettimeofday(struct timeval *restrict tv, void *restrict zone) {
    struct timespec t;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &t);
    tv->tv_sec = t.tv_sec;
    tv->tv_usec = t.tv_nsec / 1000;
    return 0;
}
"""


class JumpingClock:
    """The wall clock of the processes that get its environment."""

    def __init__(self, folder: Path) -> None:
        """Compile the shim. Raises RuntimeError where there is no compiler."""
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if compiler is None:
            raise RuntimeError("no C compiler (cc, gcc, clang) to build the clock from")
        source, shim, self._offset = folder / "clock.c", folder / "clock.so", folder / "clock.offset"
        source.write_text(_SOURCE)
        subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", shim, source, "-ldl"], check=True, timeout=60)
        self._offset.write_bytes(struct.pack("q", 0))
        self.env = {"LD_PRELOAD": str(shim), "CLOCK_OFFSET_FILE": str(self._offset)}

    def jump(self, offset_s: int) -> None:
        """Set the wall clock to so many seconds after the true one."""
        with self._offset.open("r+b") as file:
            file.write(struct.pack("q", offset_s))
