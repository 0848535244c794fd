//! Durations as numbers, and how long the machine was suspended: time that the monotonic clock does not count and a
//! backend's lease does.

use std::time::Duration;

/// Total time of suspends so far; zero where the platform's monotonic clock counts them or does
/// not say.
#[cfg(target_os = "linux")]
pub(crate) fn suspended() -> Duration {
    use rustix::time::{ClockId, clock_gettime};

    let read = |clock| {
        let t = clock_gettime(clock);
        Duration::new(
            t.tv_sec.try_into().unwrap_or(0),
            t.tv_nsec.try_into().unwrap_or(0),
        )
    };
    // A preemption between the two reads would look like a suspend: take the least of three.
    (0..3)
        .map(|_| {
            let monotonic = read(ClockId::Monotonic);
            read(ClockId::Boottime).saturating_sub(monotonic)
        })
        .min()
        .unwrap_or_default()
}

/// As on Linux, but there is no second clock to compare with.
#[cfg(not(target_os = "linux"))]
pub(crate) fn suspended() -> Duration {
    Duration::ZERO
}

/// As a number; 584 years are for ever.
pub(crate) fn nanos(duration: Duration) -> u64 {
    (duration.as_secs().saturating_mul(1_000_000_000))
        .saturating_add(u64::from(duration.subsec_nanos()))
}

/// Within a tenth of it, so that processes do not move in step.
#[cfg(any(feature = "etcd", feature = "redis", feature = "zookeeper"))]
pub(crate) fn jittered(duration: Duration) -> Duration {
    duration.mul_f64(0.9 + 0.2 * fastrand::f64())
}
