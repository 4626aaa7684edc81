/* Calls that change a folder, counted and made to fail: LD_PRELOAD of the tests of full and broken
 * disks. The first write that fails is short, as on a disk that fills up. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[PATH_MAX];
static atomic_long calls;
static long first, last;
static int number, torn;

/* Count the calls below `path`; those from `from` to `to` fail with `error`, -1 kills instead. */
void disk_fail(const char *path, long from, long to, int error) {
    strncpy(folder, path, sizeof folder - 1);
    calls = torn = 0;
    first = from;
    last = to;
    number = error;
}

long disk_calls(void) { return calls; }

static int below(const char *path) {
    return *folder && (*path != '/' || !strncmp(path, folder, strlen(folder)));
}

static int fails(const char *path) {
    if (!below(path)) return 0;
    long call = calls++;
    return call >= first && call < last;
}

static int end(void) {
    if (number < 0) kill(getpid(), SIGKILL);
    errno = number;
    return -1;
}

static const char *path_of(int fd) {
    static _Thread_local char path[PATH_MAX];
    char link[32];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    path[size < 0 ? 0 : size] = 0;
    return *path == '/' ? path : "/";
}

#define REAL(name) __typeof__(name) *real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

ssize_t write(int fd, const void *data, size_t size) {
    REAL(write);
    if (!*folder || !fails(path_of(fd))) return real(fd, data, size);
    if (torn++ || size < 2) return end();
    last++;
    return real(fd, data, size / 2); /* what is left fails */
}

int fsync(int fd) { /* nobody cuts the power of a test */
    REAL(fsync);
    if (!*folder || !below(path_of(fd))) return real(fd);
    return fails(path_of(fd)) ? end() : 0;
}

int rename(const char *from, const char *to) {
    REAL(rename);
    return fails(to) ? end() : real(from, to);
}

int unlink(const char *path) { /* a full disk lets go of files */
    REAL(unlink);
    return number != ENOSPC && fails(path) ? end() : real(path);
}

int mkdir(const char *path, mode_t mode) {
    REAL(mkdir);
    return fails(path) ? end() : real(path, mode);
}

#define OPEN(name)                                                          \
    int name(const char *path, int flags, ...) {                            \
        REAL(name);                                                         \
        va_list rest;                                                       \
        va_start(rest, flags);                                              \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
        va_end(rest);                                                       \
        return flags & O_ACCMODE && fails(path) ? end() : real(path, flags, mode); \
    }
OPEN(open)
OPEN(open64)
