/* Adds so many nanoseconds to the wall clock that one process sees, as the first word of a mapped
 * file says, while it runs; the second word is what it saw last. It neither allocates nor looks
 * symbols up, as a server's allocator asks for the time. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *mapped;
static volatile int tried;

static int64_t offset(void) {
  const char *path;
  if (!tried && (tried = 1) && (path = getenv("CLOCK_OFFSET"))) {
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0);
    if (fd >= 0) {
      void *at = (void *)syscall(SYS_mmap, 0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
      if (at != MAP_FAILED) mapped = at;
      syscall(SYS_close, fd);
    }
  }
  return mapped ? (mapped[1] = mapped[0]) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
  int result = (int)syscall(SYS_clock_gettime, clock, time);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
    int64_t ns = (int64_t)time->tv_sec * 1000000000 + time->tv_nsec + offset();
    time->tv_sec = ns / 1000000000;
    time->tv_nsec = ns % 1000000000;
  }
  return result;
}

int gettimeofday(struct timeval *time, void *zone) {
  struct timespec now;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &now);
  if (time) {
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
  }
  return 0;
}

time_t time(time_t *out) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out) *out = now.tv_sec;
  return now.tv_sec;
}
