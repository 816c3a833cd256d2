/* A wrong clock for a pod's processes, to preload: CLOCK_REALTIME plus CLOCK_OFFSET_SEC (pods with an even index) or
 * minus it. The kernel's clock, and so the times of files, and the monotonic clocks do not change. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long offset(void) {
    const char *by = getenv("CLOCK_OFFSET_SEC"), *index = getenv("JOB_COMPLETION_INDEX");
    long seconds = by ? atol(by) : 0;
    return index && atol(index) % 2 ? -seconds : seconds;
}

int clock_gettime(clockid_t id, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, id, now);
    if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) now->tv_sec += offset();
    return failed;
}

int gettimeofday(struct timeval *now, void *zone) {
    int failed = syscall(SYS_gettimeofday, now, zone);
    if (!failed) now->tv_sec += offset();
    return failed;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
